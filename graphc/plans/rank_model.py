"""The modelled step of one of several ranks: when nodes run, and when exchanges do.

A rank has two clocks. Nodes run one after another in the plan's order; exchanges one after another
on the link, each from when its node is reached and the link is free; an arrival waits for its own.
What exchanges add to the step is what is not hidden behind nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphc.ir.graph import Node
from graphc.ir.links import links_of
from graphc.plans.cost_model import CostModel
from graphc.plans.exchange_times import Algorithm, exchange_seconds, least
from graphc.plans.memory_plan import MemoryPlan


@dataclass(frozen=True, slots=True)
class RankModel:
    """A step of a rank: seconds in all, of its nodes, and of its exchanges, and what it sends."""

    seconds: float
    computing_seconds: float
    exchange_seconds: float
    exchanges: int
    sent_bytes: int

    @property
    def hidden(self) -> float:
        """The part of the exchanges' seconds in which nodes run."""
        if not self.exchange_seconds:
            return 1.0
        shown = self.seconds - self.computing_seconds
        return max(0.0, 1.0 - shown / self.exchange_seconds)


def model_rank(
    plan: MemoryPlan, costs: CostModel | None = None, algorithm: Algorithm = least
) -> RankModel:
    """The step of a rank by the cost model, without what launches take."""
    costs, links = costs or CostModel.of(plan), links_of(plan.device)
    now = computing = exchanging = free = 0.0
    count = sent = 0
    done: dict[Node | None, float] = {}
    for node in plan.graph.nodes:
        if node.op.sends:
            took = exchange_seconds(node, links, algorithm)
            done[node] = free = max(now, free) + took
            exchanging, count, sent = exchanging + took, count + 1, sent + node.op.sent_bytes(node)
            continue
        if node.op.awaits:
            now = max(now, done.get(node.inputs[0].node, 0.0))
        took = costs.seconds(node)
        now, computing = now + took, computing + took
    return RankModel(max(now, free), computing, exchanging, count, sent)
