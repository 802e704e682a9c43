"""Merged gradients of a norm: one node, whose kernel reads operands once instead of three times.

The rules of a norm give x, scale and bias separate gradients. All of them use sums of dy and of dy
times the normalized x. If each statistic has one parameter, as in batch norm, these are the same
sums. Then one node computes all three gradients (Ioffe and Szegedy, 2015, section 3). Otherwise one
node computes the gradients of scale and bias.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.ir.graph import Graph, Node, Value
from graphc.ir.op import REGISTRY
from graphc.ir.rewrite import Rewriter, instead
from graphc.ops.norm_gradient import (
    NormBiasGradient,
    NormGradients,
    NormInputGradient,
    NormParameterGradients,
    NormScaleGradient,
)


def merge_norm_gradients(graph: Graph) -> Graph:
    """Merge the gradients of each norm into one node.

    The merged node has the position of the first of them. The pass changes bits, so it runs for
    every plan, before recomputation is chosen. Norms without a gradient of scale are not changed.
    """
    groups = _groups(graph)
    if not groups:
        return graph
    group_of = {node: group for group in groups for node in group if node is not None}
    merged: dict[int, Node] = {}
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        group = group_of.get(node)
        if group is None:
            rewriter.put(node, rewriter.moved(node))
            continue
        if id(group) not in merged:
            merged[id(group)] = rewriter.add(_merged(group, node, rewriter))
        together = merged[id(group)]
        name = node.op.outputs[0]
        rewriter.stand(node.outputs, (together.outputs[together.op.outputs.index(name)],))
    return rewriter.result()


_Group = tuple[Node | None, Node, Node | None]
"""The nodes that compute the gradients of x, scale and bias of one norm; None if there is none."""


def _groups(graph: Graph) -> list[_Group]:
    """Return the groups of gradients to merge: at least two per group, each in one group only.

    If the outputs of two norms are added, both may have the same gradient of the bias. It is merged
    with the first norm.
    """
    known = {(type(n.op), n.inputs[:4], n.attributes): n for n in graph.nodes if _is_gradient(n)}
    taken: set[Node] = set()
    groups: list[_Group] = []
    for node in graph.nodes:
        if not isinstance(node.op, NormScaleGradient):
            continue
        dy, attributes = node.inputs[0], node.attributes
        dx = known.get((NormInputGradient, node.inputs, attributes))
        dbias = known.get((NormBiasGradient, (dy,), attributes))
        if not attributes.frame().has_one_parameter:
            dx = None
        group = (dx, node, None if dbias in taken else dbias)
        members = [each for each in group if each is not None]
        if len(members) > 1 and _may_merge(graph, members):
            groups.append(group)
            taken.update(members)
    return groups


def _is_gradient(node: Node) -> bool:
    return isinstance(node.op, NormInputGradient | NormScaleGradient | NormBiasGradient)


def _may_merge(graph: Graph, members: Sequence[Node]) -> bool:
    """Return True if all operands are computed before the first of `members`, and none is a copy.

    The nodes must also have the same phase, mirror count and segment.
    """
    first = min(graph.position[node] for node in members)
    operands = [value for node in members for value in node.inputs]
    alike = {(node.phase, node.mirror, node.segment) for node in members}
    are_there = all(v.node is None or graph.position[v.node] < first for v in operands)
    return are_there and len(alike) == 1 and all(node.copy_of is None for node in members)


def _merged(group: _Group, first: Node, rewriter: Rewriter) -> Node:
    """Return the node that replaces a group; `first` is the first node of the group."""
    dx, dscale, _ = group
    longest = dscale if dx is None else dx
    op = (NormParameterGradients if dx is None else NormGradients).name
    inputs: tuple[Value, ...] = rewriter.values(longest.inputs)
    types = REGISTRY[op].infer_types(longest.attributes, tuple(value.type for value in inputs))
    return instead(first, op, inputs, longest.attributes, types)
