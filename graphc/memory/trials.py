"""Progress reports of a search for a plan, and the error if no plan fits."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.byte_sizes import exact_bytes, format_bytes, size_lines
from graphc.errors import BudgetError
from graphc.memory.points import Point
from graphc.plans.names import buffer_name
from graphc.progress import report

NAMED = 6
"""Maximum number of buffers at the peak that an error lists."""


@dataclass
class Trials:
    """Statistics of the plans that one search has tried for the goal `asked`, with or without a
    budget. Proven bounds: every plan takes at least `bound_bytes`, and every plan within the budget
    adds at least `time_bound`, as a fraction of a step's seconds. None means that nothing is
    proven.
    """

    asked: str
    budget: int | None = None
    bound_bytes: int | None = None
    time_bound: float | None = None
    number: int = 0
    fewest_bytes: int | None = None
    least_time: float | None = None
    """The least extra time of the tried plans within the budget, as a fraction of a step's
    seconds."""
    part: str = ""
    """A description of the current part of the search, such as ``schedule 2 of 4``."""

    def record(self, point: Point) -> None:
        """Count a tried plan, and report the best plan so far."""
        size = point.bytes
        self.number += 1
        self.fewest_bytes = size if self.fewest_bytes is None else min(size, self.fewest_bytes)
        if self.budget is not None and size <= self.budget:
            time = point.extra_time
            self.least_time = time if self.least_time is None else min(time, self.least_time)
        part = f" ({self.part})" if self.part else ""
        report(f"{self.asked}: {self._best()}, trial {self.number}{part}")

    def _best(self) -> str:
        if self.least_time is not None:
            bound = "" if self.time_bound is None else f", at least {self.time_bound:+.1%}"
            return f"{self.least_time:+.1%} time{bound}"
        bound = "" if self.bound_bytes is None else f", at least {format_bytes(self.bound_bytes)}"
        return f"{format_bytes(self.fewest_bytes or 0)}{bound}"


def does_not_fit(
    budget: int, found: Point, bound_bytes: int, plain_bytes: int, further: Point | None
) -> BudgetError:
    """Return the error if no plan fits: the fewest bytes found and their price, a larger plan at a
    lower price, the lower bound and the buffers live at the peak of the arena, whose bytes add up
    to it unless feature maps are measured."""
    least = found.allocation.plan(found.strategy, "optimal")
    counts_all = found.measure == "arena"
    step = least.peak_step
    node = least.graph.nodes[step].label
    names, shown = least.graph.names, []
    for buffer in least.live_at(step):
        held = least.residents.get(buffer.index)
        if held is None:
            if counts_all:
                shown.append((buffer_name(least, buffer, step), buffer.bytes))
            continue
        named = ", ".join(names[value] for value in held[:2])
        producer = held[0].node
        shown.append((named if producer is None else f"{producer.label}: {named}", buffer.bytes))
    gaps = found.bytes - sum(size for _, size in shown)
    if gaps > 0 and counts_all:
        shown.append(("gaps between buffers", gaps))
        shown.sort(key=lambda row: -row[1])
    measured = "arena fits" if counts_all else "feature maps fit"
    packed = (
        "" if least.allocate == "packed" else "use allocate='packed', which needs fewer bytes, "
    )
    larger = ""
    if further is not None:
        larger = (
            f"another {exact_bytes(further.bytes, up=True)} with {further.extra_time:+.1%} time, "
        )
    return BudgetError(
        f"no plan found whose {measured} into {exact_bytes(budget)}; the smallest plan found "
        f"needs {exact_bytes(found.bytes, up=True)}, with {found.extra_time:+.1%} "
        f"time, {larger}one without recomputation {format_bytes(plain_bytes, up=True)}, and the "
        f"lower bound is {exact_bytes(bound_bytes)}. "
        f"Raise the budget, {packed}or reduce the batch (accumulate=k preserves the batch of a "
        f"step). Largest buffers at the peak of this plan, {node}:\n{size_lines(shown, NAMED)}",
        found.bytes,
        bound_bytes,
        node,
        shown[:NAMED],
    )
