"""Where a sequence of steps is narrow: little crosses from what ran to what will run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

WINDOW = 8
"""A cut is narrowest among so many places on either side, or one value wide."""

MOST_UNITS, MOST_WIDE = 340, 80
"""Longer chains are thinned out: where one value crosses, and where several do."""

V = TypeVar("V", bound=Hashable)


def crossings(
    sequence: Sequence[int],
    reads: Callable[[int], Iterable[V]],
    makes: Callable[[int], Iterable[V]],
    size: Callable[[V], int],
) -> Iterator[tuple[int, int, Collection[V]]]:
    """(step, bytes, values) that cross the place behind each step, from what ran to what will."""
    last_use = {value: step for step in sequence for value in reads(step)}
    # One dict for the whole walk, as copies would take quadratic time: who keeps it copies it.
    crossing: dict[V, None] = {}
    ending: dict[int, list[V]] = {}
    total = 0
    for step in sequence:
        # What this step reads last does not cross the place behind it.
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
    """The places that one value crosses or that are narrowest among their neighbours.

    `widths` has the bytes and the number of values that cross each place.
    """
    sizes = [size for size, _ in widths]
    return [
        index
        for index, (size, count) in enumerate(widths)
        if count == 1 or (count and size == min(sizes[max(0, index - WINDOW) : index + WINDOW + 1]))
    ]


def thinned(places: list[int], widths: Sequence[tuple[int, int]]) -> list[int]:
    """The narrower of any two neighbouring places, until there are few enough."""
    wide = sum(widths[place][1] > 1 for place in places)
    most = MOST_WIDE if 2 * wide > len(places) else MOST_UNITS
    while len(places) >= most:
        # One of each pair, rather than the narrowest of all, so that the cuts stay spread over the
        # pass.
        pairs = [places[index : index + 2] for index in range(0, len(places), 2)]
        places = [min(pair, key=lambda place: widths[place][0]) for pair in pairs]
    return places
