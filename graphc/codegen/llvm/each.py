"""Elementwise programs as LLVM IR: loops over rows in the output's memory order, `LANES` elements
at a time.

Axes are in the output's memory order. Two axes are merged if all operands are contiguous across
them. The innermost axis is the row. A piece of a call is some rows, or a part of a long one.

In a transpose, an input is contiguous along another axis than the output. Reading it along the row
would load one cache line per element. Such an input is read through a tile: `LANES` vectors along
its own axis are loaded, transposed in registers and stored on the stack. Rows read them there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from graphc.codegen.elementwise.program import Each
from graphc.codegen.llvm.elements import (
    Lying,
    NumberReader,
    Reached,
    evaluate,
    load_lanes,
    load_row,
    lying,
    store_lanes,
)
from graphc.codegen.llvm.kernel import NativeCall, kernel_of
from graphc.codegen.llvm.lanes import (
    LANES,
    MEMORY,
    Builder,
    IrValue,
    at,
    index,
    loop,
    stack,
)
from graphc.codegen.llvm.pieces import PIECE, rows_of_piece
from graphc.codegen.llvm.places import advanced, least, offset_of, split
from graphc.codegen.llvm.scalar import LaneCode, supports
from graphc.codegen.llvm.tile import fill_tile
from graphc.codegen.text.operands import Operand, collapse, order_of
from graphc.codegen.text.scalar import arithmetic_dtype, floating
from graphc.ir.expression import Expression
from graphc.ir.types import DType

TILE_ROWS, TILE_COLUMNS = 64, 256
"""Number of rows and columns of a piece if some input is transposed."""
SHORTEST_TURNED = 8
"""Minimum extent of both axes at which tiles pay off."""


@dataclass(frozen=True)
class _Structure:
    """The properties on which the text of a kernel depends."""

    outer: int
    """The number of axes other than the row."""
    sources: tuple[Lying, ...]
    targets: tuple[Lying, ...]
    expressions: tuple[tuple[str, Expression], ...]
    locals: tuple[tuple[str, DType], ...]

    @property
    def is_tiled(self) -> bool:
        return any(source.step == "turned" for source in self.sources)


def each_call(program: Each) -> NativeCall | None:
    """Return the call that runs an elementwise program; None if NumPy must compute its
    functions."""
    dtypes = {o.name: o.dtype for o in (*program.inputs, *program.outputs)} | dict(program.locals)
    if not all(supports(e, dtypes) for e in program.expressions.values()):
        return None
    order = order_of(program.shape, program.outputs)
    shape = tuple(program.shape[axis] for axis in order)
    operands = [o.permuted(order) for o in (*program.inputs, *program.outputs)]
    extents, operands = collapse(shape, operands)
    if not extents:
        extents, operands = (1,), [o.on((0,)) for o in operands]
    turned = _turned_axis(extents, operands[: len(program.inputs)])
    if turned is not None:  # it becomes the axis before the row
        last = len(extents) - 1
        order = (*(axis for axis in range(last) if axis != turned), turned, last)
        extents = tuple(extents[axis] for axis in order)
        operands = [o.permuted(order) for o in operands]
    return _call(program, extents, operands, turned is not None)


def _turned_axis(extents: Sequence[int], sources: Sequence[Operand]) -> int | None:
    """Return the axis along which most transposed inputs are contiguous; None if there are none. An
    input is transposed if it is not contiguous along the row, but along another axis."""
    last = len(extents) - 1
    found = [
        axis
        for source in sources
        for axis in range(last)
        if source.buffer is not None
        and source.strides[last] not in (0, 1)
        and source.strides[axis] == 1
        and min(extents[axis], extents[last]) >= SHORTEST_TURNED
    ]
    return max(found, key=lambda axis: (found.count(axis), axis)) if found else None


def _call(
    program: Each, extents: Sequence[int], operands: Sequence[Operand], is_tiled: bool
) -> NativeCall:
    *outer, row = extents
    count = len(program.inputs)
    known = [
        lying(o, is_tiled and place < count and _is_turned(o)) for place, o in enumerate(operands)
    ]
    structure = _Structure(
        len(outer),
        tuple(known[:count]),
        tuple(known[count:]),
        tuple(program.expressions.items()),
        tuple(program.locals.items()),
    )
    if is_tiled:
        rows, columns = min(TILE_ROWS, outer[-1]), min(TILE_COLUMNS, row)
        parts = -(-outer[-1] // rows)
        pieces = math.prod(outer[:-1]) * parts * -(-row // columns)
    else:
        columns = min(PIECE, row)
        rows = rows_of_piece(row)
        parts = -(-math.prod(outer) // rows)
        pieces = parts * -(-row // columns)
    numbers = [*outer, row, rows, columns, parts]
    for each in operands:
        numbers += [each.start, *each.strides]
    elements = math.prod(extents)
    touched = sum(o.buffer is not None and any(o.strides) for o in operands)
    return NativeCall(
        kernel_of(program.op, structure, lambda builder: _Writer(builder, structure).write()),
        tuple(o.buffer for o in operands if o.buffer is not None),
        tuple(numbers),
        pieces,
        elements * max(1, touched),
    )


def _is_turned(operand: Operand) -> bool:
    return (
        operand.buffer is not None
        and operand.strides[-1] not in (0, 1)
        and operand.strides[-2] == 1
    )


class _Writer:
    """Writer of an elementwise kernel for operands of one structure."""

    def __init__(self, builder: Builder, structure: _Structure) -> None:
        self.builder, self.structure = builder, structure
        given = NumberReader(builder)
        self.first, self.last = given.first, given.last
        self.extents = given.some(structure.outer)
        self.row, self.rows, self.columns, self.parts = given.some(4)
        self.operands: list[tuple[Lying, IrValue | None, IrValue, list[IrValue]]] = []
        for each in (*structure.sources, *structure.targets):
            pointer = None if each.counts else given.pointer()
            start, *strides = given.some(structure.outer + 2)
            self.operands.append((each, pointer, start, strides))
        self.tiles = {
            each.name: stack(builder, MEMORY[each.dtype], LANES * LANES)
            for each in structure.sources
            if each.step == "turned"
        }

    def write(self) -> None:
        """Write the loop over pieces."""
        piece = self.tiled_piece if self.structure.is_tiled else self.plain_piece

        def body(number: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            piece(number)
            return ()

        loop(self.builder, self.first, self.last, 1, (), body)

    def column_range(self, chunk: IrValue) -> tuple[IrValue, IrValue]:
        """Return the range of columns in part number `chunk` of a row."""
        first = self.builder.mul(chunk, self.columns)
        return first, least(self.builder, self.builder.add(first, self.columns), self.row)

    def plain_piece(self, piece: IrValue) -> None:
        """Write a piece: some whole rows, or a part of one row."""
        b = self.builder
        chunk, block = b.udiv(piece, self.parts), b.urem(piece, self.parts)
        columns = self.column_range(chunk)
        total = index(1)
        for extent in self.extents:
            total = b.mul(total, extent)
        first = b.mul(block, self.rows)
        last = least(b, b.add(first, self.rows), total)

        def row(number: IrValue, indices: list[IrValue]) -> Sequence[IrValue]:
            self.do_row(self.reached(indices), *columns)
            return advanced(b, indices, self.extents)

        loop(b, first, last, 1, split(b, first, self.extents), row)

    def tiled_piece(self, piece: IrValue) -> None:
        """Write a tiled piece: some rows with common outer indices, and some of their columns."""
        b = self.builder
        *outer, height = self.extents
        rest, part = b.udiv(piece, self.parts), b.urem(piece, self.parts)
        top = b.mul(part, self.rows)
        bottom = least(b, b.add(top, self.rows), height)
        chunks = b.udiv(b.add(self.row, b.sub(self.columns, index(1))), self.columns)
        left, right = self.column_range(b.urem(rest, chunks))
        place = split(b, b.udiv(rest, chunks), outer)

        def across(row: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            start = self.reached([*place, row])
            tall = least(b, b.sub(bottom, row), index(LANES))
            loop(b, left, right, LANES, (), lambda column, _: self.tile(start, column, right, tall))
            return ()

        loop(b, top, bottom, LANES, (), across)

    def tile(
        self, start: list[Reached], column: IrValue, right: IrValue, tall: IrValue
    ) -> Sequence[IrValue]:
        """Write code that computes `LANES` columns of `tall` rows, starting at a given row and
        column."""
        b = self.builder
        last = b.sub(right, index(1))
        for each in start:
            if each.lying.step == "turned":
                tile = self.tiles[each.lying.name]
                fill_tile(b, tile, each, column, last, tall)

        def row(number: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            reached = [self.on_row(each, number) for each in start]
            self.do_row(reached, column, least(b, b.add(column, index(LANES)), right))
            return ()

        loop(b, index(0), tall, 1, (), row)
        return ()

    def on_row(self, start: Reached, number: IrValue) -> Reached:
        """Return an operand `number` rows after a first row; a transposed operand is read from its
        tile."""
        b, own = self.builder, start.lying
        if own.step == "turned":
            tile = at(b, self.tiles[own.name], b.mul(number, index(LANES)), own.dtype)
            return Reached(own, tile, start.inner)
        strides = next(strides for each, _, _, strides in self.operands if each is own)
        moved = b.mul(number, strides[-2])
        base = b.add(start.base, moved) if own.counts else at(b, start.base, moved, own.dtype)
        return Reached(own, base, start.inner)

    def reached(self, indices: Sequence[IrValue]) -> list[Reached]:
        """Return all operands with their addresses at the beginning of the row with these
        indices."""
        found = []
        for each, pointer, start, strides in self.operands:
            offset = offset_of(self.builder, start, indices, strides)
            base = offset if pointer is None else at(self.builder, pointer, offset, each.dtype)
            found.append(Reached(each, base, strides[-1]))
        return found

    def do_row(self, reached: list[Reached], first: IrValue, last: IrValue) -> None:
        """Write the loop over the columns of a row."""
        b, structure = self.builder, self.structure
        sources = reached[: len(structure.sources)]
        targets = reached[len(structure.sources) :]
        outside = LaneCode(b, _beside_none(structure))
        for each in sources:
            if each.lying.step == "one":
                load_row(b, outside, each)
        if outside.floating is not None:
            outside.prepare([e for _, e in structure.expressions])

        def lanes(place: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            remaining = b.sub(last, place)
            code = outside.nested()
            load_lanes(b, code, sources, place, remaining)
            found = evaluate(code, structure.expressions, dict(structure.locals), targets)
            store_lanes(b, found, place, remaining)
            return ()

        loop(b, first, last, LANES, (), lanes)


def _beside_none(structure: _Structure) -> DType | None:
    """Return the dtype of literals in expressions without variables."""
    dtypes = [each.dtype for each in (*structure.sources, *structure.targets)]
    found = floating(dtypes)
    if found is None and not structure.sources:
        return arithmetic_dtype(structure.targets[0].dtype)
    return found
