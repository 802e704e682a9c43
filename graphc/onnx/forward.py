"""Reconstruction of a program's forward graph, as written by the user.

A plan may recompute and reorder nodes, and fuse them into groups that have no gradient. The
reconstructed graph can be differentiated and planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from graphc.ir import builder
from graphc.ir.ancestors import ancestors
from graphc.ir.graph import Graph, Node, Value
from graphc.ir.op import REGISTRY, Op
from graphc.ir.rewrite import Rewriter
from graphc.ops.fused import FusedAttributes, constant, members_of
from graphc.ops.matmul import LinearAttributes, activation_of
from graphc.ops.reduce import ReduceAttributes
from graphc.ops.shape import Full, FullAttributes


def forward_of(graph: Graph) -> Graph:
    """Return the forward graph: each node on which outputs depend, once, in creation order."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node.copy_of is not None:
            rewriter.stand(node.outputs, rewriter.values(node.copy_of.outputs))
            continue
        moved = rewriter.moved(node)
        apart = _APART.get(node.op.name)
        if apart is None:
            rewriter.put(node, moved)
        else:
            rewriter.stand(node.outputs, apart(moved, _Maker(rewriter, moved)))
    needed = set(ancestors(list(rewriter.outputs.values())))
    nodes = sorted((node for node in rewriter.nodes if node in needed), key=lambda n: n.serial)
    found = Graph(tuple(nodes), rewriter.outputs)
    return Graph(found.nodes, found.outputs, rewriter.kept & frozenset(found.values))


class _Maker:
    """A factory of nodes that replace a given node and have its scope, phase and segment."""

    def __init__(self, rewriter: Rewriter, node: Node) -> None:
        self.rewriter, self.node = rewriter, node
        self.context = builder.Context(node.scope, node.mirror, node.phase, node.segment)

    def __call__(self, op: Op, inputs: Sequence[Value], attributes: Any) -> Value:
        made = builder.create(op, inputs, attributes, self.context)
        return self.rewriter.add(replace(made, serial=self.node.serial)).output


def _members(group: FusedAttributes, inputs: Sequence[Value], make: _Maker) -> list[Value]:
    """Expand the members of a fused group into separate nodes and return their results."""
    known = {f"x{index}": value for index, value in enumerate(inputs)}
    for index, member in enumerate(members_of(group)):
        floats = [known[name].type.dtype for name in member.names]
        numbers = [constant(operand) for operand in member.operands]
        operands = [
            known[operand]
            if number is None
            else make(
                REGISTRY[Full.name],
                (),
                FullAttributes((), next(d for d in floats if d.kind == "float").name, number),
            )
            for operand, number in zip(member.operands, numbers, strict=True)
        ]
        known[f"m{index}"] = make(member.op, operands, member.attributes)
    return [value for name, value in known.items() if name.startswith("m")]


def _fused(node: Node, make: _Maker) -> list[Value]:
    results = _members(node.attributes, node.inputs, make)
    return [results[index] for index in node.attributes.results]


def _fused_reduce(node: Node, make: _Maker) -> list[Value]:
    a = node.attributes
    (value,) = _members(a.group, node.inputs, make)[-1:] if a.members else node.inputs
    op = REGISTRY[a.reduction]
    attributes = ReduceAttributes(a.axes, a.keepdims)
    value = make(op, (value,), attributes if op.attributes is ReduceAttributes else op.attributes())
    return [_members(a.behind, (value,), make)[-1] if a.after else value]


def _linear(node: Node, make: _Maker) -> list[Value]:
    sums = make(node.op, node.inputs, LinearAttributes())
    if node.attributes.activation == "none":
        return [sums]
    op = activation_of(node)
    return [make(op, (sums,), op.attributes())]


_APART: dict[str, Callable[[Node, _Maker], list[Value]]] = {
    "fused": _fused,
    "fused_reduce": _fused_reduce,
    "linear": _linear,
}
