"""Model of a step on one of several ranks: a timeline of nodes and collectives.

A rank has two clocks. Nodes run one after another in the plan's order. Collectives run one after
another on the link; each starts once its node is reached and the link is free. The node that ends a
collective waits for its arrival. Collectives add only the time during which no other node runs.
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
    """The modeled step of one of several ranks.

    Fields are the seconds of the step, of its nodes and of its collectives, the number of
    collectives, and the bytes sent. `room_bytes` is the workspace outside the arena in which a CPU
    computes sums.
    """

    seconds: float
    computing_seconds: float
    exchange_seconds: float
    exchanges: int
    sent_bytes: int
    room_bytes: int

    @property
    def hidden(self) -> float:
        """The fraction of the collectives' seconds that overlaps with nodes."""
        if not self.exchange_seconds:
            return 1.0
        shown = self.seconds - self.computing_seconds
        return max(0.0, 1.0 - shown / self.exchange_seconds)


@dataclass(frozen=True, slots=True)
class Timeline:
    """The seconds of each node of a plan in order, and the collectives that overlap with them.

    The seconds of a node that waits for a collective are those of the wait. `exchanges` has the
    node number, the start and the seconds of each collective.
    """

    seconds: tuple[float, ...]
    exchanges: tuple[tuple[int, float, float], ...]


def timeline(
    plan: MemoryPlan, costs: CostModel | None = None, algorithm: Algorithm = least
) -> Timeline:
    """Model a step of a rank by the cost model, without launch overhead."""
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
    """Return the modeled step of a rank, without launch overhead."""
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
