"""Attention as torch computes it on a GPU, for tensors of a CPU without data.

On a CPU, torch decomposes attention with dropout into products, which saves all probabilities. On
a GPU it selects a fused kernel: flash attention for 16-bit operands without a mask, else the
memory-efficient one. Both save the output and a float32 number per row.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten

HALVES = (torch.float16, torch.bfloat16)


def gpu_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return `torch.nn.functional.scaled_dot_product_attention` by a fused kernel of CUDA.

    Operands have the shape [batch, heads, length, width].
    """
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (each.repeat_interleave(groups, -3) for each in (key, value))
    options = dropout_p, is_causal
    if attn_mask is None and query.dtype in HALVES:
        flash = aten._scaled_dot_product_flash_attention
        return flash(query, key, value, *options, scale=scale)[0]
    mask = _additive(attn_mask, query)
    efficient = aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, mask, True, *options, scale=scale)[0]


def _additive(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """Return a mask of numbers to add, as torch converts one of booleans."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, float("-inf"))
