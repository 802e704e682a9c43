"""The kernel of fused attention as LLVM IR: online softmax over blocks of columns.

A piece computes some heads, one after another, in its own slice of the workspace. For each block of
columns it packs kᵀ. For each block of rows that attends to it, it computes a tile of scores, raises
the rows' maxima, scales earlier sums by exp(old - new maximum), and adds the tile's (Milakov and
Gimelshein, 2018). Shapes decide all blocks, so the bits do not depend on threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from llvmlite import ir

from graphc.codegen.llvm import functions
from graphc.codegen.llvm.attention.heads import Heads, Structure
from graphc.codegen.llvm.attention.product import Product, Rows, pack
from graphc.codegen.llvm.attention.sight import Place
from graphc.codegen.llvm.lanes import (
    HELD,
    MEMORY,
    WORD,
    Builder,
    IrValue,
    at,
    constant,
    converted,
    held,
    index,
    load,
    loop,
    splat,
    store,
)
from graphc.codegen.llvm.pieces import over_vectors
from graphc.codegen.llvm.places import least
from graphc.codegen.llvm.reduction import Combined
from graphc.ir.types import float64

MATRICES = ("q", "k", "v", "y")
PARTS = ("packed_keys", "values", "weights", "sums", "stays")


@dataclass(slots=True)
class _Head:
    """The matrices of a query head."""

    q: Rows
    k: Rows
    v: Rows
    y: Rows
    stats: IrValue


def write_forward(builder: Builder, structure: Structure) -> None:
    """Write the kernel of attention."""
    b, dtype = builder, structure.dtype
    heads = Heads(b, structure, MATRICES, ("stats",))
    parts = heads.scratch(PARTS)

    def unit(number: IrValue, scratch: dict[str, IrValue]) -> None:
        batch, head = b.udiv(number, heads.heads), b.urem(number, heads.heads)
        own = b.udiv(head, heads.shared)
        stats = at(b, heads.pointers["stats"], b.mul(number, heads.rows), dtype)
        matrices = _Head(
            heads.matrix("q", batch, head),
            heads.matrix("k", batch, own),
            heads.matrix("v", batch, own),
            heads.matrix("y", batch, head),
            stats,
        )
        _Writer(b, structure, heads, matrices, scratch).head(batch, head, number)

    heads.over_units(parts, unit)


class _Writer:
    """Writer of the code for one head."""

    def __init__(
        self, builder: Builder, structure: Structure, heads: Heads, own: _Head,
        scratch: dict[str, IrValue],
    ) -> None:  # fmt: skip
        self.builder, self.structure, self.heads, self.own = builder, structure, heads, own
        self.dtype = structure.dtype
        self.packed, self.values = scratch["packed_keys"], scratch["values"]
        self.sums = scratch["sums"]
        self.tile = Rows(scratch["weights"], heads.block)
        self.product = Product(builder, self.dtype, structure.is_ragged, structure.height)
        self.sight = heads.sight(scratch.get("stays"))

    def head(self, batch: IrValue, head: IrValue, number: IrValue) -> None:
        """Write the loops over blocks of columns and of rows, and the division by the sums."""
        b, heads, dtype, own = self.builder, self.heads, self.dtype, self.own

        def columns(column: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            count = least(b, b.sub(heads.columns, column), heads.block)
            k, sizes = own.k.after(b, column, dtype), (count, heads.width)
            pack(b, dtype, k, sizes, self.packed, heads.panel, self.structure.is_ragged)
            v = heads.copied(own.v.after(b, column, dtype), count, heads.value_width, self.values)
            place = Place(batch, head, number, column)
            first = self.sight.first_row(place, heads.step)

            def rows(row: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
                self.block(place, row, count, v)
                return ()

            loop(b, first, heads.rows, heads.step, (), rows)
            return ()

        heads.over_blocks(columns)
        self.finish()

    def block(self, place: Place, row: IrValue, count: IrValue, v: Rows) -> None:
        """Write the code of a tile."""
        b, heads, dtype, own = self.builder, self.heads, self.dtype, self.own
        end = least(b, b.add(row, index(heads.step)), heads.rows)
        rows = b.sub(end, row)
        seen = self.sight.seen(b.sub(end, index(1)), place, count)
        padded = heads.tile_of_products(
            self.product, (rows, seen), own.q.after(b, row, dtype), self.packed, heads.width,
            self.tile,
        )  # fmt: skip

        def line(number: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            self.line(place, number, self.tile.row(b, b.sub(number, row), dtype), count, padded)
            return ()

        loop(b, row, end, 1, (), line)
        sizes = (rows, seen, heads.value_width)
        y = own.y.after(b, row, dtype)
        self.product.over_panels(sizes, self.tile, v, y)

    def line(
        self, place: Place, row: IrValue, scores: IrValue, count: IrValue, padded: IrValue
    ) -> None:
        """Write the code that replaces a row of products by weights, and scales its result."""
        b, dtype, own, sight = self.builder, self.dtype, self.own, self.sight
        score = sight.scores(row, place, sight.seen(row, place, count))

        def highest(column: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            target = at(b, scores, column, dtype)
            value = score(load(b, target, dtype), column)
            store(b, value, target, dtype)
            above = b.fcmp_ordered(">", value, carried[0])
            return [b.select(above, value, carried[0])]

        lowest = constant(held(dtype), -np.inf)
        (peak,) = sight.over_vectors(padded, [lowest], highest)
        peak = Combined("peak", "Max", dtype).result(b, peak)
        stat, total = at(b, own.stats, row, dtype), at(b, self.sums, row, dtype)
        begins = b.icmp_signed("==", place.column, index(0))
        before, earlier = (
            splat(b, b.select(begins, ir.Constant(HELD[dtype], start), self._number(address)))
            for address, start in ((stat, -np.inf), (total, 0.0))
        )
        peak = b.select(b.fcmp_ordered(">", before, peak), before, peak)
        if sight.mask is not None:
            # A row may attend to no column; then all of its weights are exp(-inf) = 0.
            least_number = constant(held(dtype), float(np.finfo(dtype.numpy).min))
            peak = b.select(b.fcmp_ordered("<", peak, least_number), least_number, peak)
        stays = None
        if sight.dropping is not None:
            stays = sight.dropping.draw(sight.rows, row, place, padded)

        def weigh(column: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            target = at(b, scores, column, dtype)
            weight = functions.decaying_exponential(b, b.fsub(load(b, target, dtype), peak))
            sums = b.fadd(carried[0], weight)
            if sight.dropping is not None and stays is not None:
                weight = sight.dropping.drop(stays, column, weight)
            store(b, weight, target, dtype)
            return [sums]

        (sums,) = sight.over_vectors(padded, [constant(held(dtype), 0)], weigh)
        sums = Combined("sums", "Sum", dtype).result(b, converted(b, sums, dtype, float64))
        shrunk = functions.decaying_exponential(b, b.fsub(before, peak))
        sums = b.fadd(b.fmul(earlier, shrunk), sums)
        for value, address in ((peak, stat), (sums, total)):
            one = b.extract_element(value, ir.Constant(WORD, 0))
            b.store(one, address, align=dtype.itemsize)
        self.heads.scale_row(own.y.row(b, row, dtype), self.heads.value_width, shrunk, begins)

    def _number(self, address: IrValue) -> IrValue:
        """Load one number."""
        return self.builder.load(address, align=self.dtype.itemsize, typ=MEMORY[self.dtype])

    def finish(self) -> None:
        """Write the code that divides results by the sums, and computes the log-sum-exps."""
        b, heads, dtype, own = self.builder, self.heads, self.dtype, self.own
        zero = constant(held(dtype), 0)

        def row(number: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            total = splat(b, self._number(at(b, self.sums, number, dtype)))
            inverse = b.fdiv(constant(held(dtype), 1), total)
            inverse = b.select(b.fcmp_ordered("==", total, zero), zero, inverse)
            target = own.y.row(b, number, dtype)
            heads.scale_row(target, heads.value_width, inverse, None)
            return ()

        loop(b, index(0), heads.rows, 1, (), row)

        def logarithms(places: list[IrValue], mask: IrValue | None) -> None:
            for place in places:
                target = at(b, own.stats, place, dtype)
                total = load(b, at(b, self.sums, place, dtype), dtype, mask)
                wide = functions.logarithm(b, converted(b, total, dtype, float64))
                peak = load(b, target, dtype, mask)
                found = b.fadd(peak, converted(b, wide, float64, dtype))
                found = b.select(b.fcmp_ordered("==", total, zero), zero, found)
                store(b, found, target, dtype, mask)

        over_vectors(b, index(0), heads.rows, logarithms, 1)
