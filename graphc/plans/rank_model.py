"""The modelled step of one of several ranks: when nodes run, and when exchanges do.

A rank has two clocks. Nodes run one after another in the plan's order; exchanges one after another
on the link, each from when its node is reached and the link is free; an arrival waits for its own.
What exchanges add to the step is what is not hidden behind nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphc.ir.graph import Node
from graphc.ir.links import links_of
from graphc.plans.cost_model import CostModel
from graphc.plans.exchange_bytes import room_bytes
from graphc.plans.exchange_times import Algorithm, exchange_seconds, least
from graphc.plans.memory_plan import MemoryPlan


@dataclass(frozen=True, slots=True)
class RankModel:
    """A step of a rank: seconds in all, of its nodes, and of its exchanges, what it sends, and the
    bytes beside its arena in which sums are made, where it is a CPU that makes them."""

    seconds: float
    computing_seconds: float
    exchange_seconds: float
    exchanges: int
    sent_bytes: int
    room_bytes: int

    @property
    def hidden(self) -> float:
        """The part of the exchanges' seconds in which nodes run."""
        if not self.exchange_seconds:
            return 1.0
        shown = self.seconds - self.computing_seconds
        return max(0.0, 1.0 - shown / self.exchange_seconds)


@dataclass(frozen=True, slots=True)
class Timeline:
    """Seconds of each node as the rank spends them, waiting for others included, and (node's
    number, begin, seconds) of each exchange."""

    seconds: tuple[float, ...]
    exchanges: tuple[tuple[int, float, float], ...]


def timeline(
    plan: MemoryPlan, costs: CostModel | None = None, algorithm: Algorithm = least
) -> Timeline:
    """When a rank does what by the cost model, without what launches take."""
    costs, links = costs or CostModel.of(plan), links_of(plan.device)
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
        elif node.op.awaits:
            took = max(done.get(node.inputs[0].node, 0.0) - now, 0.0)
        else:
            took = costs.seconds(node)
        now += took
        seconds.append(took)
    return Timeline(tuple(seconds), tuple(exchanges))


def model_rank(
    plan: MemoryPlan, costs: CostModel | None = None, algorithm: Algorithm = least
) -> RankModel:
    """The step of a rank by the cost model, without what launches take."""
    found, nodes = timeline(plan, costs, algorithm), plan.graph.nodes
    ranks = max((node.attributes.ranks for node in nodes if node.op.sends), default=1)
    pairs = zip(nodes, found.seconds, strict=True)
    return RankModel(
        seconds=math.fsum(found.seconds),
        computing_seconds=math.fsum(took for node, took in pairs if not node.op.awaits),
        exchange_seconds=math.fsum(length for *_, length in found.exchanges),
        exchanges=len(found.exchanges),
        sent_bytes=sum(node.op.sent_bytes(node) for node in nodes),
        room_bytes=room_bytes(ranks) if plan.device.kind == "cpu" else 0,
    )
