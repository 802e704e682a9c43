"""Scaled products as products of a scaled operand, which is smaller.

Attention divides the scores of all pairs of positions by the root of a head's width. To scale the
queries instead takes the bytes of the queries, and so does the gradient.
"""

from __future__ import annotations

from graphc.ir.graph import Graph, Node
from graphc.ir.op import REGISTRY
from graphc.ir.rewrite import Rewriter, instead
from graphc.ops.elementwise import Scale
from graphc.ops.matmul import Matmul

SMALLER = 2
"""How many times as many elements a product has as the operand that is scaled in its place."""


def scale_operands(graph: Graph) -> Graph:
    """Scale the smaller operand of a product whose only reader scales it.

    Rounding differs where the factor is no power of two, so the pass runs whatever the plan is. The
    scaled operand stands where the product did, the product where it was scaled.
    """
    scaling = {s.inputs[0].node: s for s in graph.nodes if _is_of_product(graph, s)}
    if not scaling:
        return graph
    scaled: dict[Node, Node] = {}
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node in scaling:
            smaller = node.inputs[_smaller(node)]
            given = (rewriter.value(smaller),)
            factor = scaling[node].attributes
            scaled[node] = rewriter.add(instead(node, Scale.name, given, factor, (smaller.type,)))
        elif isinstance(node.op, Scale) and node.inputs[0].node in scaled:
            product = node.inputs[0].producer
            operands = list(rewriter.values(product.inputs))
            operands[_smaller(product)] = scaled[product].output
            moved = instead(node, Matmul.name, operands, product.attributes, product.output_types)
            rewriter.put(node, moved)
        else:
            rewriter.put(node, rewriter.moved(node))
    return rewriter.result()


def _is_of_product(graph: Graph, node: Node) -> bool:
    """Whether a node scales a product that nothing else reads, and that is recomputed alike."""
    value = node.inputs[0] if isinstance(node.op, Scale) else None
    if value is None or value.node is None or value in graph.visible:
        return False
    product = value.node
    return (
        product.op is REGISTRY[Matmul.name]
        and len(graph.uses[value]) == 1
        and product.inputs[_smaller(product)].type.elements * SMALLER <= value.type.elements
        and (product.phase, product.mirror, product.segment)
        == (node.phase, node.mirror, node.segment)
    )


def _smaller(product: Node) -> int:
    """Which operand of a product has fewer elements."""
    first, second = (value.type.elements for value in product.inputs[:2])
    return int(second < first)
