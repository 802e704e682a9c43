"""Best fit in order of time, like an allocator at run time.

Buffers are allocated and freed in program order. A buffer takes the smallest hole below the height
that fits. Otherwise the height grows, starting from the topmost hole if it reaches the height.
Adjacent holes are merged. With h holes, a buffer costs O(log h) to choose a hole and O(h) to keep
the list sorted. h is small, so the work is nearly linear.
"""

from __future__ import annotations

import bisect

import numpy as np

from graphc.planner.pack.problem import Integers, PackingProblem


def pack_in_time(problem: PackingProblem) -> tuple[Integers, int]:
    """Allocate and free buffers in order of time, by best fit; return offsets and height.

    No buffer may be pinned.
    """
    holes = _Holes()
    offsets = np.zeros(len(problem), np.int64)
    first, last, size = problem.first.tolist(), problem.last.tolist(), problem.size.tolist()
    births = sorted(range(len(size)), key=lambda i: (first[i], -size[i], i))
    deaths = sorted(range(len(size)), key=lambda i: (last[i], i))
    gone = 0
    for index in births:
        while last[deaths[gone]] <= first[index]:
            leaving = deaths[gone]
            holes.give(int(offsets[leaving]), size[leaving])
            gone += 1
        offsets[index] = holes.take(size[index])
    return offsets, holes.height


class _Holes:
    """Holes below the height, sorted by size to choose one, and by start and end to merge
    neighbors."""

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
        if start < self.height:  # extend the topmost hole
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
