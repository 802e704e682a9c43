"""Import of attention: natively without a mask, else by the body of ONNX's function."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import graphc
from graphc.ir.graph import Value
from graphc.onnx.calls import OnnxCall, rule
from graphc.onnx.functions import MASKED


@rule("Attention")
def attention(call: OnnxCall) -> Sequence[Value] | None:
    """Import Attention natively if it has no mask, cache or cap; else use ONNX's body."""
    if not _is_plain(call):
        return None
    q, k, v = (_heads(call, i) for i in range(3))
    is_causal = bool(call.attribute("is_causal", 0))
    if q.shape[1] % k.shape[1] or (is_causal and q.shape[2] != k.shape[2]):
        return None  # ONNX aligns causal rows to the first column, graphc to the last
    groups = q.shape[1] // k.shape[1]
    y = graphc.attention(
        q, _repeated(k, groups), _repeated(v, groups), is_causal, scale=call.attribute("scale")
    )
    if len(call.shape(0)) == 4:
        return (y,)
    batch, _, positions, _ = y.shape
    return (graphc.reshape(graphc.transpose(y, (0, 2, 1, 3)), (batch, positions, -1)),)


def _is_plain(call: OnnxCall) -> bool:
    """Return True if an Attention node has only queries, keys and values, and one used output."""
    words = ("softcap", "softmax_precision", "qk_matmul_output_mode")
    windows = (call.attribute(f"{side}_window_size", -1) for side in ("left", "right"))
    return (
        not any(call.has(i) for i in range(3, len(call.arguments)))
        and not any(call.wants(i) for i in range(1, 4))
        and not any(call.attribute(word) for word in words)
        and all(size < 0 for size in windows)
    )


def _heads(call: OnnxCall, index: int) -> Value:
    """Return an operand as (batch, heads, positions, width).

    Heads may be concatenated along the last axis in the file.
    """
    x = call.value(index)
    if x.type.rank == 4:
        return x
    heads = call.required("kv_num_heads" if index else "q_num_heads")
    batch, positions, width = x.shape
    apart = graphc.reshape(x, (batch, positions, heads, width // heads))
    return graphc.transpose(apart, (0, 2, 1, 3))


def _repeated(x: Value, times: int) -> Value:
    """Repeat each head `times` times, for grouped queries."""
    if times == 1:
        return x
    batch, heads, *rest = x.shape
    each = graphc.reshape(x, (batch, heads, 1, *rest))
    wide = graphc.broadcast_to(each, (batch, heads, times, *rest))
    return graphc.reshape(wide, (batch, heads * times, *rest))


@rule("Softmax", domain=MASKED)
def masked_softmax(call: OnnxCall) -> Value:
    """Import softmax over unmasked elements; entirely masked rows and their gradients are 0."""
    x = call.value(0)
    lowest = graphc.full((), -np.inf, x.type.dtype)
    return graphc.masked_softmax(x, graphc.greater(x, lowest), call.attribute("axis", -1))
