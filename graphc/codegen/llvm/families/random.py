"""Random ops: vectors of Philox blocks, whose words are the elements in order.

A block yields four words, so `LANES` blocks are interleaved into vectors of consecutive elements.
Words are kept in 64-bit lanes, which hold the product of two words.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graphc.codegen.llvm.elements import NumberReader, whole_or_masked
from graphc.codegen.llvm.families.numbers import bits_of, load_integer, read_float
from graphc.codegen.llvm.kernel import INDEX, NativeCall, NativeCalls, kernel_of
from graphc.codegen.llvm.lanes import (
    HELD,
    LANES,
    WORD,
    Builder,
    IrValue,
    at,
    constant,
    held,
    index,
    lane_numbers,
    load,
    loop,
    narrow,
    splat,
    store,
    vector,
    widen,
)
from graphc.codegen.llvm.pieces import over_pieces, rows_of_piece
from graphc.codegen.llvm.rules import native_rule
from graphc.codegen.llvm.scalar import LaneCode
from graphc.codegen.llvm.tile import interleaved
from graphc.codegen.text.operands import Places
from graphc.codegen.text.scalar import arithmetic_dtype
from graphc.ir.expression import parse
from graphc.ir.graph import Node
from graphc.ir.types import DType, float32, float64, int64
from graphc.ops.random import LOW, MULTIPLIERS, ROUNDS, WEYL, Noise, Normal, least_that_stays

WORDS = 4
"""Random words per block."""


class _Philox:
    """A generator of blocks of one stream at one step; `seed`, `step` and the stream are
    scalars."""

    def __init__(self, builder: Builder, seed: IrValue, step: IrValue, stream: IrValue) -> None:
        self.builder = b = builder
        low = index(LOW)
        of_step = b.and_(load_integer(b, step, index(0), int64), low)
        self.counters = [splat(b, number) for number in (index(0), stream, of_step)]
        self.keys = []
        for number in range(ROUNDS):
            pair = []
            for half, weyl in enumerate(WEYL):
                key = b.add(load_integer(b, seed, index(half), int64), index(number * weyl))
                pair.append(splat(b, b.and_(key, low)))
            self.keys.append(pair)

    def words(self, block: IrValue) -> list[IrValue]:
        """Return four words of `LANES` blocks from `block` on, below 2^32."""
        b, kind = self.builder, vector(INDEX)
        low, half = constant(kind, LOW), constant(kind, 32)
        words = [b.and_(lane_numbers(b, block, index(1)), low), *self.counters]
        for keys in self.keys:
            products = [
                b.mul(words[place], constant(kind, factor))
                for place, factor in zip((0, 2), MULTIPLIERS, strict=True)
            ]
            upper = [b.lshr(product, half) for product in products]
            words = [
                b.xor(b.xor(upper[1], words[1]), keys[0]),
                b.and_(products[1], low),
                b.xor(b.xor(upper[0], words[3]), keys[1]),
                b.and_(products[0], low),
            ]
        return words


def _in_turns(builder: Builder, vectors: Sequence[IrValue]) -> list[IrValue]:
    """Interleave the elements of two or four vectors into vectors of consecutive elements."""
    if len(vectors) == 4:
        even, odd = (_in_turns(builder, (vectors[r], vectors[r + 2])) for r in (0, 1))
        return [part for pair in zip(even, odd, strict=True) for part in _in_turns(builder, pair)]
    first, second = vectors
    return [interleaved(builder, first, second, start) for start in (0, LANES // 2)]


Write = Callable[[IrValue, IrValue, IrValue | None], None]
"""A function that writes the code for a vector, at a position and with a mask."""


def _written(write: Write, place: IrValue, values: IrValue, mask: IrValue | None) -> list[IrValue]:
    write(place, values, mask)
    return []


def _over_vectors(
    builder: Builder,
    given: NumberReader,
    drawn: Callable[[IrValue], list[IrValue]],
    write: Write,
) -> None:
    """Write the loops over groups of `LANES` blocks.

    `drawn` returns the vectors of the blocks from a first one on; each of them is written.
    """
    b, elements = builder, given.number()

    def group(number: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
        vectors = drawn(b.mul(number, index(LANES)))
        start = b.mul(number, index(len(vectors) * LANES))
        for lane, values in enumerate(vectors):
            place = b.add(start, index(lane * LANES))
            access = functools.partial(_written, write, place, values)
            whole_or_masked(b, b.sub(elements, place), access)
        return ()

    def part(first: IrValue, last: IrValue) -> None:
        loop(b, first, last, 1, (), group)

    over_pieces(b, given, part)


def _cut(elements: int, width: int) -> tuple[tuple[int, int, int], int]:
    """Return the numbers that `_over_vectors` reads, for groups of `width` elements, and the
    pieces."""
    groups, rows = -(-elements // width), rows_of_piece(width)
    return (elements, groups, rows), -(-groups // rows)


@native_rule("dropout")
def _dropout(node: Node, places: Places) -> NativeCalls:
    """Apply dropout to a contiguous x, with a contiguous y."""
    x, seed, step = node.inputs
    dtype, rate = x.type.dtype, node.attributes.rate
    given, pieces = _cut(x.type.elements, WORDS * LANES)
    threshold, factor = least_that_stays(rate), bits_of(1 / (1 - rate))
    kernel = kernel_of("dropout", dtype, lambda builder: _write_dropout(builder, dtype))
    numbers = (node.attributes.stream, threshold, factor, *given)
    call = NativeCall(kernel, (x, seed, step, node.output), numbers, pieces, 8 * x.type.elements)
    return NativeCalls((call,))


def _write_dropout(builder: Builder, dtype: DType) -> None:
    b, given = builder, NumberReader(builder)
    x, seed, step, y = (given.pointer() for _ in range(4))
    philox = _Philox(b, seed, step, given.number())
    threshold = splat(b, b.trunc(given.number(), WORD))
    kind = arithmetic_dtype(dtype)
    factor = splat(b, _rounded(b, read_float(b, given), kind))
    eight = constant(vector(WORD), 8)

    def drawn(block: IrValue) -> list[IrValue]:
        words = [b.trunc(word, vector(WORD)) for word in philox.words(block)]
        return [
            b.icmp_unsigned(">=", b.lshr(word, eight), threshold) for word in _in_turns(b, words)
        ]

    def write(place: IrValue, stays: IrValue, mask: IrValue | None) -> None:
        value = widen(b, load(b, at(b, x, place, dtype), dtype, mask), dtype)
        kept = b.select(stays, b.fmul(value, factor), constant(held(dtype), 0.0))
        store(b, narrow(b, kept, kind, dtype), at(b, y, place, dtype), dtype, mask)

    _over_vectors(b, given, drawn, write)


def _rounded(builder: Builder, number: IrValue, kind: DType) -> IrValue:
    """Return a float64 in the dtype that a kernel computes in."""
    return number if kind == float64 else builder.fptrunc(number, HELD[kind])


@dataclass(frozen=True, slots=True)
class _Drawing:
    """The properties on which the text of a distribution's kernel depends."""

    op: str
    dtype: DType
    is_normal: bool
    unit: float


