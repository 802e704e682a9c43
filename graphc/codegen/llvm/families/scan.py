"""Running sums: a vector holds one element of each of `LANES` lines, and is moved along the lines.

If a line's elements are contiguous, squares of `LANES` lines and `LANES` positions are read and
written by rows, and transposed in registers.

A line's elements are added one after another, as in NumPy. An element is read before the same one
is written, so y may overwrite x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from graphc.codegen.llvm.elements import NumberReader, whole_or_masked
from graphc.codegen.llvm.kernel import NativeCall, NativeCalls, kernel_of
from graphc.codegen.llvm.lanes import (
    LANES,
    Builder,
    IrValue,
    at,
    constant,
    first_lanes,
    gather,
    held,
    index,
    load,
    loop,
    narrow,
    scatter,
    store,
    widen,
)
from graphc.codegen.llvm.pieces import PIECE, over_rows
from graphc.codegen.llvm.places import least, offset_of
from graphc.codegen.llvm.rules import native_rule
from graphc.codegen.llvm.tile import transposed
from graphc.codegen.text.operands import Operand, Places, collapse, operand, order_of
from graphc.codegen.text.scalar import arithmetic_dtype
from graphc.ir.graph import Node
from graphc.ir.types import DType

Squares = Literal["none", "ascending", "descending"]


@dataclass(frozen=True, slots=True)
class _Structure:
    """The properties on which the text of a kernel depends."""

    dtype: DType
    exclusive: bool
    outer: int
    """The number of axes that index lines, except the axis along which vectors are loaded."""
    units: tuple[bool, bool]
    """For x and for y, true if the `LANES` lines of a vector are adjacent in memory."""
    squares: Squares
    """The order in which squares along a line are processed, if lines are read by squares."""


@native_rule("cumsum")
def _cumsum(node: Node, places: Places) -> NativeCalls:
    (x,), y, a = node.inputs, node.output, node.attributes
    length, elements = x.shape[a.axis], x.type.elements
    both = [operand(n, v, places[v], x.shape) for n, v in (("x", x), ("y", y))]
    extents, operands = _lines(x.shape, a.axis, both)
    *outer, lines = extents
    units = (_is_unit(operands[0], lines), _is_unit(operands[1], lines))
    in_rows = lines > 1 and all(own.strides[a.axis] == 1 for own in both)
    order: Squares = "descending" if a.reverse else "ascending"
    structure = _Structure(
        x.type.dtype, a.exclusive, len(outer), units, order if in_rows else "none"
    )
    wide = max(LANES, PIECE // length // LANES * LANES)
    chunks = -(-lines // wide)
    total = chunks * math.prod(outer)
    numbers = [chunks, *outer, lines, wide, length]
    for own, lying in zip(both, operands, strict=True):
        along = own.strides[a.axis]
        turns = a.reverse and not in_rows
        first = along * (length - 1) if turns else 0
        numbers += [first, -along if turns else along, *lying.strides]
    kernel = kernel_of("cumsum", structure, lambda builder: _write(builder, structure))
    call = NativeCall(kernel, (x, y), (*numbers, total, 1), total, 2 * elements)
    return NativeCalls((call,))


def _is_unit(lying: Operand, lines: int) -> bool:
    """Return true if adjacent lines are neighbors in memory, or if there is a single line."""
    return lying.strides[-1] == 1 or lines == 1


def _lines(
    shape: tuple[int, ...], axis: int, operands: Sequence[Operand]
) -> tuple[tuple[int, ...], list[Operand]]:
    """Merge the axes that index lines, in the memory order of y; return extents and operands on
    these axes."""
    order = [other for other in order_of(shape, operands[::-1]) if other != axis]
    extents, found = collapse(
        tuple(shape[other] for other in order), [o.permuted(order) for o in operands]
    )
    return (extents, found) if extents else ((1,), [o.on((0,)) for o in operands])


def _write(builder: Builder, structure: _Structure) -> None:
    b, given = builder, NumberReader(builder)
    x, y = given.pointer(), given.pointer()
    extents = given.some(1 + structure.outer)
    lines, wide, length = given.some(3)
    dtype, sides = structure.dtype, []
    for base, is_unit in zip((x, y), structure.units, strict=True):
        first, along, *strides = given.some(3 + structure.outer)
        sides.append(_Side(b, dtype, at(b, base, first, dtype), along, strides, is_unit))

    def rows(_: IrValue, indices: list[IrValue]) -> None:
        chunk, *outer = indices
        first = b.mul(chunk, wide)
        here = [side.moved(outer) for side in sides]

        def some(place: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            if structure.squares != "none":
                _sum_squares(b, structure, here, place, lines, length)
                return ()

            def access(mask: IrValue | None) -> list[IrValue]:
                _sum(b, structure, here, place, length, mask)
                return []

            whole_or_masked(b, b.sub(lines, place), access)
            return ()

        loop(b, first, least(b, b.add(first, wide), lines), LANES, (), some)

    over_rows(b, given, extents, rows)


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the operands x and y, with its access to elements of `LANES` lines."""

    builder: Builder
    dtype: DType
    base: IrValue
    along: IrValue
    strides: list[IrValue]
    is_unit: bool

    def moved(self, outer: Sequence[IrValue]) -> _Side:
        """Return this operand with its base moved to the given indices of the outer axes."""
        b = self.builder
        base = at(b, self.base, offset_of(b, index(0), outer, self.strides), self.dtype)
        return _Side(b, self.dtype, base, self.along, self.strides, self.is_unit)

    def address(self, line: IrValue, place: IrValue) -> IrValue:
        """Return the address of the element at position `place` of a line."""
        b = self.builder
        inner = b.mul(line, self.strides[-1])
        return at(b, self.base, b.add(inner, b.mul(place, self.along)), self.dtype)

    @property
    def step(self) -> IrValue | None:
        """The distance between adjacent lines, in elements; None if it is 1."""
        return None if self.is_unit else self.strides[-1]

    def read(self, address: IrValue, mask: IrValue | None) -> IrValue:
        """Load one element from each of `LANES` lines, converted to the dtype of the arithmetic."""
        stored = gather(self.builder, address, self.step, self.dtype, mask)
        return widen(self.builder, stored, self.dtype)

    def write(self, value: IrValue, address: IrValue, mask: IrValue | None) -> None:
        """Round a vector and store one element to each of `LANES` lines."""
        stored = narrow(self.builder, value, arithmetic_dtype(self.dtype), self.dtype)
        scatter(self.builder, stored, address, self.step, self.dtype, mask)


