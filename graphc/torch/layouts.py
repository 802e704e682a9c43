"""Strides that torch's kernels for the CPU give, where a trace says others.

A plan measures ops on operands as its graph says, and decides by strides what may be overwritten
and which gradients autograd copies. So its graph says what is there in a step; the ops that run
stay as they were traced.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import fx
from torch._prims_common import suggest_memory_format

aten = torch.ops.aten


def lay_as_kernels_do(graph: fx.Graph, fake_mode: Any) -> None:
    """Let results of some ops, and what is made of them, have the strides of a step.

    Where an op refuses such operands, torch's own step fails as well, and all stays as traced.
    """
    with suppress(RuntimeError, ValueError), fake_mode, torch.no_grad():
        for node, value in _laid(graph).items():
            node.meta["val"] = value


def _laid(graph: fx.Graph) -> dict[fx.Node, Any]:
    """What nodes give that lies otherwise than in the trace, or is made of such tensors."""
    laid: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload) and node.target != operator.getitem:
            continue
        is_of_laid = not laid.keys().isdisjoint(node.all_input_nodes)
        if not is_of_laid and node.target not in LAYOUTS:
            continue
        args, kwargs = fx.map_arg(
            (node.args, node.kwargs), lambda each: laid.get(each, each.meta["val"])
        )
        value = node.target(*args, **kwargs) if is_of_laid else node.meta["val"]
        if node.target in LAYOUTS:
            value = _first_laid(value, LAYOUTS[node.target], args)
        if is_of_laid or value is not node.meta["val"]:
            laid[node] = value
    return laid


def _first_laid(value: Any, layout: Callable[..., torch.Tensor], args: tuple[Any, ...]) -> Any:
    """A result, or several, of which the first lies as the kernel for the CPU makes it."""
    first, others = (value, ()) if isinstance(value, torch.Tensor) else (value[0], value[1:])
    if first is None or first.device.type != "cpu":
        return value
    made = layout(*args)
    if made.stride() == first.stride():
        return value
    return made if first is value else (made, *others)


def _as_input(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x, memory_format=suggest_memory_format(x))


def _as_input_behind(_: torch.Tensor, x: torch.Tensor, *__: Any) -> torch.Tensor:
    return _as_input(x)


def _as_product(gradient: torch.Tensor, mask: torch.Tensor, *_: Any) -> torch.Tensor:
    return gradient * mask


LAYOUTS: dict[Any, Callable[..., torch.Tensor]] = {
    aten.native_group_norm.default: _as_input,
    aten.native_group_norm_backward.default: _as_input_behind,
    aten._native_batch_norm_legit_functional.default: _as_input,
    aten.native_batch_norm_backward.default: _as_input_behind,
    aten.native_dropout_backward.default: _as_product,
}
"""Ops whose first result is traced with other strides at times, and one with those it has."""
