"""The normalized packing problem, and its solution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Integers = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

SUMS = 2**20
"""The exclusive limit of the bound, in units, for which `proven` lists the subset sums of sizes."""


@dataclass(frozen=True, slots=True)
class Packing:
    """An offset for each buffer.

    `height` is the end of the highest buffer. `bound` is the peak of live bytes or the end of a
    pinned buffer, whichever is larger. `proven` is a lower bound on the height of every packing:
    `bound`, or more after an exhausted search or if sizes cannot fill the gaps between pins. All
    are in bytes. `work` is the part of the effort that was used.
    """

    offsets: Integers
    height: int
    bound: int
    proven: int
    work: int

    @property
    def is_optimal(self) -> bool:
        """True if it is proven that no lower packing exists."""
        return self.height == self.proven

    @property
    def gap(self) -> float:
        """The fraction by which the height exceeds the bound."""
        return self.height / self.bound - 1 if self.bound else 0.0


@dataclass(frozen=True)
class PackingProblem:
    """Buffers that are live in sections `[first, last)`, with sizes in units.

    Sections number, in order of time, the maximal sets of buffers that are live together. A unit is
    the greatest common divisor of all sizes and pinned offsets, in bytes. `offset` has the offsets
    of pinned buffers, in units, and zeros elsewhere.
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
        """Return the problem for live ranges `[lower, upper)` in any unit of time, converted to
        sections."""
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
        """The live units in each section."""
        change = np.zeros(self.sections + 1, np.int64)
        np.add.at(change, self.first, self.size)
        np.add.at(change, self.last, -self.size)
        return np.cumsum(change)[:-1]

    @cached_property
    def bound(self) -> int:
        """A lower bound on the height: the peak of live units, or the end of the highest pinned
        buffer."""
        ends = (self.offset + self.size)[self.is_pinned]
        return max(int(self.live.max(initial=0)), int(ends.max(initial=0)))

    @cached_property
    def proven(self) -> int:
        """A lower bound on the height of every packing: `bound`, or more if sizes cannot fill the
        gaps between pins. At the peak, the gap below a pin holds at most the largest subset sum of
        unpinned sizes that fits into it. The remaining units are above the topmost pin, and take at
        least the smallest subset sum that is not smaller.
        """
        peak = int(self.live.argmax()) if self.sections else 0
        is_live = (self.first <= peak) & (peak < self.last)
        pins, sizes = np.flatnonzero(is_live & self.is_pinned), self.size[is_live & ~self.is_pinned]
        if not len(pins) or self.bound >= SUMS:
            return self.bound
        sums, rest, top = 1, int(sizes.sum()), 0  # bit i of `sums`: some sizes add up to i
        for size in sizes.tolist():
            sums |= sums << size
        for pin in pins[np.argsort(self.offset[pins])].tolist():
            gap = int(self.offset[pin]) - top
            rest -= (sums & ((2 << gap) - 1)).bit_length() - 1
            top = int(self.offset[pin] + self.size[pin])
        above = sums >> max(rest, 0)
        return max(self.bound, top + max(rest, 0) + (above & -above).bit_length() - 1)

    @cached_property
    def crowd(self) -> Integers:
        """For each buffer, the peak of live units during its sections."""
        return _maximum_over(self.live, self.first, self.last)

    @cached_property
    def by_birth(self) -> Integers:
        """Indices of the buffers, sorted by first section."""
        return np.argsort(self.first, kind="stable")

    @cached_property
    def births(self) -> Integers:
        """For each section, the number of buffers born before it; a last entry counts all
        buffers."""
        return np.searchsorted(self.first[self.by_birth], np.arange(self.sections + 1))

    def apart(self) -> list[Integers]:
        """Return groups of buffers such that live ranges of different groups never overlap."""
        crossing = np.zeros(self.sections + 1, np.int64)
        np.add.at(crossing, self.first + 1, 1)
        np.add.at(crossing, self.last, -1)
        starts = np.cumsum(crossing)[:-1] == 0  # no buffer crosses into the section
        group = (np.cumsum(starts) - 1)[self.first]
        order = np.argsort(group, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(group[order])) + 1) if len(order) else []

    def part(self, chosen: Integers) -> PackingProblem:
        """Return the problem of the `chosen` buffers alone."""
        first, last, size = self.first[chosen], self.last[chosen], self.size[chosen]
        return PackingProblem.of(first, last, size, self.is_pinned[chosen], self.offset[chosen])


def sections_of(lower: Integers, upper: Integers) -> tuple[Integers, Integers]:
    """Return each live range `[lower, upper)` as sections `[first, last)`.

    A section ends at a death if a buffer was born since the previous section. Two live ranges
    overlap if and only if they have a section in common.
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
    """Return the maximum of `level` over each range. Two ranges of equal power-of-two length cover
    each."""
    found = np.zeros(len(first), np.int64)
    width, maxima = 1, level
    while width <= len(level):
        chosen = np.flatnonzero((last - first >= width) & (last - first < 2 * width))
        found[chosen] = np.maximum(maxima[first[chosen]], maxima[last[chosen] - width])
        maxima = np.maximum(maxima[:-width], maxima[width:])
        width *= 2
    return found
