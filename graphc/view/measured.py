"""Execution times of the nodes of a plan, measured on this machine."""

from __future__ import annotations

from graphc.plans.memory_plan import MemoryPlan
from graphc.runtime.profile import machine, step_times
from graphc.view.clock import Clock


def measured(plan: MemoryPlan, steps: int) -> Clock:
    """Return times measured in `steps` steps on this machine's CPU, with random inputs.

    The time of a node is its minimum over the steps. With several ranks or copies to the host, the
    times are those of the shortest step. Raises the errors of `runtime.profile.step_times`.
    """
    found = step_times(plan, steps)
    what = "the shortest" if found.exchanges or found.copies else "each node's best"
    source = f"{what} of {steps} steps on {machine()}"
    return Clock(source, tuple(found.seconds), tuple(found.exchanges), tuple(found.copies))
