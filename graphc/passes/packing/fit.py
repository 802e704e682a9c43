"""Best fit: first in the order of time, like an allocator that runs the program, then by size.

The order of time takes near linear work and is exact on chains. Placing large buffers first takes
quadratic work and is better on graphs with mixed sizes; it runs up to `SIZE_ORDER_LIMIT` buffers.
Both stop at the bound, which proves that nothing lower exists.
"""

from __future__ import annotations

import bisect

import numpy as np

from graphc.passes.packing.problem import Integers, Packing, Problem

SIZE_ORDER_LIMIT = 8192
"""Most buffers for which large ones are placed first."""


def pack(problem: Problem) -> Packing:
    """The lowest packing that the portfolio finds; deterministic."""
    best = pack_in_time(problem)
    if best.height == problem.bound or len(problem.size) > SIZE_ORDER_LIMIT:
        return best
    duration = problem.upper - problem.lower
    keys = (problem.size, problem.size * duration, duration)
    for key in keys:
        order = np.lexsort((problem.lower, -duration, -key))
        found = pack_in_order(problem, order)
        if found.height < best.height:
            best = found
        if best.height == problem.bound:
            break
    return best


def pack_in_time(problem: Problem) -> Packing:
    """Allocate and free in the order of time; a buffer takes the smallest hole that holds it."""
    holes = _Holes()
    offsets = np.zeros(len(problem.size), np.int64)
    lower, upper, size = problem.lower.tolist(), problem.upper.tolist(), problem.size.tolist()
    births = sorted(range(len(size)), key=lambda i: (lower[i], -size[i], i))
    deaths = sorted(range(len(size)), key=lambda i: (upper[i], i))
    gone = 0
    for index in births:
        while upper[deaths[gone]] <= lower[index]:
            leaving = deaths[gone]
            holes.give(int(offsets[leaving]), size[leaving])
            gone += 1
        offsets[index] = holes.take(size[index])
    return Packing(offsets, holes.height)


class _Holes:
    """Free space below the height: holes by size for the choice, by start and end for merging."""

    def __init__(self) -> None:
        self.height = 0
        self.by_size: list[tuple[int, int]] = []
        self.end_of: dict[int, int] = {}
        self.start_of: dict[int, int] = {}

    def take(self, size: int) -> int:
        at = bisect.bisect_left(self.by_size, (size, -1))
        if at < len(self.by_size):
            hole, start = self.by_size[at]
            self.remove(start, start + hole)
            if hole > size:
                self.add(start + size, start + hole)
            return start
        start = self.start_of.get(self.height, self.height)
        if start < self.height:  # the topmost hole grows
            self.remove(start, self.height)
        self.height = start + size
        return start

    def give(self, start: int, size: int) -> None:
        end = start + size
        if start in self.start_of:
            before = self.start_of[start]
            self.remove(before, start)
            start = before
        if end in self.end_of:
            after = self.end_of[end]
            self.remove(end, after)
            end = after
        self.add(start, end)

    def add(self, start: int, end: int) -> None:
        bisect.insort(self.by_size, (end - start, start))
        self.end_of[start], self.start_of[end] = end, start

    def remove(self, start: int, end: int) -> None:
        del self.by_size[bisect.bisect_left(self.by_size, (end - start, start))]
        del self.end_of[start], self.start_of[end]


def pack_in_order(problem: Problem, order: Integers) -> Packing:
    """Place buffers in `order`, each into the smallest gap among those that it lives with."""
    count = len(order)
    offsets = np.zeros(count, np.int64)
    lower, upper = np.empty(count, np.int64), np.empty(count, np.int64)
    start, end = np.empty(count, np.int64), np.empty(count, np.int64)
    for placed, index in enumerate(order.tolist()):
        first, last, size = problem.lower[index], problem.upper[index], problem.size[index]
        together = (lower[:placed] < last) & (upper[:placed] > first)
        offset = _best_gap(start[:placed][together], end[:placed][together], int(size))
        offsets[index] = offset
        at = int(np.searchsorted(start[:placed], offset))
        for column, entry in ((lower, first), (upper, last), (start, offset), (end, offset + size)):
            column[at + 1 : placed + 1] = column[at:placed]
            column[at] = entry
    height = int((offsets + problem.size).max()) if count else 0
    return Packing(offsets, height)


def _best_gap(starts: Integers, ends: Integers, size: int) -> int:
    """The lowest of the tightest gaps between intervals sorted by start, else their top."""
    if not len(starts):
        return 0
    tops = np.maximum.accumulate(ends)
    floors = np.concatenate([np.zeros(1, np.int64), tops])
    room = starts - floors[:-1]
    fits = np.flatnonzero(room >= size)
    if not len(fits):
        return int(tops[-1])
    return int(floors[fits[np.argmin(room[fits])]])
