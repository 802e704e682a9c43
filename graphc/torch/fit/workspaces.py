"""Bytes that kernels of a CPU allocate beside their results, by formula.

The formulas follow the layouts that torch and oneDNN convert operands to. Sizes of oneDNN's
scratchpads, which depend on the instruction set, are approximations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten

BLOCK = 16
"""Channels in a block of oneDNN's layouts; convolutions of fewer input channels read them plain."""


LOSSES_PER_ELEMENT = (
    aten.mse_loss.default,
    aten.smooth_l1_loss.default,
    aten.huber_loss.default,
)
"""Losses whose scalar result keeps a storage with a number for each element."""


def workspace_bytes(function: Any, args: Any, result: Any) -> int:
    """Return the workspace of an op on a CPU in bytes; 0 without a formula."""
    if function in _FORMULAS:
        return _FORMULAS[function](*args)
    if torch.Tag.pointwise in function.tags:
        return _promoted(args, result)
    return 0


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _promoted(args: Any, result: Any) -> int:
    """Return the bytes of operands that an elementwise op converts to the common dtype."""
    tensors = [each for each in tree_leaves(args) if isinstance(each, torch.Tensor) and each.dim()]
    if not isinstance(result, torch.Tensor) or len({each.dtype for each in tensors}) < 2:
        return 0
    common = tensors[0].dtype
    for each in tensors:
        common = torch.promote_types(common, each.dtype)
    width = torch.empty((), dtype=common, device="meta").element_size()
    return sum(each.numel() * width for each in tensors if each.dtype not in (common, torch.bool))


def _contiguous_copy(x: torch.Tensor, *_: Any) -> int:
    return 0 if x.is_contiguous() else _bytes(x)


def _layer_norm_backward(gradient: torch.Tensor, x: torch.Tensor, *_: Any) -> int:
    return _contiguous_copy(gradient) + _contiguous_copy(x)


def _batch_norm_backward(gradient: torch.Tensor, x: torch.Tensor, *_: Any) -> int:
    return _bytes(x) if gradient.is_contiguous() and x.is_contiguous() else 0


def _product(x: torch.Tensor, other: torch.Tensor) -> int:
    """Return the bytes of a transposed 16-bit operand and of the result, which oneDNN copies."""
    if x.element_size() != 2 or x.stride(-1) == 1:
        return 0
    return _bytes(x) + int(x.shape[0] * other.shape[1] * 2)


def _loss_per_element(x: torch.Tensor, *_: Any) -> int:
    return _bytes(x)


def _convolution(x: torch.Tensor, weight: torch.Tensor, _: Any, stride: Any, *rest: Any) -> int:
    if _is_product(x, weight, stride):
        return 0
    groups, weights = rest[-1], _bytes(weight)
    if _is_channels_last(x):
        return weights if groups == x.shape[1] else 2 * weights
    return max(_blocked(x) + weights, _output_bytes(x, weight, stride, rest[0], rest[1]))


def _convolution_backward(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, _: Any, stride: Any, *rest: Any
) -> int:
    if _is_product(x, weight, stride):
        return 0
    groups, weights = rest[-2], _bytes(weight)
    if groups == x.shape[1] and max(weight.shape[2:]) > 5:  # kernels for groups pad to blocks
        area = weight[0, 0].numel()
        return int(groups * BLOCK * BLOCK * area * (4 if x.element_size() == 4 else 6)) + weights
    copies = 2 if groups == x.shape[1] else 3 if x.element_size() == 4 else 5
    if _is_channels_last(x):
        return copies * weights
    maps = _blocked(x) + _bytes(gradient)
    return max(maps, weights) if x.element_size() == 4 else maps + 2 * weights


def _is_product(x: torch.Tensor, weight: torch.Tensor, stride: Any) -> bool:
    """Return True for a convolution that is a matrix product of unconverted operands."""
    return bool(x.element_size() == 4) and set(weight.shape[2:]) == {1} and set(stride) == {1}


def _is_channels_last(x: torch.Tensor) -> bool:
    return bool(x.dim() == 4 and x.stride(1) == 1 and x.shape[1] > 1)


def _blocked(x: torch.Tensor) -> int:
    """Return the bytes of the operand in blocks of channels."""
    channels = x.shape[1]
    return 0 if channels < BLOCK else _bytes(x) // channels * (-(-channels // BLOCK) * BLOCK)


def _output_bytes(
    x: torch.Tensor, weight: torch.Tensor, stride: Any, padding: Any, dilation: Any
) -> int:
    sizes = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=False)
    count = x.shape[0] * (-(-weight.shape[0] // BLOCK) * BLOCK) * x.element_size()
    for size, kernel, step, pad, spread in sizes:
        count *= (size + 2 * pad - spread * (kernel - 1) - 1) // step + 1
    return int(count)


_FORMULAS: dict[object, Callable[..., int]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.mm.default: _product,
    aten.mse_loss.default: _loss_per_element,
    aten.smooth_l1_loss.default: _loss_per_element,
    aten.huber_loss.default: _loss_per_element,
    aten.binary_cross_entropy.default: _loss_per_element,
    aten.native_layer_norm.default: _contiguous_copy,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
}
