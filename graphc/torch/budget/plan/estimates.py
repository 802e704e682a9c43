"""Costs of nodes from a device profile (roofline), for plans of tensors without data.

The time of a node is the larger of its flops over the device's rate, and its bytes over the
memory's rate. Flops come from torch's formulas for matrix products, convolutions and attention;
other nodes are bound by memory. Workspaces are unknown and count as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import (
    flop_registry,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from graphc.devices.device import Device
from graphc.ir.types import float16, float32
from graphc.torch.budget.plan.steps import Measured
from graphc.torch.budget.trace.joint import Joint, aten, tensors_of

GATHERS = (
    aten.embedding.default,
    aten.gather.default,
    aten.index.Tensor,
    aten.index_select.default,
)
"""Ops that read only as many elements of their first operand as they return."""


def estimate(device: Device, joint: Joint) -> dict[fx.Node, Measured]:
    """Return the cost of each computing node on a device, without running it."""
    return {
        step.node: Measured(
            seconds_on(device, step.node), 0, tuple(joint.bytes[value] for value in step.makes)
        )
        for step in joint.steps
    }


def seconds_on(device: Device, node: fx.Node) -> float:
    """Return the roofline time of a node in seconds."""
    made = tensors_of(node)
    narrow = bool(made) and made[0].element_size() == 2
    rate = device.product_rate(float16 if narrow else float32)
    return device.seconds(flops_of(node), _moved_bytes(node, made), rate)


def flops_of(node: fx.Node) -> int:
    """Return the flops of a node by torch's formula for its op, or 0 without a formula."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet in _ATTENTION:
        return _ATTENTION[packet](*(each.meta["val"].shape for each in node.all_input_nodes))
    formula = flop_registry.get(packet)
    if formula is None:
        return 0
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda each: each.meta["val"])
    return int(formula(*args, **kwargs, out_val=node.meta["val"]))


def _attention(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _attention_backward(
    gradient: torch.Size, query: torch.Size, key: torch.Size, value: torch.Size, *_: Any
) -> int:
    return int(sdpa_backward_flop_count(gradient, query, key, value))


_ATTENTION: dict[object, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
"""Formulas of attention on a CPU, which torch does not register."""


def _moved_bytes(node: fx.Node, made: Iterable[torch.Tensor]) -> int:
    """Return the bytes that a node reads and writes."""
    written = sum(map(_bytes, made))
    read = [sum(map(_bytes, tensors_of(each))) for each in node.all_input_nodes]
    if node.target in GATHERS:
        read[0] = min(read[0], written)
    return written + sum(read)


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements; those of an expanded tensor count once."""
    whole = tensor.numel() * tensor.element_size()
    return int(min(whole, tensor.untyped_storage().nbytes()))
