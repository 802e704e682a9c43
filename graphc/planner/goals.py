"""Parts of a search for a goal: corrected capacities, and points of a trade-off curve.

A solver bounds live bytes. What a user limits is measured on a schedule: the packed arena of a
network, with or without copies to the host. So a search solves for a capacity, measures the
schedule, and scales the capacity by what the measure missed the limit by (`Capacity`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

CLOSE, TIGHTER = 0.005, 0.998
"""Fraction of a limit that may stay unused, and the largest factor of the capacity after a measure
that exceeds the limit."""

Point = TypeVar("Point")


@dataclass
class Capacity:
    """The capacity of a solver, in bytes, such that a measure of its schedules may reach `limit`.
    `above` counts successive measures above the limit."""

    limit: int
    bytes: float
    above: int = 0

    def correct(self, measured: int) -> None:
        """Scale the capacity after a schedule with this measure."""
        if measured > self.limit:
            self.above += 1  # packing is not monotone, so the corrections grow
            self.bytes *= min(self.limit / measured, TIGHTER) ** self.above
        else:
            self.above = 0
            self.bytes *= self.limit / measured

    def is_used(self, measured: int) -> bool:
        """Return True if a measure within the limit leaves little of it."""
        return measured >= (1 - CLOSE) * self.limit


def between(low: int, high: int, count: int) -> Iterator[int]:
    """Yield `count - 2` budgets between `low` and `high` bytes, denser near `low`."""
    for index in range(1, count - 1):
        # The mean of linear and logarithmic spacing, as the curve is steep at tight budgets.
        part = index / (count - 1)
        yield int((low + (high - low) * part + low * (high / max(low, 1)) ** part) / 2)


def knee_of(curve: Sequence[tuple[int, float]], most: int) -> int:
    """Return the bytes at the knee of a curve of (bytes, time): its farthest point from its chord.
    The curve starts at `most` bytes without extra time.
    """
    least, cost = curve[-1]
    # The distance times the chord's length.
    limit, _ = max(curve, key=lambda point: (most - point[0]) * cost - point[1] * (most - least))
    return limit


def undominated(
    points: Iterable[Point], place: Callable[[Point], tuple[int, float]]
) -> list[Point]:
    """Return the points of the Pareto frontier by increasing bytes: each takes less time than the
    last. `place` returns the bytes and the time of a point."""
    chosen: list[Point] = []
    for point in sorted(points, key=place):
        if not chosen or place(point)[1] < place(chosen[-1])[1]:
            chosen.append(point)
    return chosen
