"""Rules of torch on a GPU, for steps that are recorded on tensors of a CPU.

A torch built for CUDA cannot run a backward pass on fake tensors of a GPU without a GPU. Rules for
CUDA that change the bytes of a step are applied to tensors of a CPU instead. Dropout saves a mask
of one byte per element. Attention is one kernel (`gpu_attention`). Autocast computes the functions
of its float32 list in float32; softmax has a kernel that reads 16-bit numbers. Optimizers update
all parameters at once (``foreach``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from graphc.torch.fit.gpu_attention import HALVES, gpu_attention


@contextmanager
def gpu_functions() -> Iterator[None]:
    """Let modules call dropout and attention as a GPU computes them, also where Dynamo traces."""
    replaced = {"dropout": _dropout, "scaled_dot_product_attention": gpu_attention}
    own = {name: getattr(functional, name) for name in replaced}
    try:
        for name, each in replaced.items():
            setattr(functional, name, each)
        yield
    finally:
        for name, each in own.items():
            setattr(functional, name, each)


IN_FLOAT32 = {
    functional.layer_norm, functional.group_norm, functional.softmax, functional.log_softmax,
    functional.cross_entropy, functional.mse_loss, functional.softplus, functional.nll_loss,
    torch.layer_norm, torch.softmax, torch.log_softmax, torch.rsqrt, torch.exp, torch.pow,
    torch.norm, torch.Tensor.softmax, torch.Tensor.log_softmax, torch.Tensor.rsqrt,
    torch.Tensor.exp, torch.Tensor.pow, torch.Tensor.norm,
}  # fmt: skip
"""Functions of the float32 list of autocast on CUDA that occur in models."""


class GpuRules(TorchFunctionMode):  # type: ignore[misc]
    """A mode under which functions on tensors of a CPU save what they would on a GPU."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run a function of torch."""
        kwargs = kwargs or {}
        if function is functional.dropout:
            return _dropout(*args, **kwargs)
        if function is functional.scaled_dot_product_attention:
            return gpu_attention(*args, **kwargs)
        in_float32 = torch.is_autocast_enabled("cpu") or kwargs.get("dtype") == torch.float32
        if function in SOFTMAX and in_float32 and args[0].dtype in HALVES:
            return _FromHalves.apply(args[0])
        if function is functional.cross_entropy and _takes_halves(*args, **kwargs):
            return _cross_entropy(*args, **kwargs)
        if function in IN_FLOAT32 and torch.is_autocast_enabled("cpu"):
            args, kwargs = tree_map(_wide, (args, kwargs))
            with torch.autocast("cpu", enabled=False):
                return function(*args, **kwargs)
        return function(*args, **kwargs)


@contextmanager
def gpu_rules() -> Iterator[None]:
    """Apply the rules of `GpuRules`, also where torch's own functions have left the mode, such as
    that of ``nn.MultiheadAttention``."""
    with gpu_functions(), GpuRules():
        yield


SOFTMAX = {
    functional.softmax, functional.log_softmax, torch.softmax, torch.log_softmax,
    torch.Tensor.softmax, torch.Tensor.log_softmax,
}  # fmt: skip
"""Functions with one kernel on a GPU that reads 16-bit numbers and writes float32."""


class _FromHalves(torch.autograd.Function):  # type: ignore[misc]
    """The bytes of a softmax, or its logarithm, of 16-bit numbers in float32; no values.

    Its gradient has the dtype of the input. On a CPU, both have a copy in the other dtype.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Return float32 numbers, which are saved."""
        result = x.new_empty(x.shape, dtype=torch.float32)
        ctx.save_for_backward(result)
        ctx.dtype = x.dtype
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Return a gradient of the input's dtype."""
        return gradient.new_empty(gradient.shape, dtype=ctx.dtype)


def _takes_halves(
    x: torch.Tensor, target: torch.Tensor, *_: Any, label_smoothing: float = 0.0, **__: Any
) -> bool:
    """Return True if a cross entropy is the loss of a softmax from 16-bit numbers."""
    is_half = torch.is_autocast_enabled("cpu") and x.dtype in HALVES
    return is_half and not target.is_floating_point() and label_smoothing == 0.0


def _cross_entropy(x: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    kwargs.pop("label_smoothing", None)
    return functional.nll_loss(_FromHalves.apply(x), target, *args, **kwargs)


def _dropout(
    x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    if not training or p == 0:
        return x
    return torch.native_dropout(x, p, True)[0]


def _wide(each: Any) -> Any:
    is_narrow = isinstance(each, torch.Tensor) and each.dtype in HALVES
    return each.float() if is_narrow else each
