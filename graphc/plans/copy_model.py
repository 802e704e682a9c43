"""Model of a step with copies between device and host: its seconds, stalls and bytes.

The model has three clocks: the nodes of a step, the copies to the host, and those back. See
`graphc.plans.timeline`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphc.planner.host_link import HostLink
from graphc.plans.cost_model import CostModel
from graphc.plans.memory_plan import MemoryPlan
from graphc.plans.timeline import TimedCopy, timeline


@dataclass(frozen=True, slots=True)
class CopyModel:
    """The modeled step of a plan with copies between device and host.

    `seconds` are those of the step, of which `stall_seconds` pass while a node waits for a copy.
    `out_bytes` are copied to the host, `in_bytes` back. `host_bytes` is the peak of host memory.
    `copies` has the start and end of each copy, in the order of their nodes.
    """

    seconds: float
    stall_seconds: float
    out_bytes: int
    in_bytes: int
    host_bytes: int
    copies: tuple[TimedCopy, ...]

    @property
    def computing_seconds(self) -> float:
        """The seconds of the step without stalls of copies."""
        return self.seconds - self.stall_seconds


def model_copies(
    plan: MemoryPlan, costs: CostModel | None = None, link: HostLink | None = None
) -> CopyModel:
    """Return the modeled step of a plan, without launch overhead.

    `costs` gives the seconds of nodes, by default the roofline of the plan's device. `link` is the
    link to the host, by default that of the device.
    """
    found = timeline(plan, costs, link=link)
    return CopyModel(
        seconds=math.fsum(found.seconds),
        stall_seconds=math.fsum(copy.stall for copy in found.copies),
        out_bytes=sum(copy.bytes for copy in found.copies if copy.to == "host"),
        in_bytes=sum(copy.bytes for copy in found.copies if copy.to == "device"),
        host_bytes=plan.host_bytes,
        copies=found.copies,
    )
