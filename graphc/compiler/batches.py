"""Search for the largest batch that fits into a capacity: false position with growing steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphc.byte_sizes import format_bytes, parse_bytes
from graphc.compiler.compilation import collection_paused
from graphc.compiler.compile import on_this_machine
from graphc.compiler.options import PlanOptions
from graphc.compiler.pipeline import make_plan, planner_of
from graphc.errors import BudgetError, OptionError, whole_number
from graphc.ir.graph import Value
from graphc.keywords import takes
from graphc.plans.check.check_plan import check_plan
from graphc.plans.memory_plan import MemoryPlan
from graphc.progress import report

MOST = 2**40
"""The largest batch size that the search tries."""


@takes(PlanOptions)
def plan(options: PlanOptions) -> MemoryPlan:
    """Return the memory plan of a trial; only that of the answer is checked."""
    return make_plan(on_this_machine(options), checks=False)


@takes(PlanOptions)
def fewest_bytes(options: PlanOptions) -> int:
    """Return the bytes of the smallest arena found, at any extra time."""
    with collection_paused():
        return planner_of(on_this_machine(options)).least.arena_bytes


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """The largest batch size that fits, and its plan. The next larger batch does not fit."""

    batch: int
    plan: MemoryPlan


def largest_batch(
    make: Callable[[int], Value],
    memory: int | str,
    *,
    start: int | LargestBatch = 1,
    **options: Any,
) -> LargestBatch | None:
    """Return the largest batch whose plan takes at most `memory`; None if no batch fits.

    `memory` is a number of bytes or a string such as ``"7GiB"``. `make(batch)` returns the loss for
    a batch size, an integer of at least 1. `options` are those of `graphc.plan`. With
    ``recompute="optimal"`` and no limit on bytes or flops, any amount of recomputation is allowed.
    The search begins at the batch size `start`, or at a `LargestBatch` found with other options. A
    good start reduces the number of plans that are made. Raises the errors of `make` and
    `graphc.plan`, and `OptionError` if even a batch of 2**40 fits.
    """
    search = _Search(make, parse_bytes("memory", memory), options)
    if isinstance(start, LargestBatch):
        search.fixed_bytes = start.plan.state_bytes
        start = start.batch
    whole_number("start", start)
    return search.run(start)


class _Search:
    """A search by false position, with the arena bytes of each batch cached.

    Bytes grow almost linearly with the batch. A line through the largest batch that fits and the
    smallest one that does not fit therefore predicts the batch that reaches the limit. This batch
    is tried next. After each wrong prediction on the same side, the minimum step doubles, so the
    search makes at most a logarithmic number of plans.
    """

    def __init__(self, make: Callable[[int], Value], memory: int, options: dict[str, Any]) -> None:
        self.make, self.memory, self.options = make, memory, options
        goals = ("budget", "feature_map_budget", "max_extra_flops")
        self.takes_any_time = options.get("recompute") == "optimal" and not any(
            options.get(goal) is not None for goal in goals
        )
        self.sizes: dict[int, int] = {}
        self.fixed_bytes = 0
        """Bytes of states, which do not grow with the batch; 0 if unknown."""
        self.best: LargestBatch | None = None

    def run(self, start: int) -> LargestBatch | None:
        """Bracket the answer, then narrow the bracket until the next larger batch does not fit."""
        fits, over = (start, None) if self.size(start) <= self.memory else (1, start)
        if self.size(fits) > self.memory:
            return None
        pace = 1
        while over is None or over - fits > 1:
            batch, was_over = self.guess(fits, over, pace), over
            if self.size(batch) <= self.memory:
                pace = pace * 2 if pace > 0 else 1
                fits = batch
            else:
                pace = pace * 2 if pace < 0 and was_over is not None else -1
                over = batch
            report(self._doing(fits, over))
        found = self.planned(fits)
        if found is None:
            return None
        check_plan(found)
        return LargestBatch(fits, found)

    def guess(self, fits: int, over: int | None, pace: int) -> int:
        """Return the next batch to try, above `fits`, the largest batch that is known to fit.

        The result is below `over`, the smallest batch that is known not to fit, unless that is
        None. A positive `pace` is the minimum distance from `fits`, a negative one the minimum
        distance from `over`.
        """
        spare = self.memory - self.sizes[fits]
        if over is not None:
            line = fits + int(spare * (over - fits) / (self.sizes[over] - self.sizes[fits]))
            line = max(line, fits + pace) if pace > 0 else min(line, over + pace)
            return min(max(line, fits + 1), over - 1)
        smaller = [batch for batch in self.sizes if batch < fits]
        if fits >= MOST:
            raise OptionError(
                f"the search stops at a batch of {fits:,}, which fits into "
                f"{format_bytes(self.memory)}; give less memory, or a network whose memory grows "
                "with its batch"
            )
        if not smaller:
            # Other bytes than states may be constant, too, so this guess is often too small.
            per_batch = max(self.sizes[fits] - self.fixed_bytes, 1) / fits
            return min(max(fits + int(spare / per_batch) + 1, fits + 1), MOST)
        last = max(smaller)
        grown = self.sizes[fits] - self.sizes[last]
        step = spare * (fits - last) // grown if grown > 0 else fits
        # One above the line: this batch probably does not fit, which makes a small bracket.
        return min(fits + max(step + 1, pace // 2), MOST)

    def size(self, batch: int) -> int:
        """Return the arena bytes for a batch, the fewest found if extra time is not limited."""
        if batch not in self.sizes:
            if self.takes_any_time:
                # A budget is required by options such as `host_budget`; the planner ignores it.
                self.sizes[batch] = fewest_bytes(self.make(batch), **{**self.options, "budget": 0})
            else:
                found = plan(self.make(batch), **self.options)
                self.sizes[batch] = found.arena_bytes
                self.fixed_bytes = found.state_bytes
                if found.arena_bytes <= self.memory:
                    self.best = LargestBatch(batch, found)
        return self.sizes[batch]

    def planned(self, batch: int) -> MemoryPlan | None:
        """Return the plan of a batch, or None if it does not fit."""
        if not self.takes_any_time:
            return self.best.plan if self.best is not None and self.best.batch == batch else None
        try:
            return plan(self.make(batch), **{**self.options, "budget": self.memory})
        except BudgetError:
            return None

    def _doing(self, fits: int, over: int | None) -> str:
        above = "" if over is None else f"; {over:,} does not fit"
        return f"the largest batch within {format_bytes(self.memory)} is {fits:,}{above}"
