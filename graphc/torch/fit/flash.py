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
        is_autocast = torch.is_autocast_enabled("cpu")
        half = next(each.dtype for each in module.parameters())
        half = torch.get_autocast_dtype("cpu") if is_autocast else half
        query, key, value = (each.to(half) for each in (query, key, value))
    causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    found = flash(query, key, value, dropout, bool(causal), scale=scaling)[0]
    return found.transpose(1, 2), None


def _no_mask(*_: Any, **__: Any) -> None:
    """Return no mask: examples have no padding, and windows are options of the kernel."""
