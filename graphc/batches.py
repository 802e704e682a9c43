"""The largest batch whose step fits into so many bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphc.compiler import plan
from graphc.errors import BudgetError
from graphc.ir.graph import Value
from graphc.ir.types import format_bytes, parse_bytes
from graphc.plans.memory_plan import MemoryPlan
from graphc.progress import report


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """A batch whose plan fits, where that of one more does not."""

    batch: int
    plan: MemoryPlan


def largest_batch(
    make: Callable[[int], Value], memory: int | str, **options: Any
) -> LargestBatch | None:
    """The largest batch whose plan takes at most `memory`, bytes or ``"7GiB"``; None if none does.

    `make` returns the loss for a batch, a whole number from 1 up; `options` are those of
    `graphc.plan`. With ``recompute="optimal"`` and nothing else that asks for bytes or flops, as
    much is computed again as it takes. Raises what `make` and `graphc.plan` do.
    """
    search = _Search(make, parse_bytes("memory", memory), options)
    return search.run()


class _Search:
    """Plans by batch, each made once.

    Bytes grow nearly in a line with the batch, so the next batch that is tried is where the line
    through the largest one that fits and the smallest that does not meets the limit.
    """

    def __init__(self, make: Callable[[int], Value], memory: int, options: dict[str, Any]) -> None:
        self.make, self.memory, self.options = make, memory, options
        goals = ("budget", "feature_map_budget", "max_extra_flops")
        self.takes_any_time = options.get("recompute") == "optimal" and not any(
            options.get(goal) is not None for goal in goals
        )
        self.sizes: dict[int, int] = {}

    def run(self) -> LargestBatch | None:
        """Bracket the answer, narrow the bracket, and go on until one more does not fit."""
        if self.size(1) > self.memory:
            return None
        fits, over = 1, None
        while over is None or over - fits > 1:
            batch = self.guess(fits, over)
            if self.size(batch) <= self.memory:
                fits = batch
            else:
                over = batch
            report(self._doing(fits, over))
        found = self.planned(fits)
        # A plan within the limit may be found although the fewest bytes looked for are above it.
        while (larger := self.planned(fits + 1)) is not None:
            fits, found = fits + 1, larger
        return None if found is None else LargestBatch(fits, found)

    def guess(self, fits: int, over: int | None) -> int:
        """A batch above `fits`, and below `over` where that is known."""
        known = [batch for batch in self.sizes if batch != fits]
        if not known:
            return 2
        other = over if over is not None else max(known)
        slope = (self.sizes[other] - self.sizes[fits]) / (other - fits)
        step = int((self.memory - self.sizes[fits]) / slope) if slope > 0 else fits
        if over is None:
            # One more than the line says: it will probably not fit, and then the bracket is small.
            return fits + max(1, min(step, 2**20))
        return min(max(fits + step, fits + 1), over - 1)

    def size(self, batch: int) -> int:
        """The bytes of a batch's plan; where any time may be taken, the fewest found."""
        if batch not in self.sizes:
            if self.takes_any_time:
                self.sizes[batch] = self._least(batch)
            else:
                self.sizes[batch] = plan(self.make(batch), **self.options).arena_bytes
        return self.sizes[batch]

    def _least(self, batch: int) -> int:
        try:
            found = plan(self.make(batch), **{**self.options, "budget": 0})
        except BudgetError as error:
            return error.least_bytes
        return found.arena_bytes

    def planned(self, batch: int) -> MemoryPlan | None:
        """The plan of a batch, None where it does not fit."""
        within = {"budget": self.memory} if self.takes_any_time else {}
        try:
            found = plan(self.make(batch), **{**self.options, **within})
        except BudgetError:
            return None
        return found if found.arena_bytes <= self.memory else None

    def _doing(self, fits: int, over: int | None) -> str:
        above = "" if over is None else f", {over} does not"
        return f"the largest batch within {format_bytes(self.memory)}: {fits} fits{above}"
