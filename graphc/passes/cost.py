"""Seconds from flops and bytes: the roofline of a device profile."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.ir.graph import Graph, Node
from graphc.ir.plan import Recomputation


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """Peak arithmetic and memory rates."""

    flops_per_second: float
    bytes_per_second: float

    def seconds(self, node: Node) -> float:
        """The larger of computing time and moving time."""
        cost = node.op.cost(node)
        moved = cost.bytes_read + cost.bytes_written
        return max(cost.flops / self.flops_per_second, moved / self.bytes_per_second)


CPU = DeviceProfile(flops_per_second=1e11, bytes_per_second=2e10)
"""Two cores of a current server, to the order of magnitude."""


def recomputation(graph: Graph, profile: DeviceProfile = CPU) -> Recomputation:
    """What the mirrored copies of a graph add to the step without them."""
    flops = extra_flops = 0
    seconds = extra_seconds = 0.0
    copies = 0
    for node in graph.nodes:
        node_flops, node_seconds = node.op.cost(node).flops, profile.seconds(node)
        if node.phase == "mirror":
            copies += 1
            extra_flops += node_flops
            extra_seconds += node_seconds
        else:
            flops += node_flops
            seconds += node_seconds
    return Recomputation(copies, extra_flops / max(flops, 1), extra_seconds / (seconds or 1.0))
