"""Timeline of a modeled step: nodes, collectives, and copies between device and host.

Each resource has a clock: the device, the link to other ranks, and the link to the host in each
direction. Nodes run one after another in the plan's order. Collectives and copies run one after
another on their link; each starts once its node is reached and the link is free. The node that
waits for one stalls until it is done. So they add only the time during which no other node runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from graphc.devices.links import links_of
from graphc.ir.graph import Node
from graphc.ir.types import Layout, contiguous_strides, span_bytes
from graphc.planner.host_link import HostLink
from graphc.plans.cost_model import CostModel
from graphc.plans.exchange_times import Algorithm, exchange_seconds, least
from graphc.plans.memory_plan import MemoryPlan


@dataclass(frozen=True, slots=True)
class TimedCopy:
    """A copy between device and host: the number of its node, its bytes, and its times in seconds.

    `stall` has the seconds that the step waits for its end.
    """

    node: int
    to: Literal["host", "device"]
    bytes: int
    start: float
    end: float
    stall: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The seconds of each node of a plan in order, and the work that overlaps with nodes.

    The seconds of a node that waits are those of the wait. `exchanges` has the node number, the
    start and the seconds of each collective. `copies` has the copies between device and host.
    """

    seconds: tuple[float, ...]
    exchanges: tuple[tuple[int, float, float], ...]
    copies: tuple[TimedCopy, ...] = ()


def timeline(
    plan: MemoryPlan,
    costs: CostModel | None = None,
    algorithm: Algorithm = least,
    link: HostLink | None = None,
) -> Timeline:
    """Model a step by the cost model, without launch overhead.

    `link` is the link to the host, by default that of the plan's device.
    """
    costs, links = costs or CostModel.of(plan), links_of(plan.device)
    copying = _Copying(plan, link or costs.host_link)
    now = free = 0.0
    seconds: list[float] = []
    exchanges: list[tuple[int, float, float]] = []
    done: dict[Node | None, float] = {}
    for step, node in enumerate(plan.graph.nodes):
        took = 0.0
        if node.op.sends:
            begin, length = max(now, free), exchange_seconds(node, links, algorithm)
            done[node] = free = begin + length
            exchanges.append((step, begin, length))
        elif node.op.copies_to:
            copying.begin(step, node, now)
        elif node.host_copy is not None:
            took = copying.wait(node.host_copy, now)
        elif node.op.awaits:
            took = max(done.get(node.inputs[0].node, 0.0) - now, 0.0)
        else:
            took = costs.seconds(node)
        now += took
        seconds.append(took)
    return Timeline(tuple(seconds), tuple(exchanges), tuple(copying.found.values()))


class _Copying:
    """The clocks of the link to the host, and the copies so far."""

    def __init__(self, plan: MemoryPlan, link: HostLink) -> None:
        self.plan, self.link = plan, link
        self.free = {"host": 0.0, "device": 0.0}
        self.found: dict[Node, TimedCopy] = {}

    def begin(self, step: int, node: Node, now: float) -> None:
        """Start a copy, once the link is free."""
        to: Literal["host", "device"] = "host" if node.op.copies_to == "host" else "device"
        size = copied_bytes(self.plan, node)
        seconds = self.link.out_seconds(size) if to == "host" else self.link.in_seconds(size)
        start = max(now, self.free[to])
        self.free |= dict.fromkeys((to,) if self.link.both_ways else self.free, start + seconds)
        self.found[node] = TimedCopy(step, to, size, start, start + seconds, 0.0)

    def wait(self, node: Node, now: float) -> float:
        """Return the seconds from `now` until a copy is done, and record them as its stall."""
        copy = self.found[node]
        stall = max(copy.end - now, 0.0)
        self.found[node] = TimedCopy(copy.node, copy.to, copy.bytes, copy.start, copy.end, stall)
        return stall


def copied_bytes(plan: MemoryPlan, node: Node) -> int:
    """Return the bytes that a copy moves: those from the first to the last element."""
    type, strides = node.output.type, plan.placements[node.output].strides
    return span_bytes(type, Layout(0, strides or contiguous_strides(type)))
