"""Scaled dot-product attention (Vaswani et al., 2017), composed of matmul and softmax."""

from __future__ import annotations

import math

from graphc.errors import ShapeError, whole_number
from graphc.ir.builder import as_value
from graphc.ir.graph import Value
from graphc.ir.ops.concat import split
from graphc.ir.ops.elementwise import scale
from graphc.ir.ops.matmul import matmul
from graphc.ir.ops.random import dropout
from graphc.ir.ops.shape import reshape, transpose
from graphc.ir.ops.softmax import causal_softmax, softmax


def attention(q: Value, k: Value, v: Value, causal: bool = False, drop: float = 0.0) -> Value:
    """softmax(q · kᵀ / √d) · v for q (..., rows, d), k (..., columns, d), v (..., columns, e).

    With `causal`, a row sees no column that belongs to a later row; no mask is stored. `drop` is
    the dropout rate of the weights. Raises `ShapeError` where the operands do not fit.
    """
    for name, value in (("q", q), ("k", k), ("v", v)):
        if as_value("attention", value).type.rank < 2:
            raise ShapeError(f"attention: {name} is (..., positions, channels), got {value.type}")
    scores = scale(matmul(q, k, transpose_b=True), 1 / math.sqrt(q.shape[-1]))
    weights = causal_softmax(scores) if causal else softmax(scores)
    return matmul(dropout(weights, drop), v)


def multi_head_attention(qkv: Value, heads: int, causal: bool = False, drop: float = 0.0) -> Value:
    """Attention in `heads` parts of the width: qkv (batch, positions, 3 · width) to one width.

    The last axis holds queries, keys and values, each head by head. Raises `ShapeError` where it
    does not divide.
    """
    heads = whole_number("multi_head_attention: heads", heads)
    if as_value("multi_head_attention", qkv).type.rank != 3 or qkv.shape[2] % (3 * heads):
        raise ShapeError(
            "multi_head_attention: qkv is (batch, positions, 3 · width) with a width that "
            f"{heads} heads divide, got {qkv.type}"
        )
    batch, positions, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    q, k, v = (
        transpose(reshape(part, (batch, positions, heads, width // heads)), (0, 2, 1, 3))
        for part in split(qkv, 3, axis=2)
    )
    mixed = attention(q, k, v, causal, drop)
    return reshape(transpose(mixed, (0, 2, 1, 3)), (batch, positions, width))
