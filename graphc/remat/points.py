"""What a plan takes and what it adds to a step, as a point between bytes and time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from graphc.allocation.allocate import Allocation
from graphc.ir.graph import Graph
from graphc.plans.memory_plan import Allocate


@dataclass(frozen=True)
class Point:
    """A plan by its allocation, and the part of a step's seconds and flops that it adds."""

    allocation: Allocation
    strategy: Allocate
    extra_time: float
    extra_flops: float

    @property
    def graph(self) -> Graph:
        """The plan's graph."""
        return self.allocation.graph

    @cached_property
    def arena_bytes(self) -> int:
        """The bytes of the whole arena."""
        return self.allocation.arena_bytes(self.strategy)

    @cached_property
    def feature_map_bytes(self) -> int:
        """Those of the paper's measure, which are packed for it alone when they are asked for."""
        return self.allocation.feature_map_bytes(self.strategy)

    def bytes(self, maps_only: bool) -> int:
        """The arena's bytes, or those of the feature maps."""
        return self.feature_map_bytes if maps_only else self.arena_bytes


def knee_of(curve: Sequence[tuple[int, float]], most: int) -> int:
    """The bytes at which a curve of (bytes, time) bends, which begins at `most` bytes without time:
    where it is farthest from the chord between its ends."""
    least, cost = curve[-1]
    # The distance, times the chord's length.
    limit, _ = max(curve, key=lambda point: (most - point[0]) * cost - point[1] * (most - least))
    return limit


def between(low: int, high: int, count: int) -> Iterator[int]:
    """Budgets between two, which make `count` with these."""
    for index in range(1, count - 1):
        # Half the distance in bytes, half in their logarithm: tight budgets are the steep part.
        part = index / (count - 1)
        yield int((low + (high - low) * part + low * (high / max(low, 1)) ** part) / 2)


def faster(first: Point | None, second: Point | None) -> Point | None:
    """The one that adds less time, the first of equals; either may be missing."""
    if first is None or second is None:
        return first or second
    return min(first, second, key=lambda point: point.extra_time)


def undominated(points: list[Point]) -> list[Point]:
    """Points by bytes, without those that another one beats in bytes and in time."""
    chosen: list[Point] = []
    for point in sorted(points, key=lambda p: (p.arena_bytes, p.extra_time)):
        if not chosen or point.extra_time < chosen[-1].extra_time:
            chosen.append(point)
    return chosen
