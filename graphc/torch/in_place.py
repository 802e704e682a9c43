"""Ops whose result may lie where an operand did that nothing reads any more: with the same bits.

All go element by element, so that each element is read before it is written.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from graphc.torch.joint import aten

FIRST = {
    aten.add.Tensor: aten.add_.Tensor,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.div.Tensor: aten.div_.Tensor,
    aten.add.Scalar: aten.add_.Scalar,
    aten.mul.Scalar: aten.mul_.Scalar,
    aten.div.Scalar: aten.div_.Scalar,
    aten.neg.default: aten.neg_.default,
    aten.relu.default: aten.relu_.default,
    aten.tanh.default: aten.tanh_.default,
    aten.sigmoid.default: aten.sigmoid_.default,
    aten.exp.default: aten.exp_.default,
    aten.silu.default: aten.silu_.default,
    aten.hardtanh.default: aten.hardtanh_.default,
    aten.hardswish.default: aten.hardswish_.default,
    aten.leaky_relu.default: aten.leaky_relu_.default,
    aten.masked_fill.Scalar: aten.masked_fill_.Scalar,
}
"""Those that have a form which writes into its first operand."""

GIVEN = {
    aten.gelu_backward.default: aten.gelu_backward.grad_input,
    aten.threshold_backward.default: aten.threshold_backward.grad_input,
    aten.silu_backward.default: aten.silu_backward.grad_input,
    aten.tanh_backward.default: aten.tanh_backward.grad_input,
    aten.sigmoid_backward.default: aten.sigmoid_backward.grad_input,
    aten.elu_backward.default: aten.elu_backward.grad_input,
    aten.leaky_relu_backward.default: aten.leaky_relu_backward.grad_input,
    aten.hardtanh_backward.default: aten.hardtanh_backward.grad_input,
}
"""Those that write into a tensor they are given, which may be the gradient they read first."""

COMMUTE = (aten.add.Tensor, aten.mul.Tensor)
"""Those of FIRST whose operands may change places, where nothing scales the second."""


def may_overwrite(node: fx.Node) -> list[fx.Node]:
    """The operands in whose place the result may lie, as far as the op and its types go."""
    if node.target in GIVEN:
        return _fitting(node, node.args[:1])
    if node.target not in FIRST:
        return []
    commutes = node.target in COMMUTE and not node.kwargs and len(_fitting(node, node.args)) == 2
    return _fitting(node, node.args[:2] if commutes else node.args[:1])


def _fitting(node: fx.Node, operands: tuple[Any, ...]) -> list[fx.Node]:
    """Operands of the result's type, shape and strides that are the whole of their storages."""
    result = node.meta["val"]
    found = []
    for operand in operands:
        given = operand.meta.get("val") if isinstance(operand, fx.Node) else None
        if (
            isinstance(given, torch.Tensor)
            and given.dtype == result.dtype
            and given.device == result.device
            and given.shape == result.shape
            and given.stride() == result.stride()
            and given.untyped_storage().nbytes() == given.numel() * given.element_size()
        ):
            found.append(operand)
    return found


def overwriting(
    node: fx.Node, place: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The call of a node whose result takes the place of operand number `place`."""
    if node.target in GIVEN:
        return GIVEN[node.target], args, {**kwargs, "grad_input": args[0]}
    if place == 1:
        args = (args[1], args[0])
    return FIRST[node.target], args, kwargs


def not_overwriting(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph, in which every result of these ops has a place of its own."""
    originals = {each: op for op, each in (*FIRST.items(), *GIVEN.items())}
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.nodes:
        node.target = originals.get(node.target, node.target)
        if node.target in GIVEN:
            node.kwargs = {key: each for key, each in node.kwargs.items() if key != "grad_input"}
    return fx.GraphModule(module, graph)
