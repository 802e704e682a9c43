"""Fig. 4: a segment as one bulk operator, whose gradient runs a sub-graph.

Seen from outside, a segment reads what enters it and makes what leaves it; its gradient reads the
same again and the gradients of what left. Inside, both are graphs like any other, and are planned
by the same passes.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphc.ir.graph import Graph, Input, Phase, Value
from graphc.ir.rewrite import Rewriter


@dataclass(frozen=True, slots=True)
class BulkOperator:
    """A user's segment as one operator.

    `forward` is what runs first, `gradient` what the backward pass runs: copies of what is computed
    again, then the gradient itself. Both take what comes from outside as inputs, named like the
    value in the whole graph, and give what is read outside as outputs.
    """

    name: str
    forward: Graph
    gradient: Graph


def bulk_operators(graph: Graph) -> list[BulkOperator]:
    """The segments of a training graph, with or without copies, in the order of their forward."""
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
    """The nodes of a segment's phases, in order, as a graph of their own."""
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
