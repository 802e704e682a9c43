"""Segments as bulk operators, whose gradients are subgraphs (Chen et al., 2016, Fig. 4).

From outside, a segment is an operator with inputs and outputs. Its gradient is another operator,
which reads the same inputs and the gradients of the outputs. Both operators consist of ordinary
graphs, to which the usual passes apply.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphc.ir.graph import Graph, Input, Phase, Value
from graphc.ir.rewrite import Rewriter


@dataclass(frozen=True, slots=True)
class BulkOperator:
    """A user's segment as one operator.

    `forward` is the forward graph. `gradient` runs in the backward pass: recomputed copies, then
    the gradient itself. The inputs of each graph are values computed outside of it, named as in the
    whole graph. Its outputs are the values that nodes outside of it use.
    """

    name: str
    forward: Graph
    gradient: Graph


def bulk_operators(graph: Graph) -> list[BulkOperator]:
    """Return the segments of a training graph, with or without copies, in forward order."""
    names = dict.fromkeys(
        node.segment for node in graph.nodes if node.phase == "forward" and node.segment
    )
    return [
        BulkOperator(
            name,
            _inside(graph, name, "forward"),
            _inside(graph, name, "mirror", "gradient"),
        )
        for name in names
    ]


def _inside(graph: Graph, segment: str, *phases: Phase) -> Graph:
    """Return the nodes of a segment with these phases, in order, as a separate graph."""
    belonging = {n for n in graph.nodes if n.segment == segment and n.phase in phases}
    rewriter = Rewriter(graph)
    for node in (node for node in graph.nodes if node in belonging):
        for value in node.inputs:
            is_made = value.node is None or value.node in rewriter.stand_ins
            if not is_made and value not in rewriter.standing:
                rewriter.stand((value,), (Input(value.type, name=_name(graph, value)),))
        rewriter.put(node, rewriter.moved(node))
    made = {value for node in rewriter.stand_ins for value in node.outputs}
    read = {v for node in graph.nodes if node not in belonging for v in node.inputs}
    leaving = made & (read | set(graph.outputs.values()))
    ordered = sorted(leaving, key=lambda v: (graph.position[v.producer], v.index))
    outputs = {_name(graph, value): rewriter.value(value) for value in ordered}
    return Graph(tuple(rewriter.nodes), outputs)


def _name(graph: Graph, value: Value) -> str:
    return "v" + graph.names[value].lstrip("%").replace(".", "_")
