"""Execution times of the nodes of a plan, estimated or measured."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.plans.cost_model import CostModel
from graphc.plans.memory_plan import MemoryPlan
from graphc.plans.rank_model import timeline
from graphc.runtime.profile import machine, step_times


@dataclass(frozen=True)
class Clock:
    """Seconds of a plan's nodes in order; `source` describes their origin.

    `exchanges` are collectives that overlap with nodes: (node index, begin, seconds) of each.
    """

    source: str
    seconds: tuple[float, ...]
    exchanges: tuple[tuple[int, float, float], ...] = ()


def estimated(plan: MemoryPlan, costs: CostModel | None = None) -> Clock:
    """Return the times of a cost model, by default the roofline of the plan's device."""
    costs = costs or CostModel.of(plan)
    found = timeline(plan, costs)
    return Clock(str(costs), found.seconds, found.exchanges)


def measured(plan: MemoryPlan, steps: int) -> Clock:
    """Return times measured in `steps` steps on this machine's CPU, with random inputs.

    The time of a node is its minimum over the steps. With several ranks, the times are those of the
    shortest step. Raises the errors of `runtime.profile.step_times`.
    """
    found = step_times(plan, steps)
    what = "the shortest" if found.exchanges else "each node's best"
    source = f"{what} of {steps} steps on {machine()}"
    return Clock(source, tuple(found.seconds), tuple(found.exchanges))
