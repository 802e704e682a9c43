"""How long each node of a plan takes, and by what account: estimated, or measured."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.plans.cost_model import CostModel
from graphc.plans.memory_plan import MemoryPlan
from graphc.runtime.profile import machine, node_seconds


@dataclass(frozen=True)
class Clock:
    """Seconds of a plan's nodes in their order; `source` says where they come from."""

    source: str
    seconds: tuple[float, ...]


def estimated(plan: MemoryPlan, costs: CostModel | None = None) -> Clock:
    """What a cost model gives each node, by default the roofline of the plan's device."""
    costs = costs or CostModel.of(plan)
    return Clock(str(costs), tuple(costs.seconds(node) for node in plan.graph.nodes))


def measured(plan: MemoryPlan, steps: int) -> Clock:
    """Each node's best of some steps, run here on the CPU with random inputs.

    Raises as `runtime.profile.node_seconds` does.
    """
    return Clock(
        f"each node's best of {steps} steps on {machine()}", tuple(node_seconds(plan, steps))
    )
