"""A factor behind a product as part of the product: alpha of a BLAS.

Attention divides the scores of all pairs of positions by the root of a head's width. As a node of
its own that reads and writes all of them once more, and so does its gradient. A CPU's kernels take
no factor, so only plans for a GPU have such products.
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
    """Multiply products by the factors that are all that reads them.

    What is rounded to 16 bits is then the scaled product alone, so the pass runs whatever the plan
    is, before there is a gradient.
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
    """Whether a node scales a product that nothing else reads, and that is recomputed alike."""
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
