"""The largest limit of live bytes whose plan, packed, fits into a budget.

What a planner is told is a limit of live bytes; what a budget bounds is an arena, which is neither
smooth nor monotone in that limit. So limits stand on a ladder that no budget moves,

    limit(i) = top · 2 ^ (-i / 512)         rung i; rung 0 runs everything once

and each rung has one plan, whatever was asked before, and one arena: the smaller one of its nodes
in the order planned and in a better one. Tried are, from large limits to small,

    every 64th rung     from reach · budget down to the first that fits, j
    every 16th          between j - 64 and j, down to the first that fits and has no smaller arena
                        than j; so on with 4 and 1

Large graphs, whose plans take long to measure, end with widths of 4. A rung without a plan is
passed over where a later one has one. Beyond the last of those nothing is tried, and which rung
that is depends on no budget either: the last that widths find, from below. Nor does a rung count
whose limit is above reach · its own arena, as rungs below it are taken to have what it has.

What fits into a budget fits into every larger one. So the first that fits at a width stands no
later there; where it stands earlier, all that follows does, and where it does not, the next width
decides in the same gap: a larger budget ends at no smaller limit, and has a plan where a smaller
one has. That it is no slower either takes plans that cost no less for smaller limits, which
sequence_planner.py works towards and nobody proves.

And the bytes of what is found, given as a budget, find it again: it fits, what did not fit before
does not now, and the rungs that led to it do, as their arenas are no larger.

Where a plan is known already, of another order say, only faster ones are of interest. With costs as
above, none follows at any width once a rung that is no faster does not count.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

from graphc.passes.recompute.points import Point

PER_OCTAVE = 512

STRIDES = (64, 16, 4, 1)
"""Widths at which rungs are tried, each within a gap of the one before."""

COARSE = STRIDES[:-1]
"""Widths for large graphs: plans that are within half a percent of bytes."""

SLACK, LITTLE = 1.1, 1.02
"""Limits up to so many times an arena count, beyond what an order, or parts, save without
recomputation: in small graphs, and in large ones, where each limit takes long."""


class Ladder:
    """Limits from `top` down, and the plans for them that fit; there is none below `floor`.

    `is_feasible` tells whether there is a plan for a limit, and `is_faster` whether that is of
    interest; `fitting` gives it where its arena, of `size` bytes, is within a budget. Limits up to
    `reach` budgets are tried, `strides` says at which widths.
    """

    def __init__(
        self,
        top: int,
        floor: int,
        reach: float,
        is_feasible: Callable[[int], bool],
        is_faster: Callable[[int], bool],
        fitting: Callable[[int, int], Point | None],
        size: Callable[[Point], int],
        strides: tuple[int, ...] = STRIDES,
    ) -> None:
        self.top, self.floor, self.reach = top, max(floor, 1), reach
        self._is_feasible, self._is_faster = is_feasible, is_faster
        self._fitting, self._size = fitting, size
        self.strides = strides

    def limit(self, rung: int) -> int:
        """The live bytes that a rung allows."""
        return int(self.top * 2.0 ** (-rung / PER_OCTAVE))

    @functools.cached_property
    def deepest(self) -> int:
        """The last rung with a plan, as far as widths find it; -1 where there is none."""
        below = next(rung for rung in itertools.count() if self.limit(rung) < self.floor)
        found = -1
        for stride in self.strides:
            rungs = range(_next(below, stride) - stride, found, -stride)
            found = next((rung for rung in rungs if self._is_feasible(self.limit(rung))), found)
            below = min(below, found + stride)
        return found

    def within(self, budget: int) -> Point | None:
        """The fastest plan of the rungs that count whose arena is at most `budget` bytes."""
        allowed = self.reach * budget
        if allowed < 1:
            return None
        highest = next(rung for rung in itertools.count() if self.limit(rung) <= allowed)
        fits: list[Point] = []
        rung, last, end = _next(highest, self.strides[0]), math.inf, math.inf
        for stride, finer in itertools.zip_longest(self.strides, self.strides[1:], fillvalue=1):
            while rung < last:
                is_feasible = self._is_feasible(self.limit(rung))
                end = end if is_feasible else self.deepest
                if rung > end:
                    break  # as good a mark as a rung that fits
                found = self._fitting(self.limit(rung), budget) if is_feasible else None
                if found is not None and self._counts(found, rung, fits):
                    fits.append(found)
                    break
                if is_feasible and not self._is_faster(self.limit(rung)):
                    return _fastest(fits)
                rung += stride
            last = min(rung, last)
            rung = max(_next(highest, finer), int(last) - stride + finer)
        return _fastest(fits)

    def _counts(self, found: Point, rung: int, fits: list[Point]) -> bool:
        """Whether its own bytes as a budget would lead to the plan of a rung."""
        size = self._size(found)
        is_near = self.limit(rung) <= self.reach * size
        return is_near and (not fits or self._size(fits[-1]) <= size)


def _next(rung: int, stride: int) -> int:
    """The first rung from there on that is tried at a width."""
    return -(-rung // stride) * stride


def _fastest(points: list[Point]) -> Point | None:
    return min(points, key=lambda point: point.extra_time, default=None)
