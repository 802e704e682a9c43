"""The scores of one row of a tile: scale, mask, causal masking and dropout, as LLVM IR."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from llvmlite import ir

from graphc.codegen.llvm.attention.product import panel_width
from graphc.codegen.llvm.kernel import INDEX
from graphc.codegen.llvm.lanes import (
    BIT,
    BYTE,
    DOUBLE,
    HELD,
    LANES,
    MEMORY,
    WORD,
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
    splat,
    store,
    vector,
    widen,
)
from graphc.codegen.llvm.places import least
from graphc.codegen.llvm.random import Philox, in_turns
from graphc.ir.types import DType, bool_, uint8

BLOCK = 4 * LANES
"""The number of elements whose dropout is drawn together."""

Mask = tuple[DType, bool | None]
"""The dtype of a mask. Then True if columns are contiguous, False if they have another stride, and
None if all columns of a row have one element."""


@dataclass(frozen=True, slots=True)
class Place:
    """A tile's position: the batch entry, the query head, its number among all heads, and the first
    column."""

    batch: IrValue
    head: IrValue
    number: IrValue
    column: IrValue


@dataclass(slots=True)
class Sight:
    """The columns that each row attends to, the factor of the scores, and dropout.

    Row i attends to columns up to i + `shift`. `mask` is the address and the four strides of a
    mask, or None.
    """

    builder: Builder
    dtype: DType
    rows: IrValue
    columns: IrValue
    shift: IrValue
    scale: IrValue
    kind: Mask | None
    mask: tuple[IrValue, list[IrValue]] | None
    dropping: Dropping | None

    def seen(self, row: IrValue, place: Place, count: IrValue) -> IrValue:
        """Return how many of the `count` columns of a tile a row attends to; 0 or less if none."""
        b = self.builder
        end = b.add(b.add(row, self.shift), index(1))
        return least(b, b.sub(end, place.column), count)

    def first_row(self, place: Place, step: int) -> IrValue:
        """Return the first row that attends to a tile's first column, rounded down to a multiple of
        `step`."""
        b = self.builder
        first = b.sub(place.column, self.shift)
        first = b.select(b.icmp_signed(">", first, index(0)), first, index(0))
        return b.mul(b.udiv(first, index(step)), index(step))

    def over_vectors(
        self,
        end: IrValue,
        carried: Sequence[IrValue],
        body: Callable[[IrValue, list[IrValue]], Sequence[IrValue]],
    ) -> list[IrValue]:
        """Write a loop over whole panels of columns below `end`; `body` gets the first column of a
        vector and the values carried from vector to vector."""
        b, width = self.builder, panel_width(self.dtype)

        def panel(column: IrValue, values: list[IrValue]) -> Sequence[IrValue]:
            found: Sequence[IrValue] = values
            for lane in range(0, width, LANES):
                found = body(b.add(column, index(lane)), list(found))
            return found

        return loop(b, index(0), end, width, carried, panel)

    def scores(
        self, row: IrValue, place: Place, limit: IrValue
    ) -> Callable[[IrValue, IrValue], IrValue]:
        """Return a function from a vector of products of a row, and its first column, to scores.

        Columns from `limit` on are hidden: their scores are -inf.
        """
        b = self.builder
        scale, bound = splat(b, self.scale), splat(b, b.trunc(limit, WORD))
        lanes = ir.Constant(vector(WORD), list(range(LANES)))
        hidden = constant(held(self.dtype), -np.inf)
        shown = self._mask(row, place)

        def score(products: IrValue, column: IrValue) -> IrValue:
            numbers = b.add(splat(b, b.trunc(column, WORD)), lanes)
            visible = b.icmp_signed("<", numbers, bound)
            value = b.fmul(products, scale)
            if shown is not None:
                own = shown(column, b.sub(limit, column))
                if own.type.element == BIT:
                    visible = b.and_(visible, own)
                else:
                    value = b.fadd(value, own)
            return b.select(visible, value, hidden)

        return score

    def _mask(self, row: IrValue, place: Place) -> Callable[[IrValue, IrValue], IrValue] | None:
        """Return a function from a column and the number of columns left to a vector of the
        mask."""
        if self.mask is None or self.kind is None:
            return None
        b, (base, strides), (dtype, is_unit) = self.builder, self.mask, self.kind
        offset = b.mul(place.column, strides[3])
        for number, stride in zip((place.batch, place.head, row), strides[:3], strict=True):
            offset = b.add(offset, b.mul(number, stride))
        start = at(b, base, offset, dtype)
        if is_unit is None:
            one = b.load(start, align=dtype.itemsize, typ=MEMORY[dtype])
            same = widen(b, splat(b, one), dtype)
            return lambda column, left: same
        step = None if is_unit else strides[3]

        def read(column: IrValue, left: IrValue) -> IrValue:
            first = at(b, start, b.mul(column, strides[3]), dtype)
            return widen(b, gather(b, first, step, dtype, first_lanes(b, left)), dtype)

        return read


@dataclass(slots=True)
class Dropping:
    """Dropout of weights, which are numbered in row-major order of (batch, heads, rows, columns).

    `stays` is the address of scratch for a row of a tile, one byte per element.
    """

    builder: Builder
    philox: Philox
    least: IrValue
    factor: IrValue
    columns: IrValue
    stays: IrValue

    def draw(self, rows: IrValue, row: IrValue, place: Place, count: IrValue) -> IrValue:
        """Write code that draws the first `count` elements of a row; return their address."""
        b, kind = self.builder, vector(INDEX)
        number = b.add(b.mul(b.add(b.mul(place.number, rows), row), self.columns), place.column)
        skipped, first = b.and_(number, index(3)), b.lshr(number, index(2))
        bound, eight = splat(b, self.least), constant(kind, 8)

        def block(start: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            words = self.philox.words(b.add(first, b.lshr(start, index(2))))
            kept = [
                b.zext(b.icmp_unsigned(">=", b.lshr(word, eight), bound), vector(BYTE))
                for word in words
            ]
            for lane, values in enumerate(in_turns(b, kept)):
                target = at(b, self.stays, b.add(start, index(LANES * lane)), uint8)
                store(b, values, target, uint8)
            return ()

        loop(b, index(0), b.add(skipped, count), BLOCK, (), block)
        return at(b, self.stays, skipped, uint8)

    def drop(self, stays: IrValue, column: IrValue, values: IrValue) -> IrValue:
        """Return a vector of weights, or of their gradients, after dropout."""
        b = self.builder
        kept = widen(b, load(b, at(b, stays, column, uint8), bool_), bool_)
        scaled = b.fmul(values, splat(b, self.factor))
        return b.select(kept, scaled, constant(values.type, 0))


def number_of(builder: Builder, bits: IrValue, dtype: DType) -> IrValue:
    """Return a number of a dtype from the bits of a float64."""
    found = builder.bitcast(bits, DOUBLE)
    return found if HELD[dtype] == DOUBLE else builder.fptrunc(found, HELD[dtype])
