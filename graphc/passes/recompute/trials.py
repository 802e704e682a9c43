"""What a search for a plan reports: the best one so far, and what no plan can be below."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.ir.types import format_bytes
from graphc.passes.recompute.points import Point
from graphc.progress import report


@dataclass
class Trials:
    """The plans that one search has tried, which is for `asked`, with or without a budget.

    No plan takes fewer than `bound_bytes`, and none within the budget adds less than `time_bound`
    of a step's seconds; None where nothing is proven.
    """

    asked: str
    budget: int | None = None
    maps_only: bool = False
    bound_bytes: int | None = None
    time_bound: float | None = None
    number: int = 0
    fewest_bytes: int | None = None
    least_time: float | None = None
    """Of the plans within the budget."""

    def tell(self, point: Point) -> None:
        """Report the best plan so far, of which this may be one."""
        size = point.bytes(self.maps_only)
        self.number += 1
        self.fewest_bytes = size if self.fewest_bytes is None else min(size, self.fewest_bytes)
        if self.budget is not None and size <= self.budget:
            time = point.extra_time
            self.least_time = time if self.least_time is None else min(time, self.least_time)
        report(f"{self.asked}: {self._best()}, trial {self.number}")

    def _best(self) -> str:
        if self.least_time is not None:
            bound = "" if self.time_bound is None else f", at least {self.time_bound:+.1%}"
            return f"{self.least_time:+.1%} time{bound}"
        bound = "" if self.bound_bytes is None else f", at least {format_bytes(self.bound_bytes)}"
        return f"{format_bytes(self.fewest_bytes or 0)}{bound}"
