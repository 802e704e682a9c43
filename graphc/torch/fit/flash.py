"""Flash attention for models of transformers, on tensors without data.

transformers selects an implementation of attention by name. Its own names for flash attention need
the package flash-attn, which runs on a GPU only. `NAME` selects torch's flash attention instead,
which needs the same bytes: the output and a float32 number per row are saved, no mask is created,
and heads of keys are not repeated.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from graphc.errors import DependencyError
from graphc.torch.fit.gpu_attention import HALVES

NAME = "graphc_attention"
"""The registered name; transformers checks for packages if a name contains ``flash``."""


def register_flash() -> None:
    """Register the implementation with transformers.

    Raises `DependencyError` for versions of transformers without names of attention.
    """
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface
    except ImportError:
        raise DependencyError(
            "--attention flash needs transformers 4.53 or newer; run pip install -U transformers"
        ) from None
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, _no_mask)


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return attention of operands of shape [batch, heads, length, width], with heads as axis 2."""
    if query.dtype not in HALVES:  # after a norm in float32, or under autocast
        half = _half_of(module)
        query, key, value = (each.to(half) for each in (query, key, value))
    causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
    width, lacking = value.shape[-1], query.shape[-1] - value.shape[-1]
    if lacking > 0:
        value = functional.pad(value, [0, lacking])
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    found = flash(query, key, value, dropout, bool(causal), scale=scaling)[0]
    return found[..., :width].transpose(1, 2), None


def _half_of(module: nn.Module) -> torch.dtype:
    """Return the 16-bit dtype of autocast or of the model."""
    if torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu")
    dtype = getattr(getattr(module, "config", None), "dtype", None)
    return dtype if dtype in HALVES else torch.bfloat16


def _no_mask(*_: Any, **__: Any) -> None:
    """Return no mask: examples have no padding, and windows are options of the kernel."""
