"""Fig. 4: a segment as one bulk operator, whose gradient runs a sub-graph.

Seen from outside, a segment reads what enters it and makes what leaves it; its gradient reads the
same again and the gradients of what left. Inside, both are graphs like any other, and are planned
by the same passes.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphc.ir.graph import Graph, Input, Node, Phase, Value


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
    nodes: list[Node] = []
    standing: dict[Value, Value] = {}
    for node in (node for node in graph.nodes if node in belonging):
        inputs = tuple(_entering(graph, value, standing) for value in node.inputs)
        fresh = node.reading(inputs)
        standing.update(zip(node.outputs, fresh.outputs, strict=True))
        nodes.append(fresh)
    made = {value for value, stand in standing.items() if stand.node is not None}
    read = {v for node in graph.nodes if node not in belonging for v in node.inputs}
    leaving = made & (read | set(graph.outputs.values()))
    ordered = sorted(leaving, key=lambda v: (graph.position[v.producer], v.index))
    return Graph(tuple(nodes), {_name(graph, value): standing[value] for value in ordered})


def _entering(graph: Graph, value: Value, standing: dict[Value, Value]) -> Value:
    """What stands for a value inside: itself for sources, an input for what others make."""
    if value.node is not None and value not in standing:
        standing[value] = Input(value.type, name=_name(graph, value))
    return standing.get(value, value)


def _name(graph: Graph, value: Value) -> str:
    return "v" + graph.names[value].lstrip("%").replace(".", "_")
