"""Dead code elimination."""

from __future__ import annotations

from dataclasses import replace

from graphc.ir.graph import Graph, Value


def remove_dead_code(graph: Graph) -> Graph:
    """Remove nodes whose outputs reach no graph output and no update of a state."""
    needed: set[Value] = set(graph.outputs.values())
    nodes = []
    for node in reversed(graph.nodes):
        if node.op.has_effect or any(value in needed for value in node.outputs):
            nodes.append(node)
            needed.update(node.inputs)
    kept = frozenset(value for value in graph.kept if value in needed)
    return replace(graph, nodes=tuple(reversed(nodes)), kept=kept)
