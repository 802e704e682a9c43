"""Bytes that kernels of a CPU allocate beside their results.

Those of convolutions and 16-bit products depend on oneDNN's algorithms and on the CPU, so each
distinct one is measured once, on operands of zeros. Formulas for other ops follow torch's kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from graphc.torch.budget.trace.measure import peaks, until_complete
from graphc.torch.private import disable_current_modes

aten = torch.ops.aten

CONVOLUTIONS = aten.convolution.default, aten.convolution_backward.default
PRODUCTS = aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default

LOSSES_PER_ELEMENT = (
    aten.mse_loss.default,
    aten.smooth_l1_loss.default,
    aten.huber_loss.default,
)
"""Losses whose scalar result keeps a storage with a number for each element."""


def workspace_bytes(function: Any, args: Any, result: Any) -> int:
    """Return the workspace of an op on a CPU in bytes; 0 if it is unknown."""
    if function in CONVOLUTIONS or (function in PRODUCTS and result.element_size() == 2):
        size = sum(_bytes(each) for each in tree_leaves(result) if each is not None)
        settings = torch.get_num_threads(), torch.backends.mkldnn.enabled
        return _measured_peak(function, tuple(map(_described, args)), settings) - size
    if function in _FORMULAS:
        return _FORMULAS[function](*args)
    if torch.Tag.pointwise in function.tags:
        return _promoted(args, result)
    return 0


@dataclass(frozen=True)
class _Like:
    """The properties of an operand on which the algorithm depends."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def zeros(self) -> torch.Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="cpu").zero_()


def _described(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return _Like(tuple(argument.shape), argument.stride(), argument.dtype)
    return tuple(argument) if isinstance(argument, list) else argument


@cache
def _measured_peak(function: Any, described: tuple[Any, ...], settings: tuple[Any, ...]) -> int:
    """Return the most bytes that an op allocates, with its results; it runs on zeros.

    `settings` of torch influence the algorithm, so they are part of the cache's key.
    """
    with disable_current_modes():
        args = [each.zeros() if isinstance(each, _Like) else each for each in described]
        return until_complete(lambda: peaks([lambda: function(*args)]))[0]


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


def _loss_per_element(x: torch.Tensor, *_: Any) -> int:
    return _bytes(x)


_FORMULAS: dict[object, Callable[..., int]] = {
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.mse_loss.default: _loss_per_element,
    aten.smooth_l1_loss.default: _loss_per_element,
    aten.huber_loss.default: _loss_per_element,
    aten.binary_cross_entropy.default: _loss_per_element,
    aten.native_layer_norm.default: _contiguous_copy,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
}
