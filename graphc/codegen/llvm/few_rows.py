"""Products of a matrix of few rows with a large one, which is read in place.

A library first packs blocks of the large matrix, which pays off if many rows use a block. With at
most `MOST_ROWS` rows, as in a time step of a recurrent network, packing takes a fifth of the time.
These kernels transpose the small matrix instead, and compute tiles whose sums stay in registers
(Goto and van de Geijn, 2008).

Each element is the sum of its products in the order of the inner axis, by fused multiplication and
addition. It depends neither on the number of rows nor on tiles and threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graphc.codegen.llvm.elements import NumberReader
from graphc.codegen.llvm.kernel import NativeCall, kernel_of
from graphc.codegen.llvm.lanes import (
    FLOAT,
    LANES,
    Builder,
    IrValue,
    at,
    constant,
    gather,
    index,
    intrinsic,
    load,
    loop,
    prefetch,
    splat,
    stack,
    store,
    vector,
)
from graphc.codegen.llvm.places import least
from graphc.codegen.node_calls import Buffer
from graphc.ir.types import float32

MOST_ROWS = 64
"""Maximum number of rows: four vectors."""

SUMS = 24
"""Maximum number of vectors of sums of a tile, of the 32 registers that AVX-512 has."""

DEPTH, WIDTH, PANELS = 64, 64, 2
"""Rows and columns of a block of the large matrix, which the first cache holds."""

ACROSS = WIDTH // LANES
"""Number of vectors in a row of a block."""

Ahead = Callable[[IrValue], Sequence[IrValue]]
"""A function from a position along the inner axis to the addresses that are prefetched there."""


@dataclass(frozen=True, slots=True)
class _Structure:
    """The properties on which the text of a kernel depends."""

    rows: int
    columns: int
    """The number of elements from a row of the large matrix to the next."""
    flag: bool
    """True if a bias is added, or if the product is added to y."""


def times_rows(
    rows: int, inner: int, columns: int, line: int, adds: bool, buffers: Sequence[Buffer], row: int
) -> NativeCall:
    """Return the call that computes y = a · b from row `row` of b on, or adds that to y.

    `buffers` are aᵀ (inner, rows), b with `columns` columns, and y, whose rows are `line` elements
    apart. aᵀ and b are row-major.
    """
    structure = _Structure(rows, columns, adds)
    kernel = kernel_of("times_rows", structure, lambda builder: _write_rows(builder, structure))
    numbers = inner, row * columns, line
    return NativeCall(
        kernel, tuple(buffers), numbers, -(-columns // (PANELS * WIDTH)), inner * columns
    )


def times_columns(
    rows: int, inner: int, columns: int, line: int, buffers: Sequence[Buffer]
) -> NativeCall:
    """Return the call that computes y = a · bᵀ, plus a bias if there is a fourth buffer.

    `buffers` are aᵀ (inner, rows), b (columns, inner), and y, whose rows are `line` elements apart.
    aᵀ and b are row-major.
    """
    structure = _Structure(rows, inner, len(buffers) == 4)
    kernel = kernel_of(
        "times_columns", structure, lambda builder: _write_columns(builder, structure)
    )
    numbers = columns, line
    return NativeCall(kernel, tuple(buffers), numbers, -(-columns // LANES), inner * columns, True)


def _parts(total: int, most: int) -> list[tuple[int, int]]:
    """Divide `total` rows into tiles of at most `most` rows: the first row and number of each."""
    count = -(-total // most)
    ends = [total * part // count for part in range(count + 1)]
    return [(first, end - first) for first, end in itertools.pairwise(ends)]


@dataclass(frozen=True, slots=True)
class _Side:
    """A matrix of a tile: its address, and the elements from one inner index to the next."""

    base: IrValue
    step: int

    def at(self, b: Builder, k: IrValue, offset: int = 0) -> IrValue:
        place = b.add(b.mul(k, index(self.step)), index(offset))
        return at(b, self.base, place, float32)


def _tile(
    b: Builder,
    scalars: Sequence[_Side],
    vectors: _Side,
    sums: Sequence[IrValue],
    depth: IrValue,
    ahead: Ahead,
    packed: _Side | None = None,
) -> list[IrValue]:
    """Write the loop that adds the products of `scalars` and `vectors` to `sums`, row after row.

    The vectors are also stored to `packed`.
    """
    across = len(sums) // len(scalars)

    def step(k: IrValue, sums: list[IrValue]) -> Sequence[IrValue]:
        for address in ahead(k):
            prefetch(b, address, 2)
        right = [load(b, vectors.at(b, k, v * LANES), float32) for v in range(across)]
        if packed is not None:
            for v, value in enumerate(right):
                store(b, value, packed.at(b, k, v * LANES), float32)
        left = [splat(b, b.load(each.at(b, k), align=4, typ=FLOAT)) for each in scalars]
        return [
            intrinsic(b, "fma", scalar, right[v], sums[number * across + v])
            for number, scalar in enumerate(left)
            for v in range(across)
        ]

    return loop(b, index(0), depth, 1, sums, step)


def _write_rows(b: Builder, s: _Structure) -> None:
    """Write the kernel of `times_rows`. A piece is `PANELS` panels of columns.

    Blocks of `DEPTH` rows are packed panel by panel. While the tiles of a block are computed, they
    prefetch the next block in the order of its addresses.
    """
    given = NumberReader(b)
    a, weight, y = (given.pointer() for _ in range(3))
    inner, start, line = given.some(3)
    packed, sums = stack(b, FLOAT, PANELS * DEPTH * WIDTH), stack(b, FLOAT, PANELS * s.rows * WIDTH)
    tiles = _parts(s.rows, SUMS // ACROSS)
    zero = constant(vector(FLOAT), 0.0)

    def piece(number: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
        column = b.mul(number, index(PANELS * WIDTH))
        panels = least(b, index(PANELS), b.udiv(b.sub(index(s.columns), column), index(WIDTH)))
        source = at(b, weight, b.add(start, column), float32)
        target = at(b, y, column, float32)

        def begin(panel: IrValue, row: IrValue, v: int) -> None:
            place = _in_panel(b, target, line, panel, row, v)
            before = load(b, place, float32) if s.flag else zero
            store(b, before, _in_panels(b, sums, s.rows, panel, row, v), float32)

        def end(panel: IrValue, row: IrValue, v: int) -> None:
            found = load(b, _in_panels(b, sums, s.rows, panel, row, v), float32)
            store(b, found, _in_panel(b, target, line, panel, row, v), float32)

        def block(first: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            depth = least(b, index(DEPTH), b.sub(inner, first))
            left = at(b, a, b.mul(first, index(s.rows)), float32)
            right = at(b, source, b.mul(first, index(s.columns)), float32)

            def pack(panel: IrValue, row: IrValue, v: int) -> None:
                found = load(b, _in_panel(b, right, index(s.columns), panel, row, v), float32)
                store(b, found, _in_panels(b, packed, DEPTH, panel, row, v), float32)

            _each_vector(b, depth, panels, pack)

            def compute(panel: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
                across = _Side(at(b, packed, b.mul(panel, index(DEPTH * WIDTH)), float32), WIDTH)
                held = at(b, sums, b.mul(panel, index(s.rows * WIDTH)), float32)
                for number, (row, count) in enumerate(tiles):
                    each = [
                        _Side(at(b, left, index(row + i), float32), s.rows) for i in range(count)
                    ]
                    places = [
                        at(b, held, index(row * WIDTH + v * LANES), float32)
                        for v in range(count * ACROSS)
                    ]
                    before = [load(b, place, float32) for place in places]
                    ahead = _next_block(b, right, s.columns, panel, number, len(tiles))
                    after = _tile(b, each, across, before, depth, ahead)
                    for place, value in zip(places, after, strict=True):
                        store(b, value, place, float32)
                return ()

            loop(b, index(0), panels, 1, (), compute)
            return ()

        _each_vector(b, index(s.rows), panels, begin)
        loop(b, index(0), inner, DEPTH, (), block)
        _each_vector(b, index(s.rows), panels, end)
        return ()

    loop(b, given.first, given.last, 1, (), piece)


def _each_vector(
    b: Builder, rows: IrValue, panels: IrValue, access: Callable[[IrValue, IrValue, int], None]
) -> None:
    """Write loops over the rows of a block and its panels; `access` gets the number of a panel, a
    row, and the offset of a vector in the panel."""

    def row(number: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
        def panel(number_of_panel: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            for v in range(ACROSS):
                access(number_of_panel, number, v * LANES)
            return ()

        loop(b, index(0), panels, 1, (), panel)
        return ()

    loop(b, index(0), rows, 1, (), row)


def _in_panel(
    b: Builder, base: IrValue, line: IrValue, panel: IrValue, row: IrValue, offset: int
) -> IrValue:
    """Return the address of a vector of a matrix whose rows are `line` elements apart."""
    place = b.add(b.mul(row, line), b.mul(panel, index(WIDTH)))
    return at(b, base, b.add(place, index(offset)), float32)


def _in_panels(
    b: Builder, base: IrValue, rows: int, panel: IrValue, row: IrValue, offset: int
) -> IrValue:
    """Return the address of a vector of a matrix that is stored as panels of `rows` rows."""
    place = b.add(b.mul(panel, index(rows)), row)
    return at(b, base, b.add(b.mul(place, index(WIDTH)), index(offset)), float32)


def _next_block(
    b: Builder, block: IrValue, columns: int, panel: IrValue, tile: int, tiles: int
) -> Ahead:
    """Return what a tile prefetches: its part of the next block, in the order of addresses.

    A panel prefetches `DEPTH` / `PANELS` rows of all panels.
    """
    lines = PANELS * WIDTH // LANES
    each = -(-ACROSS // tiles)

    def ahead(k: IrValue) -> Sequence[IrValue]:
        if tile * each >= ACROSS:
            return []
        found = []
        for part in range(tile * each, min(ACROSS, tile * each + each)):
            number = b.add(b.mul(panel, index(DEPTH * ACROSS)), b.add(k, index(part * DEPTH)))
            row = b.add(b.udiv(number, index(lines)), index(DEPTH))
            place = b.add(
                b.mul(row, index(columns)), b.mul(b.urem(number, index(lines)), index(LANES))
            )
            found.append(at(b, block, place, float32))
        return found

    return ahead


def _following(b: Builder, rows: _Side) -> Ahead:
    """Return what a tile prefetches of the rows that the next piece reads, in one piece."""
    return lambda k: [rows.at(b, k)]


def _write_columns(b: Builder, s: _Structure) -> None:
    """Write the kernel of `times_columns`. A piece is `LANES` columns; the last two may overlap.

    Tiles are transposed: their vectors are columns of y, which are transposed when y is written.
    """
    given = NumberReader(b)
    a, weight, y = (given.pointer() for _ in range(3))
    bias = given.pointer() if s.flag else None
    columns, line = given.some(2)
    across, inner = s.rows // LANES, s.columns
    tile = stack(b, FLOAT, LANES * s.rows)

    def piece(number: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
        column = least(b, b.mul(number, index(LANES)), b.sub(columns, index(LANES)))
        source = at(b, weight, b.mul(column, index(inner)), float32)
        for first, count in _parts(LANES, SUMS // across):
            each = [
                _Side(at(b, source, index((first + i) * inner), float32), 1) for i in range(count)
            ]
            beyond = _Side(at(b, source, index((LANES + first) * inner), float32), count)
            zeros = [constant(vector(FLOAT), 0.0)] * (count * across)
            depth = index(inner)
            sums = _tile(b, each, _Side(a, s.rows), zeros, depth, _following(b, beyond))
            for v, value in enumerate(sums):
                store(b, value, at(b, tile, index(first * s.rows + v * LANES), float32), float32)
        added = None if bias is None else load(b, at(b, bias, column, float32), float32)
        target = at(b, y, column, float32)

        def row(number: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            found = gather(b, at(b, tile, number, float32), index(s.rows), float32)
            if added is not None:
                found = b.fadd(found, added)
            store(b, found, at(b, target, b.mul(number, line), float32), float32)
            return ()

        loop(b, index(0), index(s.rows), 1, (), row)
        return ()

    loop(b, given.first, given.last, 1, (), piece)
