"""Fusion of activations into linear layers: epilogues of a GPU's BLAS.

The operand of the activation is then never written, and needs no bytes. A CPU's BLAS has no such
epilogues, so only plans for a GPU use this pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from graphc.ir.graph import Graph, Node, Value
from graphc.ir.rewrite import rewrite
from graphc.ops.matmul import ACTIVATIONS, Linear
from graphc.ops.shape import Reshape


def fuse_epilogues(graph: Graph) -> Graph:
    """Merge activations into the linear nodes that produce their operand.

    The activation must be the only use of its operand, directly or through reshapes. So gelu stays
    a separate op if there is a gradient, because that gradient reads the operand of gelu. Both
    nodes must have the same phase, mirror count and segment. The pass runs for every plan, before
    recomputation is chosen, so that all plans compute the same bits.
    """
    names = {op.name: name for name, op in ACTIVATIONS.items()}
    taken: set[int] = set()
    given: dict[int, str] = {}
    for node in graph.nodes:
        if node.op.name in names:
            product = _product(graph, node)
            if product is not None:
                given[product.serial] = names[node.op.name]
                taken.add(node.serial)

    def replacement(node: Node) -> Node | Value:
        if node.serial in taken:
            return node.inputs[0]
        if node.serial in given:
            fused = replace(node.attributes, activation=given[node.serial])
            return replace(node, attributes=fused)
        return node

    return rewrite(graph, replacement) if given else graph


def _product(graph: Graph, activation: Node) -> Node | None:
    """Return the linear node that can apply `activation` as its epilogue; None if there is none."""
    for value in _sources(activation):
        if value in graph.visible or len(graph.uses[value]) > 1 or value.node is None:
            return None
        if isinstance(value.node.op, Linear):
            return value.node if _fits(value.node, activation) else None
    return None


def _sources(activation: Node) -> Iterator[Value]:
    """Yield the operand of an activation, then the operand of each reshape that produces it."""
    value = activation.inputs[0]
    yield value
    while value.node is not None and isinstance(value.node.op, Reshape):
        value = value.node.inputs[0]
        yield value


def _fits(product: Node, activation: Node) -> bool:
    """Return True if a linear node can take `activation` as its epilogue.

    It must not have an activation yet, and both nodes must have the same phase, mirror count and
    segment.
    """
    return (
        product.attributes.activation == "none"
        and product.copy_of is None
        and activation.copy_of is None
        and (product.phase, product.mirror, product.segment)
        == (activation.phase, activation.mirror, activation.segment)
    )
