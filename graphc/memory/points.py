"""Points of the trade-off between bytes and time, one per plan."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from graphc.ir.graph import Graph
from graphc.memory.allocate import Allocation
from graphc.plans.memory_plan import Allocate

Measure = Literal["arena", "feature maps"]
"""The bytes that a limit bounds: those of the arena, or those of feature maps alone, as Chen et al.
(2016) count them."""


@dataclass(frozen=True)
class Point:
    """The allocation of a plan, with its extra seconds and flops as fractions of a training
    step."""

    allocation: Allocation
    strategy: Allocate
    extra_time: float
    extra_flops: float
    measure: Measure = "arena"

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

    @property
    def bytes(self) -> int:
        """The bytes that a limit bounds."""
        return self.arena_bytes if self.measure == "arena" else self.feature_map_bytes


def faster(first: Point | None, second: Point | None) -> Point | None:
    """Return the point with less extra time, the first if both are equal; None counts as
    slowest."""
    if first is None or second is None:
        return first or second
    return min(first, second, key=lambda point: point.extra_time)
