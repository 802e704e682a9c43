"""Rows of a table by number (gather), and the table's gradient.

The gradient links the lookups of each row into a list, in their order. `heads` has the first lookup
of a row and `following` the next one of the same row; -1 ends the list. Then each row of the table
is summed over its list, on any thread. A row without lookups is skipped or set to zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from graphc.codegen.elementwise.ops import copied
from graphc.codegen.llvm.each import each_call
from graphc.codegen.llvm.elements import NumberReader
from graphc.codegen.llvm.kernel import INDEX, NativeCall, NativeCalls, kernel_of
from graphc.codegen.llvm.lanes import (
    LANES,
    MEMORY,
    WORD,
    Builder,
    IrValue,
    at,
    constant,
    held,
    index,
    load,
    load_integer,
    loop,
    narrow,
    store,
    vector,
    widen,
)
from graphc.codegen.llvm.pieces import over_rows, over_vectors, rows_of_piece
from graphc.codegen.llvm.places import least, offset_of
from graphc.codegen.llvm.rules import native_rule
from graphc.codegen.node_calls import Scratch
from graphc.codegen.text.operands import Places, collapse, operand
from graphc.codegen.text.scalar import arithmetic_dtype
from graphc.ir.graph import Node, Value
from graphc.ir.types import DType, TensorType, bfloat16, int32, int64, uint8

OF_SIZE = {1: uint8, 2: bfloat16, 4: int32, 8: int64}
"""For each element size in bytes, the dtype in which elements are copied; bfloat16 is copied as
integers."""

STREAMED_BYTES = 64 * 2**20
"""Table size in bytes above which zeros are written with non-temporal stores, since the table does
not stay in the cache."""

COLUMNS, MANY_ROWS = 256, 64
"""Columns per piece for tables with fewer rows than `MANY_ROWS`. Such tables have many lookups per
row, so a piece is some columns of one row. For other tables a piece is some whole rows.
"""


@native_rule("gather")
def _gather(node: Node, places: Places) -> NativeCalls:
    """Return the calls that copy rows of a contiguous table to a contiguous y. A row number out of
    range reads the nearest row.
    """
    table, numbers = node.inputs
    columns, lookups = math.prod(table.shape[1:]), numbers.type.elements
    own = operand("numbers", numbers, places[numbers], numbers.shape)
    extents, (lying,) = collapse(numbers.shape, [own])
    if not extents:
        extents, lying = (1,), lying.on((0,))
    rows = rows_of_piece(columns)
    element, number = OF_SIZE[table.type.dtype.itemsize], numbers.type.dtype
    kernel = kernel_of(
        "gather",
        (element, number, len(extents)),
        lambda builder: _write_gather(builder, element, number, len(extents)),
    )
    given = (*extents, *lying.strides, table.shape[0], columns, lookups, rows)
    pieces = -(-lookups // rows)
    return NativeCalls(
        (NativeCall(kernel, (table, numbers, node.output), given, pieces, 2 * lookups * columns),)
    )


def _write_gather(builder: Builder, element: DType, number: DType, rank: int) -> None:
    b, given = builder, NumberReader(builder)
    table, numbers, y = (given.pointer() for _ in range(3))
    extents, strides = given.some(rank), given.some(rank)
    rows, columns = given.some(2)
    last = b.sub(rows, index(1))

    def row(lookup: IrValue, indices: list[IrValue]) -> None:
        found = load_integer(b, numbers, offset_of(b, index(0), indices, strides), number)
        found = b.select(b.icmp_signed("<", found, index(0)), index(0), least(b, found, last))
        source = at(b, table, b.mul(found, columns), element)
        target = at(b, y, b.mul(lookup, columns), element)

        def copy(places: list[IrValue], mask: IrValue | None) -> None:
            for place in places:
                found = load(b, at(b, source, place, element), element, mask)
                store(b, found, at(b, target, place, element), element, mask)

        over_vectors(b, index(0), columns, copy)

    over_rows(b, given, extents, row)


def _fill(builder: Builder, target: IrValue, count: IrValue, value: IrValue, dtype: DType) -> None:
    """Write code that sets `count` contiguous elements to one value."""

    def fill(places: list[IrValue], mask: IrValue | None) -> None:
        for place in places:
            store(builder, value, at(builder, target, place, dtype), dtype, mask)

    over_vectors(builder, index(0), count, fill)


@native_rule("gather_gradient")
def _gather_gradient(node: Node, places: Places) -> NativeCalls:
    """Return the calls of gather's gradient, which add each row of dy to the table row of the same
    lookup. All tensors are contiguous. A running sum is in the output's memory, or is copied there
    first.
    """
    dy, numbers, *sums = node.inputs
    dtable = node.output
    rows, columns, lookups = dtable.shape[0], math.prod(dtable.shape[1:]), numbers.type.elements
    number = numbers.type.dtype
    heads, following = Scratch(0), Scratch(1)
    chain = NativeCall(
        kernel_of("chain", number, lambda builder: _write_chains(builder, number)),
        (numbers, heads, following),
        (rows, lookups),
        1,
        rows + lookups,
    )
    structure = _Sums(dy.type.dtype, bool(sums), dtable.type.bytes > STREAMED_BYTES)
    wide = min(columns, COLUMNS) if rows < MANY_ROWS else columns
    parts = -(-columns // wide)
    height = 1 if rows < MANY_ROWS else rows_of_piece(wide)
    add = NativeCall(
        kernel_of("gather_gradient", structure, lambda builder: _write_sums(builder, structure)),
        (dy, heads, following, dtable),
        (parts, rows, columns, wide, parts * rows, height),
        -(-parts * rows // height),
        rows * columns + 2 * lookups * columns,
    )
    scratch = (TensorType((rows,), int64), TensorType((lookups,), int64))
    moved = [value for value in sums if places[value] != places[dtable]]
    return NativeCalls((*(_copy(v, dtable, places) for v in moved), chain, add), scratch)


def _copy(value: Value, target: Value, places: Places) -> NativeCall:
    call = each_call(copied(value, target, places))
    assert call is not None, "a copy has no function that is left to NumPy"
    return call


def _write_chains(builder: Builder, number: DType) -> None:
    b, given = builder, NumberReader(builder)
    numbers, heads, following = (given.pointer() for _ in range(3))
    rows, lookups = given.some(2)

    _fill(b, heads, rows, constant(vector(INDEX), -1), int64)
    last = b.sub(lookups, index(1))

    def enter(step: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
        """Prepend a lookup to the list of its row. Lookups are visited in descending order, so
        lists are ascending."""
        lookup = b.sub(last, step)
        row = load_integer(b, numbers, lookup, number)
        with b.if_then(b.icmp_unsigned("<", row, rows)):
            head = at(b, heads, row, int64)
            b.store(b.load(head, align=8, typ=INDEX), at(b, following, lookup, int64), align=8)
            b.store(lookup, head, align=8)
        return ()

    loop(b, index(0), lookups, 1, (), enter)


@dataclass(frozen=True, slots=True)
class _Sums:
    """The properties on which the text of the kernel of sums depends."""

    dtype: DType
    begins: bool
    """True if the table starts with a running sum."""
    streams: bool
    """True if zeros are written with non-temporal stores."""


def _write_sums(builder: Builder, structure: _Sums) -> None:
    b, given, dtype = builder, NumberReader(builder), structure.dtype
    dy, heads, following, dtable = (given.pointer() for _ in range(4))
    parts, rows, columns, wide = given.some(4)
    sums = _Rows(b, structure, dy, following, columns)

    def row(_: IrValue, indices: list[IrValue]) -> None:
        part, number = indices
        first = b.mul(part, wide)
        start = b.add(b.mul(number, columns), first)
        count = least(b, b.sub(columns, first), wide)
        target = at(b, dtable, start, dtype)
        head = b.load(at(b, heads, number, int64), align=8, typ=INDEX)
        hit = b.icmp_signed(">=", head, index(0))
        with b.if_then(hit):
            sums.add(head, first, count, target)
        if not structure.begins:
            with b.if_then(b.not_(hit)):
                sums.clear(count, target)

    over_rows(b, given, [parts, rows], row)
    if structure.streams and not structure.begins:
        b.fence("seq_cst")  # completes non-temporal stores before the call ends


class _Rows:
    """Writer of the code that sums the columns of one row."""

    def __init__(
        self,
        builder: Builder,
        structure: _Sums,
        dy: IrValue,
        following: IrValue,
        columns: IrValue,
    ) -> None:
        self.builder, self.structure, self.dtype = builder, structure, structure.dtype
        self.dy, self.following, self.columns = dy, following, columns

    def add(self, head: IrValue, first: IrValue, count: IrValue, target: IrValue) -> None:
        """Write code that stores the sums along a list of lookups, starting from a running sum or
        from zero."""
        b, dtype = self.builder, self.dtype
        kind = arithmetic_dtype(dtype)

        def block(places: list[IrValue], mask: IrValue | None) -> None:
            totals = [constant(held(dtype), 0) for _ in places]
            if self.structure.begins:
                totals = [
                    widen(b, load(b, at(b, target, p, dtype), dtype, mask), dtype) for p in places
                ]
            found = self.along(head, [b.add(first, p) for p in places], totals, mask)
            for p, total in zip(places, found, strict=True):
                store(b, narrow(b, total, kind, dtype), at(b, target, p, dtype), dtype, mask)

        over_vectors(b, index(0), count, block)

    def along(
        self,
        head: IrValue,
        places: Sequence[IrValue],
        totals: Sequence[IrValue],
        mask: IrValue | None,
    ) -> list[IrValue]:
        """Return the totals after adding the rows of dy in a list, one after another."""
        b, dtype = self.builder, self.dtype
        plus = b.fadd if arithmetic_dtype(dtype).kind == "float" else b.add
        before = b.block
        test, inside, after = (b.append_basic_block(n) for n in ("chain", "link", "end"))
        b.branch(test)
        b.position_at_end(test)
        lookup, *so_far = [b.phi(value.type) for value in (head, *totals)]
        for phi, value in zip((lookup, *so_far), (head, *totals), strict=True):
            phi.add_incoming(value, before)
        b.cbranch(b.icmp_signed(">=", lookup, index(0)), inside, after)
        b.position_at_end(inside)
        row = b.mul(lookup, self.columns)
        added = [
            plus(total, widen(b, load(b, at(b, self.dy, b.add(row, p), dtype), dtype, mask), dtype))
            for total, p in zip(so_far, places, strict=True)
        ]
        following = b.load(at(b, self.following, lookup, int64), align=8, typ=INDEX)
        for phi, value in zip((lookup, *so_far), (following, *added), strict=True):
            phi.add_incoming(value, b.block)
        b.branch(test)
        b.position_at_end(after)
        return so_far

    def clear(self, count: IrValue, target: IrValue) -> None:
        """Write code that stores zeros, with non-temporal stores if requested and whole vectors are
        aligned."""
        b, dtype = self.builder, self.dtype
        size = LANES * dtype.itemsize
        nothing = ir.Constant(vector(MEMORY[dtype]), None)
        if self.structure.streams:
            both = b.or_(b.ptrtoint(target, INDEX), b.mul(count, index(dtype.itemsize)))
            aligned = b.icmp_signed("==", b.and_(both, index(size - 1)), index(0))
            with b.if_then(aligned):

                def stream(place: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
                    written = b.store(nothing, at(b, target, place, dtype), align=size)
                    mark = b.module.add_metadata([ir.Constant(WORD, 1)])
                    written.set_metadata("nontemporal", mark)
                    return ()

                loop(b, index(0), count, LANES, (), stream)
            count = b.select(aligned, index(0), count)
        _fill(b, target, count, nothing, dtype)
