"""Removal of nodes that compute an existing value, such as x·1 or two cancelling transposes."""

from __future__ import annotations

from graphc.ir.graph import Graph, Node, Value
from graphc.ir.rewrite import rewrite
from graphc.ops.elementwise import Neg, Scale, Shift
from graphc.ops.shape import Reshape, Transpose


def simplify(graph: Graph) -> Graph:
    """Replace nodes by existing values where this changes no bit of any result.

    Removes x·1, x+0, -(-x), a reshape to the same shape or back to the shape before an earlier
    reshape, and two transposes that cancel.
    """
    return rewrite(graph, _simpler)


def _simpler(node: Node) -> Node | Value:
    """Return an existing value with the same bits as the node's result, or the node itself."""
    match node.op:
        case Scale() if node.attributes.value == 1.0:
            return node.inputs[0]
        case Shift() if node.attributes.value == 0.0 and _is_negative_zero_safe(node):
            return node.inputs[0]
        case Neg() | Reshape() | Transpose():
            return _undone(node)
    return node


def _is_negative_zero_safe(node: Node) -> bool:
    """Return True if x + 0 equals x in every bit.

    It does for integers, but not for floats: -0.0 + 0.0 is 0.0.
    """
    return node.output.type.dtype.kind == "int"


def _undone(node: Node) -> Node | Value:
    """Return the existing value that a negation, reshape or transpose results in, else the node.

    It is the operand if the node changes nothing, and the operand's operand if two ops cancel.
    """
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
