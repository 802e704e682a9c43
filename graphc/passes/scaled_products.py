"""Multiply a matrix product by a number within the product, as alpha of a BLAS does.

Attention divides the scores of all pairs of positions by the square root of a head's width. A
separate node reads and writes all scores once more, and so does its gradient. CPU kernels take no
factor, so only plans for a GPU use this pass.
"""

from __future__ import annotations

from dataclasses import asdict

from graphc.ir.graph import Graph, Node
from graphc.ir.op import REGISTRY
from graphc.ir.rewrite import instead, rewrite
from graphc.ops.elementwise import Scale
from graphc.ops.matmul import Matmul, ScaledMatmul, ScaledMatmulAttributes
from graphc.passes.dead_code import remove_dead_code


def scale_products(graph: Graph) -> Graph:
    """Merge factors into products whose only use is the multiplication by the factor.

    The product is then rounded to 16 bits once, after scaling, which changes bits. So the pass runs
    for every plan, before the gradient is built.
    """
    scaled = {node.serial for node in graph.nodes if _is_of_product(graph, node)}

    def replacement(node: Node) -> Node:
        if node.serial not in scaled:
            return node
        product = node.inputs[0].producer
        flags = ScaledMatmulAttributes(**asdict(product.attributes), alpha=node.attributes.value)
        return instead(node, ScaledMatmul.name, product.inputs, flags, product.output_types)

    return remove_dead_code(rewrite(graph, replacement)) if scaled else graph


def _is_of_product(graph: Graph, node: Node) -> bool:
    """Return True if `node` scales a product, is its only use and is recomputed with it."""
    value = node.inputs[0] if isinstance(node.op, Scale) else None
    if value is None or value.node is None or value in graph.visible:
        return False
    product = value.node
    return (
        product.op is REGISTRY[Matmul.name]
        and len(graph.uses[value]) == 1
        and (product.phase, product.mirror, product.segment)
        == (node.phase, node.mirror, node.segment)
    )
