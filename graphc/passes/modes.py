"""What differs between a training step and inference, and what makes random ops repeatable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphc.ir import builder
from graphc.ir.graph import Graph, Node, Value
from graphc.ir.op import Op
from graphc.ops.random import Dropout
from graphc.ops.update import Increment
from graphc.passes.micro_batches import MicroBatch


def number_streams(graph: Graph) -> Graph:
    """Give random ops the numbers 0, 1, ... in their order, so that equal networks draw equal bits.

    Nodes that share a stream, like a dropout and its gradient, go on sharing it.
    """
    numbers: dict[int, int] = {}

    def replacement(node: Node) -> Node:
        if not isinstance(node.op, Dropout):
            return node
        stream = numbers.setdefault(node.attributes.stream, len(numbers))
        return replace(node, attributes=replace(node.attributes, stream=stream))

    return builder.rewrite(graph, replacement)


def to_inference(graph: Graph) -> Graph:
    """Replace nodes that act otherwise outside training: batch norms, dropout."""
    if all(type(node.op).inference is Op.inference for node in graph.nodes):
        return graph
    mapped: dict[Value, Value] = {}
    for node in graph.nodes:
        inputs = tuple(mapped.get(value, value) for value in node.inputs)
        fresh = builder.copy(node, inputs)
        mapped.update(zip(node.outputs, fresh.outputs, strict=True))
        with builder.in_phase("forward", node.scope):
            other = node.op.inference(fresh)
        if other is not None:
            mapped[node.outputs[0]] = other
    for value in graph.kept:
        builder.keep(mapped[value])
    outputs = {name: mapped.get(value, value) for name, value in graph.outputs.items()}
    return builder.trace(outputs)


def training_effects(graph: Graph, batches: Sequence[MicroBatch]) -> list[Node]:
    """Updates of states that belong to forward nodes, such as running statistics."""
    effects: list[Node] = []
    for node in graph.nodes:
        with builder.in_phase("update", node.scope):
            effects += node.op.effects([batch.nodes[node] for batch in batches])
    return effects


def count_step() -> Node:
    """The step counter goes up."""
    with builder.in_phase("update"):
        return builder.apply(Increment, builder.STEP)
