"""Input tables and restarts for the exact search in `graphc.planner.pack.search`.

The search takes adjacency lists of overlapping live ranges. They are built once per problem, in
quadratic time. Each restart has its own order of buffers and its own limit of decisions. The limit
is 1,000, or two per buffer if that is more, times the next number of the Luby sequence. For
searches whose duration depends on the order, this is within a logarithmic factor of the best limits
known in advance (Luby, Sinclair and Zuckerman, 1993).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from graphc.planner.pack.orders import ranks
from graphc.planner.pack.problem import Integers, PackingProblem
from graphc.planner.pack.search import search
from graphc.planner.pack.tables import (
    FIRST,
    LAST,
    MEMBERS,
    NEIGHBOURS,
    OFFSET,
    PINS,
    RANK,
    SIZE,
)

DECISIONS = 1000
"""The minimum decision limit of a search."""


class Outcome(Enum):
    """The outcome of a search."""

    FOUND = 1
    NONE_EXISTS = 0
    LIMIT_REACHED = -1


@dataclass(frozen=True, slots=True)
class Found:
    """The result of one search: its outcome, its units of work, and the offsets if a packing was
    found."""

    outcome: Outcome
    offsets: Integers
    work: int


class ExactSearch:
    """Exact search for packings of one problem; pinned buffers are obstacles while they are
    live."""

    def __init__(self, problem: PackingProblem) -> None:
        self.problem = problem
        self.free = np.flatnonzero(~problem.is_pinned)
        first, last = problem.first[self.free], problem.last[self.free]
        members = _Lists(
            [
                np.flatnonzero((first <= section) & (section < last))
                for section in range(problem.sections)
            ]
        )
        neighbours = _Lists(
            [
                np.setdiff1d(np.flatnonzero((first < last[i]) & (first[i] < last)), [i])
                for i in range(len(first))
            ]
        )
        pinned = np.flatnonzero(problem.is_pinned)
        # Pins are sorted by offset, so that one walk finds the place of a buffer among them.
        pinned = pinned[np.argsort(problem.offset[pinned], kind="stable")]
        pins = _Lists(
            [
                pinned[(problem.first[pinned] < last[i]) & (first[i] < problem.last[pinned])]
                for i in range(len(first))
            ]
        )
        start = problem.offset[pins.entries]
        self._pins = np.stack((start, start + problem.size[pins.entries]), axis=1)
        self._members, self._neighbours = members.entries, neighbours.entries
        self._sections = np.zeros((problem.sections + 1, 3), np.int64)
        self._sections[:, MEMBERS] = members.starts
        self._buffers = np.zeros((len(first) + 1, 10), np.int64)
        self._buffers[:-1, FIRST], self._buffers[:-1, LAST] = first, last
        self._buffers[:-1, SIZE] = problem.size[self.free]
        self._buffers[:, NEIGHBOURS], self._buffers[:, PINS] = neighbours.starts, pins.starts

    def search(self, order: Integers, capacity: int, number: int) -> Found:
        """Search for a packing of height at most `capacity`; the restart `number` sets the decision
        limit."""
        problem, free = self.problem, self.free
        self._buffers[:-1, RANK] = ranks(order)[free]
        outcome, decisions, work = search(
            self._buffers,
            self._sections,
            self._neighbours,
            self._members,
            self._pins,
            capacity,
            # With fewer decisions than buffers, no search could place them all.
            max(DECISIONS, 2 * len(free)) * luby(number + 1),
        )
        found = problem.offset.copy()
        found[free] = self._buffers[:-1, OFFSET]
        return Found(Outcome(outcome), found, int(work) + 100 * int(decisions) + len(order))


class _Lists:
    """Concatenated lists: list i is `entries[starts[i] : starts[i + 1]]`."""

    def __init__(self, lists: list[Integers]) -> None:
        self.entries = np.concatenate([np.zeros(0, np.int64), *lists])
        self.starts = np.zeros(len(lists) + 1, np.int64)
        self.starts[1:] = np.cumsum([len(entries) for entries in lists])


def luby(number: int) -> int:
    """Return an element of the Luby sequence 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 ..., counted from 1.

    See Luby, Sinclair and Zuckerman (1993).
    """
    power = number.bit_length()
    while number != 2**power - 1:
        # After each new power of two, the sequence restarts from the beginning.
        number -= 2 ** (power - 1) - 1
        power = number.bit_length()
    return int(2 ** (power - 1))
