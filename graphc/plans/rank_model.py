"""Model of a step on one of several ranks, from its timeline of nodes and collectives."""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphc.plans.cost_model import CostModel
from graphc.plans.exchange_bytes import room_bytes
from graphc.plans.exchange_times import Algorithm, least
from graphc.plans.memory_plan import MemoryPlan
from graphc.plans.timeline import timeline


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


def model_rank(
    plan: MemoryPlan, costs: CostModel | None = None, algorithm: Algorithm = least
) -> RankModel:
    """Return the modeled step of a rank, without launch overhead.

    Stalls of copies between device and host count as seconds of nodes.
    """
    found, nodes = timeline(plan, costs, algorithm), plan.graph.nodes
    ranks = max((node.attributes.ranks for node in nodes if node.op.sends), default=1)
    pairs = zip(nodes, found.seconds, strict=True)
    return RankModel(
        seconds=math.fsum(found.seconds),
        computing_seconds=math.fsum(took for n, took in pairs if not n.op.awaits or n.host_copy),
        exchange_seconds=math.fsum(length for *_, length in found.exchanges),
        exchanges=len(found.exchanges),
        sent_bytes=sum(node.op.sent_bytes(node) for node in nodes),
        room_bytes=room_bytes(ranks) if plan.device.kind == "cpu" else 0,
    )
