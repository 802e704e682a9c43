"""Attention as torch computes it on a GPU, for tensors of a CPU without data.

On a CPU, torch decomposes attention with dropout into products, which saves all probabilities. On
a GPU it selects a kernel. Flash attention serves 16-bit operands without a mask, also with fewer
heads of keys; the memory-efficient kernel serves others. Both save the output and a float32 number
per row. A mask that is learned, such as T5's position bias, has products in float32 instead.
"""

from __future__ import annotations

import math

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
    """Return `torch.nn.functional.scaled_dot_product_attention` by a kernel of CUDA.

    Operands have the shape [batch, heads, length, width].
    """
    if torch.is_autocast_enabled("cpu"):
        half = torch.get_autocast_dtype("cpu")
        query, key, value = (each.to(half) for each in (query, key, value))
        attn_mask = _additive(attn_mask, query)
    options = dropout_p, is_causal
    if attn_mask is None and query.dtype in HALVES:
        flash = aten._scaled_dot_product_flash_attention
        return flash(query, key, value, *options, scale=scale)[0]
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (each.repeat_interleave(groups, -3) for each in (key, value))
    mask = _additive(attn_mask, query)
    if (mask is not None and mask.requires_grad) or enable_gqa:
        with torch.autocast("cpu", enabled=False):
            return _by_products(query, key, value, mask, *options, scale)
    efficient = aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, mask, True, *options, scale=scale)[0]


def _by_products(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """Return attention whose probabilities are tensors, in float32 for 16-bit operands."""
    factor = math.sqrt(1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    wide = [each.float() if each.dtype in HALVES else each for each in (query, key, value)]
    scores = (wide[0] * factor) @ (wide[1] * factor).transpose(-2, -1)
    if is_causal:
        size = scores.shape[-2:]
        ones = torch.ones(size, dtype=torch.bool, device=query.device).tril()
        mask = torch.zeros(size, dtype=scores.dtype, device=query.device).masked_fill(
            ~ones, float("-inf")
        )
    if mask is not None:
        scores = scores + mask
    shares = torch.softmax(scores, -1)
    if dropout_p > 0:
        shares = torch.native_dropout(shares, dropout_p, True)[0]
    return (shares @ wide[2]).to(query.dtype)


def _additive(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """Return a mask of numbers of the query's dtype to add, as torch converts one of booleans."""
    if mask is None or mask.dtype != torch.bool:
        return None if mask is None else mask.to(query.dtype)
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, float("-inf"))
