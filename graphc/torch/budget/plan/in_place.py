"""Ops whose result may overwrite an operand without later uses, with the same bits.

All are elementwise, so each element is read before it is written.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from graphc.torch.budget.host.host_memory import begin_out, begin_out_apart
from graphc.torch.budget.trace.joint import aten

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
"""Maps ops to their in-place variants, which write into the first operand."""

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
"""Maps ops to their out variants, which may write into the gradient, their first operand."""

COMMUTE = (aten.add.Tensor, aten.mul.Tensor)
"""Ops of `FIRST` that commute if the second operand is not scaled."""


def may_overwrite(node: fx.Node) -> list[fx.Node]:
    """Return the operands that the result may overwrite, judged by the op and the types alone."""
    if node.target in GIVEN:
        return _fitting(node, node.args[:1])
    if node.target not in FIRST:
        return []
    commutes = node.target in COMMUTE and not node.kwargs and len(_fitting(node, node.args)) == 2
    return _fitting(node, node.args[:2] if commutes else node.args[:1])


def _fitting(node: fx.Node, operands: tuple[Any, ...]) -> list[fx.Node]:
    """Return operands with the result's type, shape and strides that fill their storages."""
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
    node: fx.Node, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the call of a node that overwrites the operand `index`."""
    if node.target in GIVEN:
        return GIVEN[node.target], args, {**kwargs, "grad_input": args[0]}
    if index == 1:
        args = (args[1], args[0])
    return FIRST[node.target], args, kwargs


def not_overwriting(module: fx.GraphModule) -> fx.GraphModule:
    """Return a copy of the graph with functional ops instead of in-place and out variants.

    Its copies to the host do not overwrite earlier ones either.
    """
    originals = {each: op for op, each in (*FIRST.items(), *GIVEN.items())}
    originals[begin_out] = begin_out_apart
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.nodes:
        node.target = originals.get(node.target, node.target)
        if node.target in GIVEN:
            node.kwargs = {key: each for key, each in node.kwargs.items() if key != "grad_input"}
    return fx.GraphModule(module, graph)
