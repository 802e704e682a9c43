"""The kernel of attention's gradient as LLVM IR.

A piece computes some heads of keys, one after another, in its own slice of the workspace. For each
block of columns it packs kᵀ and vᵀ. For each query head that shares the keys, and each block of
rows, it recomputes a tile of weights from the log-sum-exps, and adds to dq, dk and dv. Terms are
added in the order of blocks of columns, then of heads, then of blocks of rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.codegen.llvm import functions
from graphc.codegen.llvm.attention.heads import Heads, Structure
from graphc.codegen.llvm.attention.product import Product, Rows, block_height, pack
from graphc.codegen.llvm.attention.sight import Place, Sight
from graphc.codegen.llvm.lanes import (
    MEMORY,
    Builder,
    IrValue,
    at,
    constant,
    converted,
    first_lanes,
    held,
    index,
    load,
    loop,
    splat,
    store,
)
from graphc.codegen.llvm.pieces import fold_vectors
from graphc.codegen.llvm.places import least
from graphc.codegen.llvm.reduction import Combined
from graphc.ir.types import float64

MATRICES = ("dy", "q", "k", "v", "y", "dq", "dk", "dv")
PARTS = (
    "packed_keys", "packed_values", "keys", "queries", "slopes_of_y", "weights", "slopes", "stays",
)  # fmt: skip


def write_backward(builder: Builder, structure: Structure) -> None:
    """Write the kernel of attention's gradient."""
    heads = Heads(builder, structure, MATRICES, ("stats",))
    parts = heads.scratch(PARTS)

    def unit(number: IrValue, scratch: dict[str, IrValue]) -> None:
        _Writer(builder, structure, heads, scratch).keys(number)

    heads.over_units(parts, unit)


