"""What a user may ask the planner for: bytes, feature maps, or flops."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.ir.types import format_bytes


@dataclass(frozen=True, slots=True)
class Goal:
    """What a plan is asked for, at most one of three; with none, the knee of the curve.

    `budget` bounds the bytes of the whole arena, `feature_map_budget` those of the paper's measure:
    the least extra time within it is looked for. `max_extra_flops` is the part of a step's flops
    that may be computed again: the fewest bytes within it are looked for.
    """

    budget: int | None = None
    feature_map_budget: int | None = None
    max_extra_flops: float | None = None

    def __str__(self) -> str:
        if self.budget is not None:
            return f"arena of at most {format_bytes(self.budget)}"
        if self.feature_map_budget is not None:
            return f"paper's measure of at most {format_bytes(self.feature_map_budget)}"
        if self.max_extra_flops is not None:
            return f"at most {self.max_extra_flops:.1%} more flops"
        return "knee of the curve"
