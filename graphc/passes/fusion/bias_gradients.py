"""Fusion of bias gradients into the products that compute weight gradients.

Both read the gradient of a linear layer's output. A GPU's BLAS can sum the columns of an operand
while it multiplies, as an epilogue, so the sum reads nothing by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphc.ir.graph import Graph, Node, Value
from graphc.ir.op import REGISTRY
from graphc.ir.rewrite import Rewriter, instead
from graphc.ir.types import float64
from graphc.ops.choice import Cast
from graphc.ops.matmul import Matmul
from graphc.ops.product_with_sums import ProductWithSums, ProductWithSumsAttributes
from graphc.ops.reduce import Sum


def merge_bias_gradients(graph: Graph) -> Graph:
    """Merge each product dyᵀ · x with the sum of the columns of dy into one node.

    A cast of the sum to the dtype of the product is merged, too. The merged node has the position
    of the first of the nodes whose results it computes. Its epilogue changes the order of the sum,
    so the pass runs for every plan, before recomputation is chosen. float64 is not merged, as
    libraries have no such epilogue for it. Products that are added to running sums are not, either.
    """
    pairs = _pairs(graph)
    if not pairs:
        return graph
    pair_of = {node: pair for pair in pairs for node in (pair.product, pair.result)}
    unused = {pair.summed for pair in pairs if pair.summed is not pair.result}
    merged: dict[Node, Node] = {}
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        pair = pair_of.get(node)
        if pair is None:
            if node not in unused:
                rewriter.put(node, rewriter.moved(node))
            continue
        if pair.product not in merged:
            merged[pair.product] = rewriter.add(_merged(pair.product, node, rewriter))
        y, sums = merged[pair.product].outputs
        rewriter.stand(node.outputs, (y if node is pair.product else sums,))
    return rewriter.result()


@dataclass(frozen=True, slots=True)
class _Pair:
    """A product, a sum, and the node whose result the sums of the merged node replace: the sum, or
    a cast that is its only use."""

    product: Node
    summed: Node
    result: Node


def _pairs(graph: Graph) -> list[_Pair]:
    """Return the products and sums to merge; each node is in one pair only."""
    products: dict[Value, Node] = {}
    for node in graph.nodes:
        if _is_weight_gradient(node):
            products.setdefault(node.inputs[0], node)
    pairs = []
    for node in graph.nodes:
        if isinstance(node.op, Sum) and node.attributes.axes == (0,):
            dy = node.inputs[0]
            if dy in products:
                pair = _Pair(products[dy], node, _result(graph, node, products[dy]))
                if _may_merge(graph, pair):
                    del products[dy]
                    pairs.append(pair)
    return pairs


def _is_weight_gradient(node: Node) -> bool:
    flags = node.attributes
    return (
        type(node.op) is Matmul
        and flags.transpose_a
        and not flags.transpose_b
        and not flags.accumulate
        and node.output.type.rank == 2
        and node.output.type.dtype != float64
    )


def _result(graph: Graph, summed: Node, product: Node) -> Node:
    """Return the cast of a sum to the dtype of a product if nothing else reads the sum, else the
    sum."""
    uses = graph.uses[summed.output]
    if summed.output in graph.visible or len(uses) != 1:
        return summed
    reader = graph.nodes[uses[0]]
    is_cast = isinstance(reader.op, Cast) and reader.output.type.dtype == product.output.type.dtype
    return reader if is_cast else summed


def _may_merge(graph: Graph, pair: _Pair) -> bool:
    """Return True if both results have one dtype, and one node can compute them.

    All operands must be computed before the first node. The nodes must have the same phase, mirror
    count and segment, and must not be copies.
    """
    product, result = pair.product, pair.result
    first = min(graph.position[product], graph.position[result])
    alike = {(n.phase, n.mirror, n.segment) for n in (product, pair.summed, result)}
    return (
        result.output.type.rank == 1
        and result.output.type.dtype == product.output.type.dtype
        and all(v.node is None or graph.position[v.node] < first for v in product.inputs)
        and len(alike) == 1
        and all(node.copy_of is None for node in (product, pair.summed, result))
    )


def _merged(product: Node, first: Node, rewriter: Rewriter) -> Node:
    """Return the node that replaces a pair; `first` is the first node of the pair."""
    inputs = rewriter.values(product.inputs)
    attributes = ProductWithSumsAttributes(product.attributes.wide)
    name = ProductWithSums.name
    types = REGISTRY[name].infer_types(attributes, tuple(value.type for value in inputs))
    return instead(first, name, inputs, attributes, types)
