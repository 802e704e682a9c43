"""What a plan takes and what it adds to a step, as a point between bytes and time."""

from __future__ import annotations

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


def undominated(points: list[Point]) -> list[Point]:
    """Points by bytes, without those that another one beats in bytes and in time."""
    chosen: list[Point] = []
    for point in sorted(points, key=lambda p: (p.arena_bytes, p.extra_time)):
        if not chosen or point.extra_time < chosen[-1].extra_time:
            chosen.append(point)
    return chosen
