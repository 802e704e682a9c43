"""Identities: nodes that compute what is already there are removed."""

from __future__ import annotations

from graphc.ir.graph import Graph, Node, Value
from graphc.ir.rewrite import rewrite
from graphc.ops.elementwise import Neg, Scale, Shift
from graphc.ops.shape import Reshape, Transpose


def simplify(graph: Graph) -> Graph:
    """Remove identities that change no bit of any result.

    x·1, x+0, -(-x), a reshape to the shape that is there or that a reshape before undoes, and two
    transposes that cancel.
    """
    return rewrite(graph, _simpler)


def _simpler(node: Node) -> Node | Value:
    """The value that a node is equal to in every bit, or the node itself."""
    match node.op:
        case Scale() if node.attributes.value == 1.0:
            return node.inputs[0]
        case Shift() if node.attributes.value == 0.0 and _is_negative_zero_safe(node):
            return node.inputs[0]
        case Neg() | Reshape() | Transpose():
            return _undone(node)
    return node


def _is_negative_zero_safe(node: Node) -> bool:
    """Whether x + 0 is x in every bit: -0.0 + 0.0 is 0.0, so this holds for integers only."""
    return node.output.type.dtype.kind == "int"


def _undone(node: Node) -> Node | Value:
    """What a node's value is already: its operand where the node changes nothing, the operand of
    its operand where the two ops cancel; else the node itself."""
    source = node.inputs[0]
    if isinstance(node.op, Reshape) and node.output.shape == source.shape:
        return source
    if source.node is None or source.node.op is not node.op:
        return node
    original = source.node.inputs[0]
    if isinstance(node.op, Transpose):
        inner, outer = source.node.attributes.permutation, node.attributes.permutation
        cancels = [inner[axis] for axis in outer] == list(range(len(outer)))
    else:
        cancels = node.output.shape == original.shape
    return original if cancels else node
