"""Common subexpression elimination: equal computations run once."""

from __future__ import annotations

from typing import Any

from graphc.ir.graph import Graph, Node
from graphc.ir.rewrite import rewrite
from graphc.ops.float8 import casts_a_parameter


def share_common_subexpressions(graph: Graph) -> Graph:
    """Replace a node by an earlier one with the same op, attributes, operands and mirror count.

    Recomputed copies are not merged with their originals. Tensors filled with one number are not
    merged, since keeping one in memory costs more than filling another. In graphs with gradients,
    narrow copies of parameters are not merged either, since each copy would stay in memory for all
    micro-batches.
    """
    has_gradients = any(node.phase == "gradient" for node in graph.nodes)
    seen: dict[tuple[Any, ...], Node] = {}

    def replacement(node: Node) -> Node:
        if node.op.has_effect or not node.inputs or node.phase == "mirror":
            return node
        if has_gradients and casts_a_parameter(node):
            return node
        key = (node.op.name, node.attributes, node.inputs, node.mirror, node.phase)
        return seen.setdefault(key, node)

    return rewrite(graph, replacement)
