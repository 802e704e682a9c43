"""The packing problem as its phases see it, and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Integers = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Packing:
    """An offset for each buffer.

    `height` is where the highest buffer ends. `bound` is the most that is live at one time or the
    end of a pinned buffer, and `proven` what no packing is below: that, or more by an exhausted
    search. All are in bytes. `work` is how much of the effort was used.
    """

    offsets: Integers
    height: int
    bound: int
    proven: int
    work: int

    @property
    def is_optimal(self) -> bool:
        """Whether no lower height exists."""
        return self.height == self.proven

    @property
    def gap(self) -> float:
        """How far the height is above the bound, as a part of the bound."""
        return self.height / self.bound - 1 if self.bound else 0.0


@dataclass(frozen=True)
class PackingProblem:
    """Buffers that live in sections [first, last) and have sizes in units.

    Sections are the times at which a different set of buffers is live and none of these sets lies
    within a neighbour's. A unit is the largest number of bytes that divides all sizes and pinned
    offsets. `offset` holds places where `is_pinned`, and zeros.
    """

    first: Integers
    last: Integers
    size: Integers
    is_pinned: Flags
    offset: Integers

    @classmethod
    def of(
        cls, lower: Integers, upper: Integers, size: Integers, is_pinned: Flags, offset: Integers
    ) -> PackingProblem:
        """The problem of lifetimes in times of any kind, which `sections_of` numbers."""
        first, last = sections_of(lower, upper)
        return cls(first, last, size, is_pinned, offset)

    def __len__(self) -> int:
        return len(self.size)

    @cached_property
    def sections(self) -> int:
        """The number of sections."""
        return int(self.last.max(initial=0))

    @cached_property
    def live(self) -> Integers:
        """The units that are live in each section."""
        change = np.zeros(self.sections + 1, np.int64)
        np.add.at(change, self.first, self.size)
        np.add.at(change, self.last, -self.size)
        return np.cumsum(change)[:-1]

    @cached_property
    def bound(self) -> int:
        """The most that is live in a section, or the end of the highest pinned buffer."""
        ends = (self.offset + self.size)[self.is_pinned]
        return max(int(self.live.max(initial=0)), int(ends.max(initial=0)))

    @cached_property
    def crowd(self) -> Integers:
        """The most that is live in any section of each buffer."""
        return _maximum_over(self.live, self.first, self.last)

    @cached_property
    def by_birth(self) -> Integers:
        """Buffers by their first section."""
        return np.argsort(self.first, kind="stable")

    @cached_property
    def births(self) -> Integers:
        """The number of buffers that begin before each section; one entry more than sections."""
        return np.searchsorted(self.first[self.by_birth], np.arange(self.sections + 1))

    def apart(self) -> list[Integers]:
        """Groups of buffers that never live together with one of another group."""
        crossing = np.zeros(self.sections + 1, np.int64)
        np.add.at(crossing, self.first + 1, 1)
        np.add.at(crossing, self.last, -1)
        starts = np.cumsum(crossing)[:-1] == 0  # no buffer crosses into the section
        group = (np.cumsum(starts) - 1)[self.first]
        order = np.argsort(group, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(group[order])) + 1) if len(order) else []

    def part(self, chosen: Integers) -> PackingProblem:
        """The problem of some of the buffers."""
        first, last, size = self.first[chosen], self.last[chosen], self.size[chosen]
        return PackingProblem.of(first, last, size, self.is_pinned[chosen], self.offset[chosen])


def sections_of(lower: Integers, upper: Integers) -> tuple[Integers, Integers]:
    """For each lifetime [lower, upper) its first section and the one after its last.

    A section ends where a buffer dies after one was born since the section before. Two lifetimes
    have a time in common if and only if they have a section in common.
    """
    times, places = np.unique(np.concatenate((lower, upper)), return_inverse=True)
    born, dies = places[: len(lower)], places[len(lower) :]
    births, deaths = np.zeros(len(times), np.int64), np.zeros(len(times), bool)
    births[born], deaths[dies] = 1, True
    born_before = np.cumsum(births) - births
    ends = np.flatnonzero(deaths)
    kept = np.diff(born_before[ends], prepend=0) > 0
    number = np.zeros(len(times), np.int64)
    number[ends[kept]] = 1
    number = np.cumsum(number)
    return number[born], number[dies]


def _maximum_over(level: Integers, first: Integers, last: Integers) -> Integers:
    """The maxima over ranges, each of two runs whose lengths are the same power of two."""
    found = np.zeros(len(first), np.int64)
    width, maxima = 1, level
    while width <= len(level):
        chosen = np.flatnonzero((last - first >= width) & (last - first < 2 * width))
        found[chosen] = np.maximum(maxima[first[chosen]], maxima[last[chosen] - width])
        maxima = np.maximum(maxima[:-width], maxima[width:])
        width *= 2
    return found
