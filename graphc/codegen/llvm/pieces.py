"""How the work of a call is cut into pieces: so many rows each, fixed by the shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphc.codegen.llvm.elements import NumberReader
from graphc.codegen.llvm.lanes import LANES, Builder, IrValue, index, loop
from graphc.codegen.llvm.places import advanced, least, split

PIECE = 16384
"""About how many elements a piece has: more than starting it costs, less than a cache holds."""

Part = Callable[[IrValue, IrValue], None]
"""Writes what is done from a first number to before a last one."""


def rows_of_piece(elements: int) -> int:
    """The rows of a piece, where a row has that many elements."""
    return max(1, PIECE // max(1, elements))


def over_pieces(builder: Builder, given: NumberReader, part: Part) -> None:
    """Write the loop over pieces; the next numbers are how many rows there are, and a piece has."""
    total, rows = given.some(2)

    def piece(number: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
        first = builder.mul(number, rows)
        part(first, least(builder, builder.add(first, rows), total))
        return ()

    loop(builder, given.first, given.last, 1, (), piece)


def over_rows(
    builder: Builder,
    given: NumberReader,
    extents: Sequence[IrValue],
    body: Callable[[IrValue, list[IrValue]], None],
) -> None:
    """Write the loops over pieces and their rows: `body` gets a row's number and its indices."""

    def part(first: IrValue, last: IrValue) -> None:
        def row(number: IrValue, indices: list[IrValue]) -> Sequence[IrValue]:
            body(number, indices)
            return advanced(builder, indices, extents)

        loop(builder, first, last, 1, split(builder, first, extents), row)

    over_pieces(builder, given, part)


def over_vectors(
    builder: Builder,
    first: IrValue,
    last: IrValue,
    body: Callable[[IrValue, IrValue, int], None],
    most: int = 4,
) -> None:
    """Write a loop over elements by `most` vectors at a time, then by one: `body` gets the first
    element, how many are left, and how many vectors to do."""
    width = index(most * LANES)
    whole = builder.mul(builder.sdiv(builder.sub(last, first), width), width)
    end = builder.add(first, whole)

    def many(place: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
        body(place, width, most)
        return ()

    def one(place: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
        body(place, builder.sub(last, place), 1)
        return ()

    loop(builder, first, end, most * LANES, (), many)
    loop(builder, end, last, LANES, (), one)
