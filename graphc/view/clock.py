"""Execution times of the nodes of a plan, estimated by a cost model."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.plans.cost_model import CostModel
from graphc.plans.memory_plan import MemoryPlan
from graphc.plans.timeline import TimedCopy, timeline


@dataclass(frozen=True)
class Clock:
    """The seconds of each node of a plan, in order.

    `source` describes their origin. `exchanges` has (node index, begin, seconds) of each collective
    that overlaps with nodes. `copies` has those between device and host.
    """

    source: str
    seconds: tuple[float, ...]
    exchanges: tuple[tuple[int, float, float], ...] = ()
    copies: tuple[TimedCopy, ...] = ()


def estimated(plan: MemoryPlan, costs: CostModel | None = None) -> Clock:
    """Return the times of a cost model, by default the roofline of the plan's device."""
    costs = costs or CostModel.of(plan)
    found = timeline(plan, costs)
    return Clock(str(costs), found.seconds, found.exchanges, found.copies)
