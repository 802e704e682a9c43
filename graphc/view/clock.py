"""How long each node of a plan takes, and by what account: estimated, or measured."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.plans.cost_model import CostModel
from graphc.plans.memory_plan import MemoryPlan
from graphc.plans.rank_model import timeline
from graphc.runtime.profile import machine, step_times


@dataclass(frozen=True)
class Clock:
    """Seconds of a plan's nodes in their order; `source` says where they come from.

    `exchanges` with other ranks run beside them: (node's number, begin, seconds) of each.
    """

    source: str
    seconds: tuple[float, ...]
    exchanges: tuple[tuple[int, float, float], ...] = ()


def estimated(plan: MemoryPlan, costs: CostModel | None = None) -> Clock:
    """What a cost model gives each node, by default the roofline of the plan's device."""
    costs = costs or CostModel.of(plan)
    found = timeline(plan, costs)
    return Clock(str(costs), found.seconds, found.exchanges)


def measured(plan: MemoryPlan, steps: int) -> Clock:
    """Each node's best of some steps, run here on the CPU with random inputs, or of several ranks
    the shortest step.

    Raises as `runtime.profile.step_times` does.
    """
    found = step_times(plan, steps)
    what = "the shortest" if found.exchanges else "each node's best"
    source = f"{what} of {steps} steps on {machine()}"
    return Clock(source, tuple(found.seconds), tuple(found.exchanges))
