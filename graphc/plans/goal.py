"""The goal of a plan: a limit of bytes, of feature map bytes, or of extra flops."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.byte_sizes import format_bytes


@dataclass(frozen=True, slots=True)
class Goal:
    """At most one limit for a plan; without one, the goal is the knee of the trade-off curve.

    `budget` limits the bytes of the whole arena, `feature_map_budget` the bytes of feature maps as
    the paper counts them. Within either budget, the planner minimizes extra time. With a `budget`,
    values may be copied to at most `host_budget` bytes of host memory; None copies nothing.
    `max_extra_flops` limits recomputed flops, as a fraction of a step's flops. Within this limit,
    the planner minimizes bytes.
    """

    budget: int | None = None
    feature_map_budget: int | None = None
    max_extra_flops: float | None = None
    host_budget: int | None = None

    def __str__(self) -> str:
        if self.budget is not None:
            arena = f"arena of at most {format_bytes(self.budget)}"
            if self.host_budget is None:
                return arena
            return f"{arena} and {format_bytes(self.host_budget)} on the host"
        if self.feature_map_budget is not None:
            return f"paper's measure of at most {format_bytes(self.feature_map_budget)}"
        if self.max_extra_flops is not None:
            return f"at most {self.max_extra_flops:.1%} more flops"
        return "knee of the curve"
