"""How a graph is rebuilt: front to back, with what stands for each of its values.

New nodes are made by `graphc.ir.builder`; nodes of a graph are put into another order by
`Graph.in_order`; every other pass goes through here.

A `Rewriter` goes along the nodes of a graph. For every node it knows what stands for the operands
by now, and is told what stands for the node. `rewrite` is the loop of most passes; a pass that
moves nodes, or makes several of one, holds a `Rewriter` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from graphc.ir.graph import Graph, Node, Value
from graphc.ir.op import REGISTRY
from graphc.ir.types import TensorType


class Rewriter:
    """A new graph in the making: its nodes, and what stands for the values and nodes of `graph`.

    `standing` says beforehand what stands for some values.

    Invariant: `nodes` holds what was put so far, in order, and no node of it reads a value that a
    later call of `stand` or `put` replaces.
    """

    def __init__(
        self, graph: Graph, standing: Mapping[Value, Value] = MappingProxyType({})
    ) -> None:
        self.graph = graph
        self.standing: dict[Value, Value] = dict(standing)
        self.stand_ins: dict[Node, Node] = {}
        """Node of `graph` → the node that was put for it."""
        self.nodes: dict[Node, None] = {}

    def value(self, value: Value) -> Value:
        """What stands for a value; the value itself as long as nothing else does."""
        return self.standing.get(value, value)

    def values(self, values: Iterable[Value]) -> tuple[Value, ...]:
        """What stands for each value."""
        return tuple(self.standing.get(value, value) for value in values)

    def original(self, node: Node) -> Node | None:
        """What stands for the node that this one is a copy of; None where it is no copy."""
        return node.copy_of and self.stand_ins.get(node.copy_of, node.copy_of)

    def moved(self, node: Node) -> Node:
        """The node on what stands for its operands, or itself where nothing changed."""
        inputs, original = self.values(node.inputs), self.original(node)
        if inputs == node.inputs and original is node.copy_of:
            return node
        return node.reading(inputs, original)

    def add(self, node: Node) -> Node:
        """Put a node that stands for none, behind those that are there. Returns it."""
        self.nodes[node] = None
        return node

    def put(self, node: Node, stand_in: Node) -> Node:
        """Put `stand_in` for `node`, its outputs for the node's in their order. Returns it."""
        self.stand_ins[node] = stand_in
        if stand_in is not node:
            self.stand(node.outputs, stand_in.outputs)
        return self.add(stand_in)

    def stand(self, values: Sequence[Value], stand_ins: Sequence[Value]) -> None:
        """From now on readers of each of `values` read the one at its place in `stand_ins`."""
        self.standing.update(zip(values, stand_ins, strict=True))

    @property
    def outputs(self) -> dict[str, Value]:
        """What stands for the outputs of the graph."""
        return {name: self.value(value) for name, value in self.graph.outputs.items()}

    @property
    def kept(self) -> frozenset[Value]:
        """What stands for the values that are never dropped."""
        return frozenset(self.values(self.graph.kept))

    def result(self) -> Graph:
        """The graph of all nodes that were put, with what stands for the outputs."""
        return Graph(tuple(self.nodes), self.outputs, self.kept)


def rewrite(graph: Graph, replacement: Callable[[Node], Node | Value]) -> Graph:
    """Rebuild a graph front to back.

    `replacement(node)` gets each node on its rewritten inputs, and returns what stands for it: the
    node itself, a node seen before, or, for a node with one output, a value.
    """
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        found = replacement(rewriter.moved(node))
        if isinstance(found, Value):
            rewriter.stand((node.output,), (found,))
        else:
            rewriter.put(node, found)
    return rewriter.result()


def instead(
    node: Node,
    op: str,
    inputs: Sequence[Value],
    attributes: Any,
    output_types: Sequence[TensorType],
) -> Node:
    """A node of another op at the place of `node`: of its serial number, scope, phase, segment."""
    return replace(
        node,
        op=REGISTRY[op],
        inputs=tuple(inputs),
        attributes=attributes,
        output_types=tuple(output_types),
        copy_of=None,
        level=0,
    )
