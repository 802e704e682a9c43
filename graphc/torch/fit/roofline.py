"""The time of an op on a device by the roofline model, from its operands and results."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from graphc.devices.device import Device
from graphc.ir.types import float16, float32

aten = torch.ops.aten


def seconds_of(device: Device, function: Any, args: Any, kwargs: Any, result: Any) -> float:
    """Return the roofline time of an op in seconds; views and queries take none."""
    made = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
    if not made or function.is_view:
        return 0.0
    given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    moved = sum(_bytes(each) for each in (*made, *given))
    has_rate = device.has_bfloat16 or made[0].dtype != torch.bfloat16
    rate = device.product_rate(float16 if made[0].element_size() == 2 and has_rate else float32)
    return device.seconds(_flops(function, args, kwargs, result), moved, rate)


FORWARD = {
    aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_flash_attention_for_cpu,
}
BACKWARD = {
    aten._scaled_dot_product_flash_attention_backward,
    aten._scaled_dot_product_flash_attention_for_cpu_backward,
}


def _flops(function: Any, args: Any, kwargs: Any, result: Any) -> int:
    packet = function.overloadpacket
    if packet in FORWARD:
        return int(sdpa_flop_count(*_of_all_heads(*args[:3])))
    if packet in BACKWARD:
        return int(sdpa_backward_flop_count(args[0].shape, *_of_all_heads(*args[1:4])))
    formula = flop_registry.get(packet)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=result))


def _of_all_heads(query: torch.Tensor, *others: torch.Tensor) -> list[torch.Size]:
    """Return the shapes of query, key and value with as many heads of keys as of queries."""
    heads = query.shape[1]
    return [query.shape, *(torch.Size((e.shape[0], heads, *e.shape[2:])) for e in others)]


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements; those of an expanded tensor count once."""
    whole = tensor.numel() * tensor.element_size()
    return int(min(whole, tensor.untyped_storage().nbytes()))