class _Writer:
    """Writer of the code for one head of keys and the query heads that share it."""

    def __init__(
        self, builder: Builder, structure: Structure, heads: Heads, scratch: dict[str, IrValue]
    ) -> None:
        self.builder, self.heads, self.dtype, self.scratch = (
            builder,
            heads,
            structure.dtype,
            scratch,
        )
        self.packed, self.packed_values = scratch["packed_keys"], scratch["packed_values"]
        self.weights, self.slopes = (Rows(scratch[n], heads.block) for n in ("weights", "slopes"))
        self.is_ragged = structure.is_ragged
        self.along_rows = Product(builder, self.dtype, structure.is_ragged, structure.height)
        self.along_columns = Product(
            builder, self.dtype, structure.is_ragged, block_height(self.dtype)
        )
        self.sight: Sight = heads.sight(scratch["stays"])

    def keys(self, unit: IrValue) -> None:
        """Write the loops over blocks of columns, query heads and blocks of rows."""
        b, heads, dtype = self.builder, self.heads, self.dtype
        key_heads = b.udiv(heads.heads, heads.shared)
        batch, own = b.udiv(unit, key_heads), b.urem(unit, key_heads)
        k, v, dk, dv = (heads.matrix(name, batch, own) for name in ("k", "v", "dk", "dv"))
        first_head = b.mul(own, heads.shared)

        def columns(column: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            count = least(b, b.sub(heads.columns, column), heads.block)
            parts = [m.after(b, column, dtype) for m in (k, v, dk, dv)]
            for source, width, target, panel in (
                (parts[0], heads.width, self.packed, heads.panel),
                (parts[1], heads.value_width, self.packed_values, heads.value_panel),
            ):
                pack(b, dtype, source, (count, width), target, panel, self.is_ragged)
            parts[0] = heads.copied(parts[0], count, heads.width, self.scratch["keys"])
            heads.clear_rows(parts[2], count, heads.width)
            heads.clear_rows(parts[3], count, heads.value_width)

            def query(head: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
                number = b.add(b.mul(batch, heads.heads), head)
                place = Place(batch, head, number, column)
                matrices = {n: heads.matrix(n, batch, head) for n in ("dy", "q", "y", "dq")}
                stats = heads.matrix("stats", batch, head)

                def rows(row: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
                    self.block(place, row, count, matrices, stats, parts)
                    return ()

                first = self.sight.first_row(place, heads.step)
                loop(b, first, heads.rows, heads.step, (), rows)
                return ()

            loop(b, first_head, b.add(first_head, heads.shared), 1, (), query)
            return ()

        heads.over_blocks(columns)

    def block(
        self,
        place: Place,
        row: IrValue,
        count: IrValue,
        matrices: dict[str, Rows],
        stats: Rows,
        parts: Sequence[Rows],
    ) -> None:
        """Write the code of a tile: weights, gradients of scores, and the terms of dq, dk and
        dv."""
        b, heads, dtype = self.builder, self.heads, self.dtype
        end = least(b, b.add(row, index(heads.step)), heads.rows)
        rows = b.sub(end, row)
        seen = self.sight.seen(b.sub(end, index(1)), place, count)
        dy, q, y, dq = (matrices[n].after(b, row, dtype) for n in ("dy", "q", "y", "dq"))
        q = heads.copied(q, rows, heads.width, self.scratch["queries"])
        dy = heads.copied(dy, rows, heads.value_width, self.scratch["slopes_of_y"])
        k, _, dk, dv = parts
        product = self.along_rows
        heads.tile_of_products(product, (rows, seen), q, self.packed, heads.width, self.weights)
        padded = heads.tile_of_products(
            product, (rows, seen), dy, self.packed_values, heads.value_width, self.slopes
        )

        def line(number: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            own = b.add(row, number)
            total = self.along(*(m.row(b, number, dtype) for m in (dy, y)))
            stat = stats.row(b, own, dtype)
            with b.if_then(b.icmp_signed("==", place.column, index(0))):
                heads.clear_rows(dq.after(b, number, dtype), index(1), heads.width)
            tiles = [m.row(b, number, dtype) for m in (self.weights, self.slopes)]
            self.line(place, own, stat, total, tiles, count, padded)
            return ()

        loop(b, index(0), rows, 1, (), line)
        self.along_columns.over_panels(
            (seen, rows, heads.value_width), self.weights, dy, dv, turned=True
        )
        self.along_columns.over_panels((seen, rows, heads.width), self.slopes, q, dk, turned=True)
        product.over_panels((rows, seen, heads.width), self.slopes, k, dq)

    def along(self, dy: IrValue, y: IrValue) -> IrValue:
        """Return the sum of dy · y along a row, in every lane."""
        b, dtype = self.builder, self.dtype

        def add(
            places: list[IrValue], left: IrValue | None, carried: list[IrValue]
        ) -> Sequence[IrValue]:
            mask = None if left is None else first_lanes(b, left)
            for place in places:
                one, other = (load(b, at(b, each, place, dtype), dtype, mask) for each in (dy, y))
                carried = [b.fadd(carried[0], b.fmul(one, other))]
            return carried

        zero = constant(held(dtype), 0)
        (sums,) = fold_vectors(b, index(0), self.heads.value_width, 1, [zero], add)
        return Combined("sums", "Sum", dtype).result(b, converted(b, sums, dtype, float64))

    def line(
        self, place: Place, row: IrValue, stat: IrValue, total: IrValue, tiles: list[IrValue],
        count: IrValue, padded: IrValue,
    ) -> None:  # fmt: skip
        """Write the code that replaces a row of products by weights and gradients of scores."""
        b, dtype, sight = self.builder, self.dtype, self.sight
        weights, slopes = tiles
        score = sight.scores(row, place, sight.seen(row, place, count))
        stat = splat(b, b.load(stat, align=dtype.itemsize, typ=MEMORY[dtype]))
        scale = splat(b, sight.scale)
        stays = None
        if sight.dropping is not None:
            stays = sight.dropping.draw(sight.rows, row, place, padded)

        def weigh(column: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            targets = [at(b, each, column, dtype) for each in (weights, slopes)]
            product, slope = (load(b, target, dtype) for target in targets)
            weight = functions.decaying_exponential(b, b.fsub(score(product, column), stat))
            kept = weight
            if sight.dropping is not None and stays is not None:
                slope = sight.dropping.drop(stays, column, slope)
                kept = sight.dropping.drop(stays, column, weight)
            slope = b.fmul(b.fmul(b.fsub(slope, total), weight), scale)
            for value, target in ((kept, targets[0]), (slope, targets[1])):
                store(b, value, target, dtype)
            return ()

        sight.over_vectors(padded, (), weigh)
