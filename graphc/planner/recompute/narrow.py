"""Narrow positions in a sequence of steps: few values cross from executed to later steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

WINDOW = 8
"""A cut is the narrowest among this many positions on either side, unless only one value crosses
it."""

MOST_UNITS, MOST_WIDE = 340, 80
"""Maximum number of units of a chain if one value crosses most cuts, and if several values do."""

V = TypeVar("V", bound=Hashable)


def crossings(
    sequence: Sequence[int],
    reads: Callable[[int], Iterable[V]],
    makes: Callable[[int], Iterable[V]],
    size: Callable[[V], int],
) -> Iterator[tuple[int, int, Collection[V]]]:
    """Yield (step, bytes, values) for the values that cross the position after each step."""
    last_use = {value: step for step in sequence for value in reads(step)}
    # One dict for the whole walk, as copies would take quadratic time. Callers copy it to keep it.
    crossing: dict[V, None] = {}
    ending: dict[int, list[V]] = {}
    total = 0
    for step in sequence:
        # Values with their last use here do not cross the position after this step.
        for value in ending.pop(step, ()):
            del crossing[value]
            total -= size(value)
        for value in makes(step):
            if last_use.get(value, -1) > step:
                crossing[value] = None
                total += size(value)
                ending.setdefault(last_use[value], []).append(value)
        yield step, total, crossing


def narrow(widths: Sequence[tuple[int, int]]) -> list[int]:
    """Return the positions that one value crosses or that are narrowest in their window.

    `widths` has the bytes and the number of values that cross each position.
    """
    sizes = [size for size, _ in widths]
    return [
        index
        for index, (size, count) in enumerate(widths)
        if count == 1 or (count and size == min(sizes[max(0, index - WINDOW) : index + WINDOW + 1]))
    ]


def thinned(places: list[int], widths: Sequence[tuple[int, int]]) -> list[int]:
    """Thin out cuts: keep the narrower of each two neighbors, until there are fewer than the
    maximum."""
    wide = sum(widths[place][1] > 1 for place in places)
    most = MOST_WIDE if 2 * wide > len(places) else MOST_UNITS
    while len(places) >= most:
        # Taking one of each pair, not the narrowest of all, keeps the cuts spread over the pass.
        pairs = [places[index : index + 2] for index in range(0, len(places), 2)]
        places = [min(pair, key=lambda place: widths[place][0]) for pair in pairs]
    return places
