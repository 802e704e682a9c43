"""Running sums: add a product to an earlier gradient where it is computed (beta = 1 of a BLAS).

Consider a weight with T uses, such as that of a recurrent layer. Without this pass, each of the T
additions needs the bytes of its gradient twice: for the sum so far, and for the summand. With beta
= 1, an addition needs them once.

A sum of two products fixes which of them runs first. One may come from a layer that recurs over
time, and the other one from outside. Then the sum would fix whether the inner loop is over layers
or over time, which is a choice of planners (planner/order/layers.py). Such a sum stays an addition.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from graphc.ir.graph import Graph, Node, State, Value
from graphc.ir.rewrite import rewrite
from graphc.memory.order.forward_passes import forward_passes
from graphc.ops.elementwise import Add
from graphc.ops.linear_cross_entropy import GradientSum
from graphc.ops.matmul import Matmul
from graphc.passes.dead_code import remove_dead_code
from graphc.planner.order import components


def use_running_sums(graph: Graph) -> Graph:
    """Replace additions of gradients by products that take the running sum as an operand.

    An op takes part if it has an attribute ``accumulate`` and a last input ``*sum``. The addition
    must be the only use of the product, and keep its type. Rounding may differ from that of a
    separate addition. So the pass runs for every plan, before recomputation is chosen.
    """
    addable = {
        node.serial
        for node in graph.nodes
        if getattr(node.attributes, "accumulate", True) is False
        and (node.phase == "gradient" or _is_of_gradients(graph, node.output))
        and node.output not in graph.visible
        and len(graph.uses[node.output]) == 1
    }
    free = _between_layers(graph, addable)
    taken: set[int] = set()

    def replacement(node: Node) -> Node:
        if not _is_sum(node) or node.serial in free:
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


def _is_sum(node: Node) -> bool:
    return (isinstance(node.op, Add) and node.phase == "gradient") or isinstance(
        node.op, GradientSum
    )


def _between_layers(graph: Graph, addable: Collection[int]) -> set[int]:
    """Return the serial numbers of sums that must stay additions.

    They add two products, one of a recurrent layer and one from outside of it.
    """
    sums = [
        node
        for node in graph.nodes
        if _is_sum(node) and all(v.node and v.node.serial in addable for v in node.inputs)
    ]
    if not sums or len(forward_passes(graph)) != 1:  # several passes do not determine it
        return set()
    backward = [node for node in graph.nodes if node.phase == "gradient"]
    index = {node: number for number, node in enumerate(backward)}
    readers: dict[Value, list[int]] = {}
    for node in backward:
        for value in dict.fromkeys(graph.roots[value] for value in node.inputs):
            if isinstance(value, State) and value.role == "parameter":
                readers.setdefault(value, []).append(index[node])
    shared = [group for group in readers.values() if len(group) > 1]
    if not shared:
        return set()
    before = [[index[v.node] for v in node.inputs if v.node in index] for node in backward]
    found = components(before, shared)
    component = {vertex: number for number, group in enumerate(found) for vertex in group}
    recurrent = {
        component[vertex]
        for vertex, firsts in enumerate(before)
        if any(component[first] == component[vertex] for first in firsts)
    }

    def meets(node: Node) -> bool:
        """Return True if the operands are from two components, one of which is recurrent."""
        own = {component[index[v.node]] for v in node.inputs if v.node in index}
        return len(own) == 2 and not own.isdisjoint(recurrent)

    return {node.serial for node in sums if meets(node)}


def _is_of_gradients(graph: Graph, value: Value) -> bool:
    """Return True if a value is a summand of a gradient computed in the forward pass."""
    return any(isinstance(graph.nodes[step].op, GradientSum) for step in graph.uses[value])


def _added(product: Node, total: Value, addition: Node) -> Node | None:
    """Return a copy of `product` that adds `total` to its result and replaces `addition`.

    Returns None if the product cannot do so.
    """
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