def _sum(
    builder: Builder,
    structure: _Structure,
    sides: Sequence[_Side],
    line: IrValue,
    length: IrValue,
    mask: IrValue | None,
) -> None:
    """Write the loop that sums along `LANES` lines, one vector per position."""
    b, (source, target) = builder, sides
    plus = b.fadd if arithmetic_dtype(structure.dtype).kind == "float" else b.add

    def step(place: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
        (before,) = carried
        total = plus(before, source.read(source.address(line, place), mask))
        written = before if structure.exclusive else total
        target.write(written, target.address(line, place), mask)
        return (total,)

    loop(b, index(0), length, 1, (_nothing(structure),), step)


def _sum_squares(
    builder: Builder,
    structure: _Structure,
    sides: Sequence[_Side],
    line: IrValue,
    lines: IrValue,
    length: IrValue,
) -> None:
    """Write the loop that sums along `LANES` lines, one square at a time.

    Lines beyond the end repeat the last one, and positions beyond the end are 0. Results beyond
    either end are not written.
    """
    b, (source, target), dtype = builder, sides, structure.dtype
    count = b.sdiv(b.add(length, index(LANES - 1)), index(LANES))
    numbers = [b.add(line, index(lane)) for lane in range(LANES)]
    last = b.sub(lines, index(1))

    def square(number: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
        if structure.squares == "descending":
            number = b.sub(b.sub(count, index(1)), number)
        first = b.mul(number, index(LANES))
        remaining = b.sub(length, first)
        places = [source.address(least(b, each, last), first) for each in numbers]
        rows = whole_or_masked(
            b, remaining, lambda mask: [load(b, place, dtype, mask) for place in places]
        )
        columns, total = _sums(b, structure, transposed(b, rows), carried[0])
        results = transposed(b, columns)
        everything = b.and_(
            b.icmp_signed(">=", remaining, index(LANES)), b.icmp_signed("<=", numbers[-1], last)
        )

        def writes(number: int, mask: IrValue | None) -> None:
            store(b, results[number], target.address(numbers[number], first), dtype, mask)

        with b.if_else(everything) as (then, otherwise):
            with then:
                for lane in range(LANES):
                    writes(lane, None)
            with otherwise:
                for lane, each in enumerate(numbers):
                    exists = b.icmp_signed("<=", each, last)
                    writes(lane, first_lanes(b, b.select(exists, remaining, index(0))))
        return (total,)

    loop(b, index(0), count, 1, (_nothing(structure),), square)


def _nothing(structure: _Structure) -> IrValue:
    """Return the initial total: -0.0, which changes no element, or 0 if the total itself is written
    first."""
    is_float = arithmetic_dtype(structure.dtype).kind == "float"
    return constant(held(structure.dtype), -0.0 if is_float and not structure.exclusive else 0)


def _sums(
    builder: Builder, structure: _Structure, columns: list[IrValue], total: IrValue
) -> tuple[list[IrValue], IrValue]:
    """Return the running sums for each column of a square, as stored, and the total after the
    square."""
    b, dtype = builder, structure.dtype
    kind, descends = arithmetic_dtype(dtype), structure.squares == "descending"
    plus = b.fadd if kind.kind == "float" else b.add
    found = []
    for column in reversed(columns) if descends else columns:
        before, total = total, plus(total, widen(b, column, dtype))
        found.append(narrow(b, before if structure.exclusive else total, kind, dtype))
    return found[::-1] if descends else found, total
