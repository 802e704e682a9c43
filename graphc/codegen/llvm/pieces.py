"""Division of a call into pieces of some rows each, fixed by the shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphc.codegen.llvm.elements import NumberReader, whole_or_masked
from graphc.codegen.llvm.lanes import LANES, Builder, IrValue, index, loop
from graphc.codegen.llvm.places import advanced, least, split

PIECE = 16384
"""Approximate number of elements per piece: enough to outweigh its overhead, and few enough for a
cache."""

Part = Callable[[IrValue, IrValue], None]
"""A function that writes the code for a range `[first, last)` of rows."""

Take = Callable[[list[IrValue], IrValue | None, list[IrValue]], Sequence[IrValue]]
"""A function from positions, remaining elements and carried values to the next carried values.

The remaining elements are None if all vectors are full.
"""


def rows_of_piece(elements: int) -> int:
    """Return the number of rows of a piece, given the number of elements of a row."""
    return max(1, PIECE // max(1, elements))


def over_pieces(builder: Builder, given: NumberReader, part: Part) -> None:
    """Write the loop over pieces. The kernel's next two numbers are the rows in total and per
    piece."""
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
    """Write the loops over pieces and their rows; `body` gets a row's number and its indices."""

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
    body: Callable[[list[IrValue], IrValue | None], None],
    together: int = 4,
) -> None:
    """Write a loop over elements by `together` vectors at a time, then by one.

    `body` gets the first element of each vector, and a mask unless all elements exist.
    """

    def take(
        places: list[IrValue], left: IrValue | None, carried: list[IrValue]
    ) -> Sequence[IrValue]:
        def access(mask: IrValue | None) -> list[IrValue]:
            body(places, mask)
            return []

        return whole_or_masked(builder, left, access)

    fold_vectors(builder, first, last, together, (), take)


def fold_vectors(
    builder: Builder,
    first: IrValue,
    last: IrValue,
    together: int,
    carried: Sequence[IrValue],
    take: Take,
) -> list[IrValue]:
    """Write a loop over elements, first by `together` vectors at a time, then by single vectors.
    `take` gets and returns the carried values."""
    step, whole = together * LANES, first
    if together > 1:
        whole = builder.sub(last, builder.and_(builder.sub(last, first), index(step - 1)))

        def several(place: IrValue, held: list[IrValue]) -> Sequence[IrValue]:
            places = [builder.add(place, index(LANES * i)) for i in range(together)]
            return take(places, None, held)

        carried = loop(builder, first, whole, step, carried, several)

    def one(place: IrValue, held: list[IrValue]) -> Sequence[IrValue]:
        return take([place], builder.sub(last, place), held)

    return loop(builder, whole, last, LANES, carried, one)
