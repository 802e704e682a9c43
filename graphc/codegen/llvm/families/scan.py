"""Running sums: a vector has one element of each of `LANES` lines, and goes along them.

So a line's elements are added one after another, as NumPy adds them. An element is read before the
same one is written, so y may lie over x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from graphc.codegen.llvm.elements import NumberReader, whole_or_masked
from graphc.codegen.llvm.kernel import NativeCall, NativeCalls, kernel_of
from graphc.codegen.llvm.lanes import (
    LANES,
    Builder,
    IrValue,
    at,
    constant,
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
from graphc.codegen.text.operands import Operand, Places, collapse, operand, order_of
from graphc.codegen.text.scalar import arithmetic_dtype
from graphc.ir.graph import Node
from graphc.ir.types import DType


@dataclass(frozen=True, slots=True)
class _Structure:
    """What the text of a kernel depends on."""

    dtype: DType
    exclusive: bool
    outer: int
    """Axes of lines beside that of a vector's lanes."""
    units: tuple[bool, bool]
    """Whether the lines of a vector are neighbours in x, and in y."""


@native_rule("cumsum")
def _cumsum(node: Node, places: Places) -> NativeCalls:
    (x,), y, a = node.inputs, node.output, node.attributes
    length, elements = x.shape[a.axis], x.type.elements
    both = [operand(n, v, places[v], x.shape) for n, v in (("x", x), ("y", y))]
    extents, operands = _lines(x.shape, a.axis, both)
    *outer, lines = extents
    units = (operands[0].strides[-1] in (0, 1), operands[1].strides[-1] in (0, 1))
    structure = _Structure(x.type.dtype, a.exclusive, len(outer), units)
    wide = max(LANES, PIECE // length // LANES * LANES)
    chunks = -(-lines // wide)
    total = chunks * math.prod(outer)
    numbers = [chunks, *outer, lines, wide, length]
    for own, lying in zip(both, operands, strict=True):
        along = own.strides[a.axis]
        first = along * (length - 1) if a.reverse else 0
        numbers += [first, -along if a.reverse else along, *lying.strides]
    kernel = kernel_of("cumsum", structure, lambda builder: _write(builder, structure))
    call = NativeCall(kernel, (x, y), (*numbers, total, 1), total, 2 * elements)
    return NativeCalls((call,))


def _lines(
    shape: tuple[int, ...], axis: int, operands: Sequence[Operand]
) -> tuple[tuple[int, ...], list[Operand]]:
    """The axes of lines in fewest, as y lies in memory, and the operands on them."""
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
            def access(mask: IrValue | None) -> list[IrValue]:
                _sum(b, structure, here, place, length, mask)
                return []

            whole_or_masked(b, b.sub(lines, place), access)
            return ()

        loop(b, first, least(b, b.add(first, wide), lines), LANES, (), some)

    over_rows(b, given, extents, rows)


@dataclass(frozen=True, slots=True)
class _Side:
    """x or y: elements of `LANES` lines at a place along them."""

    builder: Builder
    dtype: DType
    base: IrValue
    along: IrValue
    strides: list[IrValue]
    is_unit: bool

    def moved(self, outer: Sequence[IrValue]) -> _Side:
        """This side from a place of the outer axes on."""
        b = self.builder
        base = at(b, self.base, offset_of(b, index(0), outer, self.strides), self.dtype)
        return _Side(b, self.dtype, base, self.along, self.strides, self.is_unit)

    def address(self, line: IrValue, place: IrValue) -> IrValue:
        """Of the element of a line."""
        b = self.builder
        inner = b.mul(line, self.strides[-1])
        return at(b, self.base, b.add(inner, b.mul(place, self.along)), self.dtype)

    def read(self, address: IrValue, mask: IrValue | None) -> IrValue:
        """A vector from a line on, as a kernel computes with it."""
        b, dtype = self.builder, self.dtype
        if self.is_unit:
            return widen(b, load(b, address, dtype, mask), dtype)
        return widen(b, gather(b, address, self.strides[-1], dtype, mask), dtype)

    def write(self, value: IrValue, address: IrValue, mask: IrValue | None) -> None:
        """Round a vector and lay it from a line on."""
        b, dtype = self.builder, self.dtype
        stored = narrow(b, value, arithmetic_dtype(dtype), dtype)
        if self.is_unit:
            store(b, stored, address, dtype, mask)
        else:
            scatter(b, stored, address, self.strides[-1], dtype, mask)


def _sum(
    builder: Builder,
    structure: _Structure,
    sides: Sequence[_Side],
    line: IrValue,
    length: IrValue,
    mask: IrValue | None,
) -> None:
    """Write the loop along the lines of a vector."""
    b, (source, target) = builder, sides
    plus = b.fadd if arithmetic_dtype(structure.dtype).kind == "float" else b.add

    def step(place: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
        (before,) = carried
        total = plus(before, source.read(source.address(line, place), mask))
        written = before if structure.exclusive else total
        target.write(written, target.address(line, place), mask)
        return (total,)

    loop(b, index(0), length, 1, (constant(held(structure.dtype), 0),), step)
