"""Rules of collectives: calls of a communication library, or copies if there is one rank."""

from __future__ import annotations

from graphc.codegen.elementwise.ops import copied
from graphc.codegen.node_calls import Call, Exchange, NodeCalls
from graphc.codegen.rules import kernels_of
from graphc.codegen.text.operands import Places
from graphc.ir.graph import Node, Value
from graphc.ops.collective import Collective


@kernels_of(Collective)
def _begins(node: Node, places: Places) -> NodeCalls:
    (x,), y, attributes = node.inputs, node.output, node.attributes
    if attributes.ranks == 1:
        return NodeCalls(_copy(x, y, places))
    root = getattr(attributes, "root", 0)
    return NodeCalls((Exchange(node.op.name, attributes.ranks, root, x, y),))


@kernels_of("arrival")
def _ends(node: Node, places: Places) -> NodeCalls:
    """Return a copy of the input to the output, or nothing if both have the same place. The plan's
    order makes later nodes wait for the collective's end."""
    return NodeCalls(_copy(node.inputs[0], node.output, places))


def _copy(x: Value, y: Value, places: Places) -> tuple[Call, ...]:
    return () if places[x].address == places[y].address else (copied(x, y, places),)
