"""Matrix products of one thread, as LLVM IR, and the transposed panels that they read.

A block of rows and a panel of columns is accumulated in registers. Each element is one
chain of fused multiply-adds along the inner axis, so its bits do not depend on the blocking. The
chain begins at 0; what the product is added to comes last, so rounding errors grow with the inner
extent of one product, not of all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import llvmlite.binding as llvm

from graphc.codegen.llvm.lanes import (
    LANES,
    MEMORY,
    Builder,
    IrValue,
    at,
    constant,
    first_lanes,
    held,
    index,
    intrinsic,
    load,
    loop,
    splat,
    store,
)
from graphc.codegen.llvm.places import least
from graphc.codegen.llvm.tile import transposed
from graphc.ir.types import DType, float64

WIDEST_PANEL = 2 * LANES
"""The number of columns of the widest panel, for which workspaces are sized."""


@functools.cache
def has_wide_registers() -> bool:
    """Return true if this processor has 32 registers of 64 bytes (AVX-512)."""
    return bool(llvm.get_host_cpu_features().get("avx512f"))


def panel_width(dtype: DType) -> int:
    """Return the number of columns of a panel. It changes no bit, so it may depend on the
    processor."""
    return WIDEST_PANEL if has_wide_registers() and dtype != float64 else LANES


def block_height(dtype: DType) -> int:
    """Return the number of rows of a block, such that its sums and operands fit the registers."""
    if has_wide_registers():
        return 8
    return 3 if dtype == float64 else 6


@dataclass(frozen=True, slots=True)
class Rows:
    """A matrix in memory whose rows are `stride` elements apart, each contiguous."""

    base: IrValue
    stride: IrValue

    def row(self, builder: Builder, number: IrValue, dtype: DType) -> IrValue:
        """Return the address of a row."""
        return at(builder, self.base, builder.mul(number, self.stride), dtype)

    def after(self, builder: Builder, number: IrValue, dtype: DType) -> Rows:
        """Return the matrix from row `number` on."""
        return Rows(self.row(builder, number, dtype), self.stride)

    def right(self, builder: Builder, column: IrValue, dtype: DType) -> Rows:
        """Return the matrix from column `column` on."""
        return Rows(at(builder, self.base, column, dtype), self.stride)


@dataclass(frozen=True, slots=True)
class Product:
    """Writer of the products (rows x inner) · (inner x columns) of one dtype.

    `height` is the number of rows of a block. `is_ragged` is true if there may be a partial panel.
    """

    builder: Builder
    dtype: DType
    is_ragged: bool
    height: int

    def over_panels(
        self,
        sizes: tuple[IrValue, IrValue, IrValue],
        a: Rows,
        b: Rows,
        c: Rows,
        turned: bool = False,
    ) -> None:
        """Write c += a · b, or aᵀ · b if `turned`; `sizes` are rows, inner and columns of the
        product."""
        builder, dtype, width = self.builder, self.dtype, panel_width(self.dtype)
        rows, inner, columns = sizes
        whole = builder.sub(columns, builder.urem(columns, index(width)))

        def panel(column: IrValue, masks: Sequence[IrValue | None]) -> None:
            right = (m.right(builder, column, dtype) for m in (b, c))
            self.panel((rows, inner), a, *right, turned=turned, adds=True, masks=masks)

        def full(column: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            panel(column, [None] * (width // LANES))
            return ()

        def rest(column: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            left = builder.sub(columns, column)
            panel(
                column,
                [
                    first_lanes(builder, builder.sub(left, index(lane)))
                    for lane in range(0, width, LANES)
                ],
            )
            return ()

        loop(builder, index(0), whole, width, (), full)
        if self.is_ragged:
            loop(builder, whole, columns, width, (), rest)

    def panel(
        self,
        sizes: tuple[IrValue, IrValue],
        a: Rows,
        b: Rows,
        c: Rows,
        *,
        turned: bool,
        adds: bool,
        masks: Sequence[IrValue | None],
    ) -> None:
        """Write the product of one panel; `sizes` are its rows and the inner extent.

        It is added to c if `adds` is true. A row beyond the last one repeats it.
        """
        builder, dtype = self.builder, self.dtype
        rows, inner = sizes
        last = builder.sub(rows, index(1))
        lanes = [index(LANES * number) for number in range(len(masks))]
        vectors = list(zip(lanes, masks, strict=True))

        def block(first: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            numbers = [
                least(builder, builder.add(first, index(r)), last) for r in range(self.height)
            ]
            targets = [c.row(builder, number, dtype) for number in numbers]
            starts = [
                at(builder, a.base, number if turned else builder.mul(number, a.stride), dtype)
                for number in numbers
            ]
            sums = [constant(held(dtype), 0) for _ in targets for _ in vectors]
            step = a.stride if turned else index(1)

            def term(number: IrValue, totals: list[IrValue]) -> Sequence[IrValue]:
                row, along = b.row(builder, number, dtype), builder.mul(number, step)
                right = [
                    load(builder, at(builder, row, lane, dtype), dtype, mask)
                    for lane, mask in vectors
                ]
                found = []
                for number_of_row, start in enumerate(starts):
                    place = at(builder, start, along, dtype)
                    one = builder.load(place, align=dtype.itemsize, typ=MEMORY[dtype])
                    left = splat(builder, one)
                    for number_of_vector, vector in enumerate(right):
                        total = totals[number_of_row * len(right) + number_of_vector]
                        found.append(intrinsic(builder, "fma", left, vector, total))
                return found

            sums = loop(builder, index(0), inner, 1, sums, term)
            if adds:  # all loads precede the stores, since the last row may be there repeatedly
                before = [
                    load(builder, at(builder, target, lane, dtype), dtype, mask)
                    for target in targets
                    for lane, mask in vectors
                ]
                sums = [builder.fadd(*pair) for pair in zip(before, sums, strict=True)]
            for number, target in enumerate(targets):
                for (lane, mask), total in zip(
                    vectors, sums[number * len(vectors) :], strict=False
                ):
                    store(builder, total, at(builder, target, lane, dtype), dtype, mask)
            return ()

        loop(builder, index(0), rows, self.height, (), block)


def pack(
    builder: Builder,
    dtype: DType,
    source: Rows,
    sizes: tuple[IrValue, IrValue],
    target: IrValue,
    panel: IrValue,
    is_ragged: bool,
) -> None:
    """Write code that stores the transpose of `source` in panels of `panel` elements.

    `sizes` are the rows and columns of `source`. A panel has a row per column of `source`, and the
    elements of adjacent rows side by side. Rows beyond the last one repeat it. `is_ragged` is true
    if the columns may have a partial vector.
    """
    rows, columns = sizes
    width, last = panel_width(dtype), builder.sub(rows, index(1))

    def vector(row: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
        numbers = [least(builder, builder.add(row, index(i)), last) for i in range(LANES)]
        starts = [source.row(builder, number, dtype) for number in numbers]
        own = builder.mul(builder.udiv(row, index(width)), panel)
        place = at(builder, target, builder.add(own, builder.urem(row, index(width))), dtype)

        def square(column: IrValue, mask: IrValue | None) -> None:
            read = [load(builder, at(builder, s, column, dtype), dtype, mask) for s in starts]
            first = at(builder, place, builder.mul(column, index(width)), dtype)
            for number, values in enumerate(transposed(builder, read)):
                store(builder, values, at(builder, first, index(number * width), dtype), dtype)

        def full(column: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            square(column, None)
            return ()

        def rest(column: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            square(column, first_lanes(builder, builder.sub(columns, column)))
            return ()

        whole = builder.and_(columns, index(-LANES))
        loop(builder, index(0), whole, LANES, (), full)
        if is_ragged:
            loop(builder, whole, columns, LANES, (), rest)
        return ()

    # The last panel may have more vectors than `source` has rows.
    end = builder.mul(builder.udiv(builder.add(rows, index(width - 1)), index(width)), index(width))
    loop(builder, index(0), end, LANES, (), vector)
