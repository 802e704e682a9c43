"""Random programs as LLVM IR: vectors of Philox blocks, whose words are the elements in order.

A block yields four words, so `LANES` blocks are interleaved into vectors of consecutive elements.
Words are kept in 64-bit lanes, which hold the product of two words.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from graphc.codegen.llvm.elements import NumberReader, whole_or_masked
from graphc.codegen.llvm.kernel import INDEX, NativeCall, kernel_of
from graphc.codegen.llvm.lanes import (
    HELD,
    LANES,
    WORD,
    Builder,
    IrValue,
    at,
    constant,
    index,
    lane_numbers,
    load,
    load_integer,
    loop,
    splat,
    store,
    vector,
)
from graphc.codegen.llvm.pieces import over_pieces, rows_of_piece
from graphc.codegen.llvm.scalar import LaneCode
from graphc.codegen.llvm.tile import interleaved
from graphc.codegen.random.program import Drawn
from graphc.ir.types import DType, float32, int64
from graphc.ops.random import LOW, MULTIPLIERS, ROUNDS, WEYL


def drawn_call(program: Drawn) -> NativeCall:
    """Return the call that runs a random program."""
    width = program.lanes * LANES
    groups, rows = -(-program.elements // width), rows_of_piece(width)
    anonymous = [(o.name, o.dtype) for o in (*program.inputs, program.output)]
    structure = (program.dtype, anonymous, program.standard, program.result)
    operands = (*program.inputs, program.seed, program.step, program.output)
    return NativeCall(
        kernel_of(program.op, structure, lambda builder: _write(builder, program)),
        tuple(each.buffer for each in operands if each.buffer is not None),
        (program.stream, program.elements, groups, rows),
        -(-groups // rows),
        16 * program.elements,
    )


class Philox:
    """Writer of code that computes Philox blocks of one random stream at one training step."""

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
        """Return the four words, below 2^32, of each of `LANES` blocks from `block` on, as four
        vectors."""
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


def in_turns(builder: Builder, vectors: Sequence[IrValue]) -> list[IrValue]:
    """Interleave the elements of two or four vectors; return as many vectors in the interleaved
    order."""
    if len(vectors) == 4:
        even, odd = (in_turns(builder, (vectors[r], vectors[r + 2])) for r in (0, 1))
        return [part for pair in zip(even, odd, strict=True) for part in in_turns(builder, pair)]
    first, second = vectors
    return [interleaved(builder, first, second, start) for start in (0, LANES // 2)]


def _fractions(builder: Builder, words: Sequence[IrValue], kind: DType) -> list[IrValue]:
    """Return random integers as floats: four vectors of 24 bits, or two of 53 bits from two words
    each."""
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


def _write(builder: Builder, program: Drawn) -> None:
    """Write the loops over groups of `LANES` blocks."""
    b, given, output = builder, NumberReader(builder), program.output
    inputs = [(each, given.pointer()) for each in program.inputs]
    seed, step, y = (given.pointer() for _ in range(3))
    philox, elements = Philox(b, seed, step, given.number()), given.number()

    def group(number: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
        vectors = _standard(b, program, philox.words(b.mul(number, index(LANES))))
        start = b.mul(number, index(len(vectors) * LANES))
        for lane, drawn in enumerate(vectors):
            place = b.add(start, index(lane * LANES))
            access = functools.partial(element, place, drawn)
            whole_or_masked(b, b.sub(elements, place), access)
        return ()

    def element(place: IrValue, drawn: IrValue, mask: IrValue | None) -> list[IrValue]:
        code = LaneCode(b, program.dtype)
        code.hold("drawn", program.dtype, drawn)
        for x, base in inputs:
            code.declare(x.name, x.dtype, load(b, at(b, base, place, x.dtype), x.dtype, mask))
        stored = code.define(output.name, output.dtype, program.result)
        store(b, stored, at(b, y, place, output.dtype), output.dtype, mask)
        return []

    def part(first: IrValue, last: IrValue) -> None:
        loop(b, first, last, 1, (), group)

    over_pieces(b, given, part)


def _standard(builder: Builder, program: Drawn, words: Sequence[IrValue]) -> list[IrValue]:
    """Return vectors of the `standard` values of consecutive elements, before `result` is applied
    to them."""
    bits, size = _fractions(builder, words, program.dtype), len(program.standard)
    found: list[IrValue] = []
    for first in range(0, len(bits), size):
        code = LaneCode(builder, program.dtype)
        for name, value in zip(("first", "second"), bits[first : first + size], strict=False):
            code.hold(name, program.dtype, value)
        found += [code.compute(expression)[0] for expression in program.standard]
    return in_turns(builder, found)
