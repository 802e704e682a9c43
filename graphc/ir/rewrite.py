"""Graph rewriting: a graph is rebuilt front to back, with a replacement for each value.

All passes use this module, except those that only reorder nodes (`Graph.in_order`).
`graphc.ir.builder` creates new nodes.

A pass visits the nodes of a graph in order. A `Rewriter` replaces the operands of a node, and the
pass supplies a replacement of the node. `rewrite` is the loop of most passes. A pass that moves
nodes, or creates several for one, uses a `Rewriter` directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from graphc.errors import GraphError, quoted
from graphc.ir.graph import Graph, Node, Value
from graphc.ir.op import REGISTRY
from graphc.ir.types import TensorType


class Rewriter:
    """A new graph under construction: its nodes, and replacements of values and nodes of `graph`.

    `standing` has initial replacements of some values.

    Invariant: `nodes` has the nodes added so far, in order. None of them reads a value that a later
    call of `stand` or `put` replaces.
    """

    def __init__(
        self, graph: Graph, standing: Mapping[Value, Value] = MappingProxyType({})
    ) -> None:
        self.graph = graph
        self.standing: dict[Value, Value] = dict(standing)
        self.stand_ins: dict[Node, Node] = {}
        """Node of `graph` → its replacement."""
        self.nodes: dict[Node, None] = {}

    def value(self, value: Value) -> Value:
        """Return the replacement of a value, or the value itself if it has none."""
        return self.standing.get(value, value)

    def values(self, values: Iterable[Value]) -> tuple[Value, ...]:
        """Return the replacement of each value."""
        return tuple(self.standing.get(value, value) for value in values)

    def original(self, node: Node) -> Node | None:
        """Return the replacement of the node of which `node` is a copy.

        None if it is not a copy.
        """
        return node.copy_of and self.stand_ins.get(node.copy_of, node.copy_of)

    def moved(self, node: Node) -> Node:
        """Return the node with replaced operands, or the node itself if nothing changed."""
        inputs, original = self.values(node.inputs), self.original(node)
        if inputs == node.inputs and original is node.copy_of:
            return node
        return node.reading(inputs, original)

    def add(self, node: Node) -> Node:
        """Append a node that does not replace another one. Return it."""
        self.nodes[node] = None
        return node

    def put(self, node: Node, stand_in: Node) -> Node:
        """Append `stand_in`, which replaces `node`; its outputs replace those of `node`.

        Return it.
        """
        self.stand_ins[node] = stand_in
        if stand_in is not node:
            self.stand(node.outputs, stand_in.outputs)
        return self.add(stand_in)

    def stand(self, values: Sequence[Value], stand_ins: Sequence[Value]) -> None:
        """Replace each of `values` by the value at the same position in `stand_ins` from now on."""
        self.standing.update(zip(values, stand_ins, strict=True))

    @property
    def outputs(self) -> dict[str, Value]:
        """The replacements of the graph's outputs."""
        return {name: self.value(value) for name, value in self.graph.outputs.items()}

    @property
    def kept(self) -> frozenset[Value]:
        """The replacements of the values that are never evicted."""
        return frozenset(self.values(self.graph.kept))

    def result(self) -> Graph:
        """Return the graph of all added nodes, with the replacements of the outputs."""
        return Graph(tuple(self.nodes), self.outputs, self.kept)


def rewrite(graph: Graph, replacement: Callable[[Node], Node | Value]) -> Graph:
    """Rebuild a graph front to back.

    `replacement` is called with each node, after its inputs were replaced. It returns the same
    node, another node to use instead or, for a node with one output, a value to use instead.
    """
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        found: object = replacement(rewriter.moved(node))
        if isinstance(found, Value):
            rewriter.stand((node.output,), (found,))
        elif isinstance(found, Node):
            rewriter.put(node, found)
        else:
            rule = getattr(replacement, "__qualname__", replacement)
            raise GraphError(
                f"{rule} must return a node or a value for {node.label}, got {quoted(found)}; "
                "return the node itself to keep it"
            )
    return rewriter.result()


def instead(
    node: Node,
    op: str,
    inputs: Sequence[Value],
    attributes: Any,
    output_types: Sequence[TensorType],
) -> Node:
    """Return a node of another op with the serial number, scope, phase and segment of `node`."""
    return replace(
        node,
        op=REGISTRY[op],
        inputs=tuple(inputs),
        attributes=attributes,
        output_types=tuple(output_types),
        copy_of=None,
        level=0,
    )
