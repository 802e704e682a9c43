"""What a user may ask the planner for: bytes, feature maps, or flops."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.errors import OptionError
from graphc.ir.types import format_bytes, parse_bytes


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

    @classmethod
    def of(cls, budget: object, feature_map_budget: object, max_extra_flops: object) -> Goal | None:
        """The goal of what a user gives, or None where all is None; raises `OptionError`."""
        given = {
            "budget": budget,
            "feature_map_budget": feature_map_budget,
            "max_extra_flops": max_extra_flops,
        }
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            raise OptionError(f"give one of {' and '.join(named)}, not both: each decides a plan")
        if not named:
            return None
        if max_extra_flops is not None:
            is_number = isinstance(max_extra_flops, int | float)
            if not is_number or isinstance(max_extra_flops, bool) or not max_extra_flops >= 0:  # type: ignore[operator]
                raise OptionError(
                    "max_extra_flops is a part of a step's flops from 0 up, such as 0.33, got "
                    f"{max_extra_flops!r}"
                )
            return cls(max_extra_flops=float(max_extra_flops))  # type: ignore[arg-type]
        size = parse_bytes(named[0], given[named[0]])
        return cls(**{named[0]: size})

    def __str__(self) -> str:
        if self.budget is not None:
            return f"arena of at most {format_bytes(self.budget)}"
        if self.feature_map_budget is not None:
            return f"feature maps of at most {format_bytes(self.feature_map_budget)}"
        if self.max_extra_flops is not None:
            return f"at most {self.max_extra_flops:.1%} more flops"
        return "knee of the curve"
