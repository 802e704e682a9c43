"""Points of the trade-off between bytes and time, one per plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from graphc.ir.graph import Graph
from graphc.memory.allocate import Allocation
from graphc.plans.memory_plan import Allocate


@dataclass(frozen=True)
class Point:
    """The allocation of a plan, with its extra seconds and flops as fractions of a training
    step."""

    allocation: Allocation
    strategy: Allocate
    extra_time: float
    extra_flops: float

    @property
    def graph(self) -> Graph:
        """The graph that the plan executes."""
        return self.allocation.graph

    @cached_property
    def arena_bytes(self) -> int:
        """The bytes of the whole arena."""
        return self.allocation.arena_bytes(self.strategy)

    @cached_property
    def feature_map_bytes(self) -> int:
        """The bytes of feature maps, as Chen et al. (2016) count them; they are packed on first
        access."""
        return self.allocation.feature_map_bytes(self.strategy)

    def bytes(self, maps_only: bool) -> int:
        """Return the bytes of the feature maps if `maps_only`, else those of the arena."""
        return self.feature_map_bytes if maps_only else self.arena_bytes


def knee_of(curve: Sequence[tuple[int, float]], most: int) -> int:
    """Return the bytes at the knee of a curve of (bytes, time): its farthest point from its chord.
    The curve starts at `most` bytes without extra time.
    """
    least, cost = curve[-1]
    # The distance times the chord's length.
    limit, _ = max(curve, key=lambda point: (most - point[0]) * cost - point[1] * (most - least))
    return limit


def between(low: int, high: int, count: int) -> Iterator[int]:
    """Yield `count - 2` budgets between `low` and `high` bytes, denser near `low`."""
    for index in range(1, count - 1):
        # The mean of linear and logarithmic spacing, as the curve is steep at tight budgets.
        part = index / (count - 1)
        yield int((low + (high - low) * part + low * (high / max(low, 1)) ** part) / 2)


def faster(first: Point | None, second: Point | None) -> Point | None:
    """Return the point with less extra time, the first if both are equal; None counts as
    slowest."""
    if first is None or second is None:
        return first or second
    return min(first, second, key=lambda point: point.extra_time)


def undominated(points: list[Point]) -> list[Point]:
    """Return the points of the Pareto frontier by increasing bytes: each takes less time than the
    last."""
    chosen: list[Point] = []
    for point in sorted(points, key=lambda p: (p.arena_bytes, p.extra_time)):
        if not chosen or point.extra_time < chosen[-1].extra_time:
            chosen.append(point)
    return chosen
