"""What a plan takes and what it adds to a step, as a point between bytes and time."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.allocation.allocate import Sizes
from graphc.ir.graph import Graph


@dataclass(frozen=True)
class Point:
    """A plan's graph, its sizes, and the part of a step's seconds and flops that it adds."""

    graph: Graph
    sizes: Sizes
    extra_time: float
    extra_flops: float

    def bytes(self, maps_only: bool) -> int:
        """The arena's bytes, or those of the feature maps."""
        return self.sizes.feature_map_bytes if maps_only else self.sizes.arena_bytes


def undominated(points: list[Point]) -> list[Point]:
    """Points by bytes, without those that another one beats in bytes and in time."""
    chosen: list[Point] = []
    for point in sorted(points, key=lambda p: (p.sizes.arena_bytes, p.extra_time)):
        if not chosen or point.extra_time < chosen[-1].extra_time:
            chosen.append(point)
    return chosen
