"""Dead code elimination."""

from __future__ import annotations

from dataclasses import replace

from graphc.ir.graph import Graph, Value


def remove_dead_code(graph: Graph) -> Graph:
    """Remove nodes on which neither an output of the graph nor an update of a state depends."""
    needed: set[Value] = set(graph.outputs.values())
    nodes = []
    for node in reversed(graph.nodes):
        if node.op.has_effect or any(value in needed for value in node.outputs):
            nodes.append(node)
            needed.update(node.inputs)
    kept = frozenset(value for value in graph.kept if value in needed)
    return replace(graph, nodes=tuple(reversed(nodes)), kept=kept)
