"""Running sums: a product that is only added to an earlier gradient is added where it is computed.

Without this, the gradient of a weight that is used T times exists twice at each of the T additions:
the sum so far, and the summand. With beta = 1 of a BLAS only the sum does.
"""

from __future__ import annotations

from dataclasses import replace

from graphc.ir.graph import Graph, Node, Value
from graphc.ir.rewrite import rewrite
from graphc.ops.elementwise import Add
from graphc.ops.linear_cross_entropy import GradientSum
from graphc.ops.matmul import Matmul
from graphc.passes.dead_code import remove_dead_code


def use_running_sums(graph: Graph) -> Graph:
    """Give products of the gradient their running sum as an operand, in place of additions.

    An op takes part if it has an attribute ``accumulate`` and a last input ``*sum``. The product
    must have no other reader than the addition, and keep its type in it. Rounding may differ from
    an addition of its own, so the pass runs whatever the plan is, before recomputation is chosen.
    """
    addable = {
        node.serial
        for node in graph.nodes
        if getattr(node.attributes, "accumulate", True) is False
        and (node.phase == "gradient" or _is_of_gradients(graph, node.output))
        and node.output not in graph.visible
        and len(graph.uses[node.output]) == 1
    }
    taken: set[int] = set()

    def replacement(node: Node) -> Node:
        is_sum = isinstance(node.op, Add) and node.phase == "gradient"
        if not is_sum and not isinstance(node.op, GradientSum):
            return node
        for product, total in (node.inputs[::-1], node.inputs):
            if product.node is not None and product.node.serial in addable - taken:
                sum = _added(product.node, total, node)
                if sum is not None:
                    taken.add(product.node.serial)
                    return sum
        return node

    rewritten = rewrite(graph, replacement)
    return remove_dead_code(rewritten) if taken else graph


def _is_of_gradients(graph: Graph, value: Value) -> bool:
    """Whether a value is a share of a gradient that the forward pass computes already."""
    return any(isinstance(graph.nodes[step].op, GradientSum) for step in graph.uses[value])


def _added(product: Node, total: Value, addition: Node) -> Node | None:
    """A node that adds the product to `total`, in place of the addition; None where it cannot."""
    (y,) = product.outputs
    is_batched = isinstance(product.op, Matmul) and y.type.rank != 2
    if is_batched or total is y or not y.type == total.type == addition.output.type:
        return None
    return replace(
        product,
        inputs=(*product.inputs, total),
        attributes=replace(product.attributes, accumulate=True),
        serial=addition.serial,
    )