@native_rule(Noise)
def _noise(node: Node, places: Places) -> NativeCalls:
    """Draw numbers of a distribution for a contiguous y."""
    seed, step = node.inputs
    op, y = node.op, node.output
    assert isinstance(op, Noise)
    dtype = y.type.dtype
    drawing = _Drawing(op.name, dtype, isinstance(op, Normal), op.unit(dtype))
    offset, factor = op.line(node.attributes)
    given, pieces = _cut(y.type.elements, op.lanes(dtype) * LANES)
    numbers = (node.attributes.stream, bits_of(factor), bits_of(offset), *given)
    kernel = kernel_of(op.name, drawing, lambda builder: _write_noise(builder, drawing))
    call = NativeCall(kernel, (seed, step, y), numbers, pieces, 16 * y.type.elements)
    return NativeCalls((call,))


def _write_noise(builder: Builder, drawing: _Drawing) -> None:
    b, given, dtype = builder, NumberReader(builder), drawing.dtype
    seed, step, y = (given.pointer() for _ in range(3))
    philox = _Philox(b, seed, step, given.number())
    kind = arithmetic_dtype(dtype)
    line = {name: read_float(b, given) for name in ("factor", "offset")}

    def drawn(block: IrValue) -> list[IrValue]:
        fractions = _fractions(b, philox.words(block), kind)
        if not drawing.is_normal:
            return _in_turns(b, [_computed(b, kind, f"x * {drawing.unit}", x=f) for f in fractions])
        found: list[IrValue] = []
        for near, turn in zip(fractions[::2], fractions[1::2], strict=True):
            found += _pair(b, kind, drawing.unit, near, turn)
        return _in_turns(b, found)

    def write(place: IrValue, standard: IrValue, mask: IrValue | None) -> None:
        code = LaneCode(b, kind)
        code.constants = line
        code.hold("x", kind, standard)
        stored = narrow(b, code.compute(parse("x * factor + offset"))[0], kind, dtype)
        store(b, stored, at(b, y, place, dtype), dtype, mask)

    _over_vectors(b, given, drawn, write)


def _fractions(builder: Builder, words: Sequence[IrValue], kind: DType) -> list[IrValue]:
    """Return integers of 24 bits of four words, or of 53 bits of two words each, as floats."""
    b, lanes = builder, vector(INDEX)

    def shifted(word: IrValue, bits: int) -> IrValue:
        return b.lshr(word, constant(lanes, bits))

    if kind == float32:
        whole = [b.trunc(shifted(word, 8), vector(WORD)) for word in words]
    else:
        whole = [
            b.or_(b.shl(shifted(high, 5), constant(lanes, 26)), shifted(low, 6))
            for high, low in (words[:2], words[2:])
        ]
    return [b.sitofp(number, vector(HELD[kind])) for number in whole]


def _pair(
    builder: Builder, kind: DType, unit: float, near: IrValue, turn: IrValue
) -> list[IrValue]:
    """Return two normally distributed numbers from two fractions (Box and Muller, 1958)."""
    near = _computed(builder, kind, "x + 1", x=near)  # its logarithm is finite
    radius = _computed(builder, kind, f"sqrt(log(x * {unit}) * -2)", x=near)
    angle = _computed(builder, kind, f"x * {unit} * {2 * math.pi}", x=turn)
    return [
        _computed(builder, kind, f"{function}(x) * radius", x=angle, radius=radius)
        for function in ("cos", "sin")
    ]


def _computed(builder: Builder, kind: DType, source: str, **operands: IrValue) -> IrValue:
    """Compute an expression over vectors of one dtype."""
    code = LaneCode(builder, kind)
    for name, value in operands.items():
        code.hold(name, kind, value)
    return code.compute(parse(source))[0]
