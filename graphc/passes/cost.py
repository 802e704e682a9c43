"""Seconds from flops and bytes: the roofline of a device."""

from __future__ import annotations

from graphc.ir.device import CPU, Device
from graphc.ir.graph import Graph, Node
from graphc.ir.plan import Recomputation


def seconds(node: Node, device: Device) -> float:
    """The larger of computing time and moving time."""
    cost = node.op.cost(node)
    moved = cost.bytes_read + cost.bytes_written
    return max(cost.flops / device.flops_per_second, moved / device.bytes_per_second)


def recomputation(graph: Graph, device: Device = CPU) -> Recomputation:
    """What the mirrored copies of a graph add to the step without them."""
    flops = extra_flops = 0
    total_seconds = extra_seconds = 0.0
    copies = 0
    for node in graph.nodes:
        node_flops, node_seconds = node.op.cost(node).flops, seconds(node, device)
        if node.phase == "mirror":
            copies += 1
            extra_flops += node_flops
            extra_seconds += node_seconds
        else:
            flops += node_flops
            total_seconds += node_seconds
    return Recomputation(
        copies, extra_flops / max(flops, 1), extra_seconds / (total_seconds or 1.0)
    )
