"""Recomputation for a capacity that grows while the link copies.

At the time t of a step of T seconds, a link has copied at most r t bytes to the host, and those
that it cannot fetch in the T - t seconds that are left must be on the device. So up to

    relief(t) = φ r min(t, T - t)

bytes may be missing, for a factor φ up to about 1. A schedule for a flat capacity recomputes too
little at both ends of a step and too much in the middle. Here, a step's workspace is enlarged by
the largest relief less its own, so that one capacity bounds live bytes less relief. A recomputed
step gets the relief of its first run. In a training step, a value is recomputed about as long
before the end as it is computed after the start, so both are alike.
"""

from __future__ import annotations

from dataclasses import replace

from graphc.planner.host_link import HostLink
from graphc.planner.problem import Problem


def relieved(steps: Problem, link: HostLink, part: float) -> tuple[Problem, int]:
    """Return steps whose workspaces include the missing relief, for the factor `part`, and the
    largest relief in bytes, by which a capacity is larger for them."""
    total = steps.cost_of(range(len(steps)))
    relief, now = [], 0.0
    for cost in steps.cost:
        middle = now + cost / 2
        relief.append(int(part * min(link.to_host * middle, link.to_device * (total - middle))))
        now += cost
    most = max(relief)
    workspace = (size + most - own for size, own in zip(steps.workspace, relief, strict=True))
    return replace(steps, workspace=tuple(workspace)), most
