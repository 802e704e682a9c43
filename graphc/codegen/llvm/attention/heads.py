"""Arguments of the kernels of attention, and the loops over heads and blocks of columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graphc.codegen.llvm.attention.product import Product, Rows, panel_width
from graphc.codegen.llvm.attention.sight import Dropping, Mask, Sight, number_of
from graphc.codegen.llvm.elements import NumberReader
from graphc.codegen.llvm.lanes import (
    LANES,
    Builder,
    IrValue,
    at,
    constant,
    held,
    index,
    load,
    loop,
    store,
)
from graphc.codegen.llvm.pieces import over_vectors
from graphc.codegen.llvm.random import Philox
from graphc.ir.types import DType

STEP = 32
"""The number of query rows of a tile."""


@dataclass(frozen=True, slots=True)
class Structure:
    """The properties on which the text of a kernel depends.

    `is_ragged` is true if a width may be no multiple of a panel. `height` is the number of rows
    that a product computes together.
    """

    dtype: DType
    mask: Mask | None
    drops: bool
    is_ragged: bool
    height: int


class Heads:
    """The arguments of a kernel, in the order in which `graphc.codegen.llvm.families.attention`
    lists them."""

    step = STEP

    def __init__(
        self,
        builder: Builder,
        structure: Structure,
        matrices: Sequence[str],
        vectors: Sequence[str],
    ) -> None:
        self.builder, self.structure, self.dtype = builder, structure, structure.dtype
        self.given = given = NumberReader(builder)
        names = [*matrices, *vectors]
        self.pointers = {name: given.pointer() for name in names}
        seed, step = (given.pointer() if structure.drops else None for _ in range(2))
        self._mask_address = given.pointer() if structure.mask else None
        self.slots = given.pointer()
        self.units, self.pieces, self.slot = given.some(3)
        self.heads, self.shared, self.rows, self.columns = given.some(4)
        self.width, self.value_width, self.block, self.shift = given.some(4)
        self.scale = number_of(builder, given.number(), self.dtype)
        self._strides = {name: given.some(3) for name in names}
        self._mask_strides = given.some(4) if structure.mask else None
        self._philox: Philox | None = None
        if structure.drops:
            stream, self._least = given.some(2)
            self._factor = number_of(builder, given.number(), self.dtype)
            self._philox = Philox(builder, seed, step, stream)
        whole = builder.and_(builder.add(self.width, index(LANES - 1)), index(-LANES))
        self.panel = builder.mul(whole, index(panel_width(self.dtype)))
        values = builder.and_(builder.add(self.value_width, index(LANES - 1)), index(-LANES))
        self.value_panel = builder.mul(values, index(panel_width(self.dtype)))

    def scratch(self, names: Sequence[str]) -> dict[str, IrValue]:
        """Return the offset of each part of a slot by name; offsets are numbers of the call."""
        return {name: self.given.number() for name in names}

    def matrix(self, name: str, batch: IrValue, head: IrValue) -> Rows:
        """Return the matrix of one head of an operand."""
        b, (outer, middle, inner) = self.builder, self._strides[name]
        offset = b.add(b.mul(batch, outer), b.mul(head, middle))
        return Rows(at(b, self.pointers[name], offset, self.dtype), inner)

    def over_units(
        self, parts: dict[str, IrValue], body: Callable[[IrValue, dict[str, IrValue]], None]
    ) -> None:
        """Write the loops over pieces and over the units of each, with addresses of its scratch."""
        b = self.builder

        def piece(number: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            own = at(b, self.slots, b.mul(number, self.slot), self.dtype)
            scratch = {name: at(b, own, offset, self.dtype) for name, offset in parts.items()}
            first, last = (
                b.udiv(b.mul(each, self.units), self.pieces)
                for each in (number, b.add(number, index(1)))
            )

            def unit(number: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
                body(number, scratch)
                return ()

            loop(b, first, last, 1, (), unit)
            return ()

        loop(b, self.given.first, self.given.last, 1, (), piece)

    def over_blocks(self, body: Callable[[IrValue, list[IrValue]], Sequence[IrValue]]) -> None:
        """Write the loop over blocks of columns; `body` gets the first column."""
        b = self.builder
        blocks = b.udiv(b.add(self.columns, b.sub(self.block, index(1))), self.block)
        loop(b, index(0), blocks, 1, (), lambda n, c: body(b.mul(n, self.block), c))

    def sight(self, stays: IrValue | None) -> Sight:
        """Return the columns that rows attend to; `stays` is scratch for dropout."""
        mask = dropping = None
        if self._mask_address is not None and self._mask_strides is not None:
            mask = self._mask_address, self._mask_strides
        if self._philox is not None and stays is not None:
            dropping = Dropping(
                self.builder, self._philox, self._least, self._factor, self.columns, stays
            )
        return Sight(
            self.builder, self.dtype, self.rows, self.columns, self.shift, self.scale,
            self.structure.mask, mask, dropping,
        )  # fmt: skip

    def tile_of_products(
        self, product: Product, sizes: tuple[IrValue, IrValue], a: Rows, packed: IrValue,
        inner: IrValue, tile: Rows,
    ) -> IrValue:  # fmt: skip
        """Write tile = a · packed for whole panels, and return their columns; `sizes` are the rows
        and columns of the tile."""
        b, dtype, width = self.builder, self.dtype, panel_width(self.dtype)
        rows, columns = sizes
        whole = b.and_(b.add(inner, index(LANES - 1)), index(-LANES))
        end = b.and_(b.add(columns, index(LANES - 1)), index(-LANES))

        def panel(vectors: int) -> Callable[[IrValue, list[IrValue]], Sequence[IrValue]]:
            def write(column: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
                right = Rows(at(b, packed, b.mul(column, whole), dtype), index(width))
                target, masks = tile.right(b, column, dtype), [None] * vectors
                product.panel(
                    (rows, inner), a, right, target, turned=False, adds=False, masks=masks
                )
                return ()

            return write

        full = b.and_(end, index(-width))
        loop(b, index(0), full, width, (), panel(width // LANES))
        if width > LANES:
            loop(b, full, end, LANES, (), panel(1))
        return b.and_(b.add(end, index(width - 1)), index(-width))

    def copied(self, source: Rows, rows: IrValue, width: IrValue, target: IrValue) -> Rows:
        """Write code that copies rows to scratch without gaps, for products that read them often.

        Rows that are far apart in memory would compete for a few sets of the first-level cache.
        """
        b, dtype = self.builder, self.dtype
        copy = Rows(target, b.and_(b.add(width, index(LANES - 1)), index(-LANES)))

        def row(number: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            start, end = (each.row(b, number, dtype) for each in (source, copy))

            def move(places: list[IrValue], mask: IrValue | None) -> None:
                for place in places:
                    found = load(b, at(b, start, place, dtype), dtype, mask)
                    store(b, found, at(b, end, place, dtype), dtype, mask)

            over_vectors(b, index(0), width, move, 1)
            return ()

        loop(b, index(0), rows, 1, (), row)
        return copy

    def scale_row(
        self, row: IrValue, width: IrValue, factor: IrValue, begins: IrValue | None
    ) -> None:
        """Write code that multiplies a row by a factor; if `begins` is true, its elements are
        replaced by 0."""
        b, dtype = self.builder, self.dtype

        def scale(places: list[IrValue], mask: IrValue | None) -> None:
            for place in places:
                target = at(b, row, place, dtype)
                found = b.fmul(load(b, target, dtype, mask), factor)
                if begins is not None:
                    found = b.select(begins, constant(held(dtype), 0), found)
                store(b, found, target, dtype, mask)

        over_vectors(b, index(0), width, scale, 1)

    def clear_rows(self, matrix: Rows, rows: IrValue, width: IrValue) -> None:
        """Write code that sets rows to 0."""
        b, dtype = self.builder, self.dtype
        zero = constant(held(dtype), 0)

        def row(number: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            start = matrix.row(b, number, dtype)

            def clear(places: list[IrValue], mask: IrValue | None) -> None:
                for place in places:
                    store(b, zero, at(b, start, place, dtype), dtype, mask)

            over_vectors(b, index(0), width, clear, 1)
            return ()

        loop(b, index(0), rows, 1, (), row)
