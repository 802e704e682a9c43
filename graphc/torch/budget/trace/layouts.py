"""Correction of traced strides to those that torch's CPU kernels produce.

A plan measures ops on operands with the strides of its graph. Strides also determine which
operands may be overwritten and which gradients autograd copies. So this module corrects the
recorded strides; the ops that run are not changed.
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
    """Correct the strides of results of `LAYOUTS`, and of all tensors computed from them.

    If an op refuses the corrected operands, all strides stay as traced: torch's own step fails as
    well.
    """
    with suppress(RuntimeError, ValueError), fake_mode, torch.no_grad():
        for node, value in _laid(graph).items():
            node.meta["val"] = value


def _laid(graph: fx.Graph) -> dict[fx.Node, Any]:
    """Return the corrected values of nodes whose strides, or operands' strides, differ."""
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
    """Return the results with the first one laid out as the CPU kernel produces it."""
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
"""Maps ops whose first result may be traced with wrong strides to functions with right ones."""
