"""Rules of torch on a GPU, for steps that are recorded on tensors of a CPU.

A torch built for CUDA cannot run a backward pass on fake tensors of a GPU without a GPU. Four
rules for CUDA that change the bytes of a step are applied to tensors of a CPU instead. Dropout
saves a mask of one byte per element. Attention is one fused kernel, with dropout too. Autocast
computes the functions of its float32 list in float32. Optimizers update all parameters at once
(``foreach``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from graphc.torch.fit.gpu_attention import gpu_attention

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
        if function in IN_FLOAT32 and torch.is_autocast_enabled("cpu"):
            args, kwargs = tree_map(_wide, (args, kwargs))
            with torch.autocast("cpu", enabled=False):
                return function(*args, **kwargs)
        return function(*args, **kwargs)


def _dropout(
    x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    if not training or p == 0:
        return x
    return torch.native_dropout(x, p, True)[0]


def _wide(each: Any) -> Any:
    is_narrow = isinstance(each, torch.Tensor) and each.dtype in (torch.bfloat16, torch.float16)
    return each.float() if is_narrow else each
