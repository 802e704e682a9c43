"""Rows of softmax and attention."""

from __future__ import annotations

import numpy as np
from ops.samples.norm import dropped
from ops.samples.sample import M, Sample, direct
from scipy.special import log_softmax, softmax

import graphc as g
from graphc.ops import shape
from graphc.ops import softmax as softmax_ops
from graphc.ops.dropped_attention import (
    DroppedAttention,
    DroppedAttentionGradient,
    DroppedAttributes,
)
from graphc.ops.fused_attention import Attention, AttentionGradient
from graphc.ops.tiled_attention import AttentionAttributes

AXIS0, AXIS1 = shape.AxisAttributes(0), shape.AxisAttributes(1)


def masked_softmax(x, mask):
    weights = np.exp(x) * mask
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total == 0, 1, total)


def causal_softmax(x):
    later = np.triu(np.ones(x.shape[-2:], bool), x.shape[-1] - x.shape[-2] + 1)
    return softmax(np.where(later, -np.inf, x), -1)


def attended(scores_of, drops):
    """y and the logarithms of the sums, by the formula; rows that see nothing are 0."""

    def reference(q, k, v, *rest):
        counters, mask = rest[: 2 * drops], rest[2 * drops :]
        k, v = shared_by(q, k), shared_by(q, v)
        scores = scores_of(q, k, *mask)
        lowest = np.finfo(scores.dtype).min
        peak = np.maximum(scores.max(-1, keepdims=True), lowest)
        weights = np.exp(scores - peak)
        total = weights.sum(-1, keepdims=True)
        stats = np.where(total > 0, peak + np.log(np.maximum(total, 1)), 0)
        weights = weights / np.maximum(total, 1)
        return (dropped(weights, *counters) if drops else weights) @ v, stats[..., 0]

    return reference


def shared_by(q, k):
    return k.repeat(q.shape[1] // k.shape[1], 1)


def attention_scores(causal, from_first):
    def scores_of(q, k, *mask):
        scores = q @ k.swapaxes(-1, -2) * 0.75
        for given in mask:
            scores = np.where(given, scores, -np.inf) if given.dtype == bool else scores + given
        rows, columns = scores.shape[-2:]
        later = np.triu(np.ones((rows, columns), bool), 1 if from_first else columns - rows + 1)
        return np.where(later & causal, -np.inf, scores)

    return scores_of


def attended_back(scores_of, drops):
    """What y and stats say is taken as given, whatever softmax would say."""

    def reference(dy, q, k, v, y, stats, *rest):
        counters, mask = rest[: 2 * drops], rest[2 * drops :]
        wide_k, wide_v = shared_by(q, k), shared_by(q, v)
        weights = np.exp(scores_of(q, wide_k, *mask) - stats[..., None])
        reach = dy @ wide_v.swapaxes(-1, -2)
        reach = dropped(reach, *counters) if drops else reach
        slopes = weights * (reach - (dy * y).sum(-1, keepdims=True)) * 0.75
        weights = dropped(weights, *counters) if drops else weights
        sums = (slopes.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ dy)
        parts = (k.shape[1], q.shape[1] // k.shape[1])
        dk, dv = (s.reshape(s.shape[0], *parts, *s.shape[2:]).sum(2) for s in sums)
        return slopes @ wide_k, dk, dv

    return reference


def attention_samples(
    label, batch, rows, columns, width, values, causal=False, from_first=False, keys=0, mask=(),
    drops=False,
):  # fmt: skip
    """Attention of these extents, and its gradient as an op of its own; `mask` is a shape and a
    dtype."""
    given, ops, name = (0.75, causal, from_first), (Attention, AttentionGradient), "attention"
    a = AttentionAttributes(*given)
    if drops:
        a = DroppedAttributes(*given, rate=0.25, stream=0)
        ops, name = (DroppedAttention, DroppedAttentionGradient), "dropped_attention"
    shared = (batch[0], keys or batch[1])
    q, k, v = (*batch, rows, width), (*shared, columns, width), (*shared, columns, values)
    y = (*batch, rows, values)
    counters = {"seed": (2,), "step": ()} if drops else {}
    reads = {"dy", "q", "k", "v", "y", "stats", "mask", *counters}
    shapes, dtypes = (*counters.values(),), ("int64",) * len(counters)
    if mask:
        shapes, dtypes = (*shapes, mask[0]), (*dtypes, mask[1])
    scores_of = attention_scores(causal, from_first)
    return [
        Sample(
            name, direct(ops[0], a), (q, k, v, *shapes),
            attended(scores_of, drops),
            {**dict.fromkeys("qkv", reads), "mask": reads - {"y", "stats"}},
            dtypes=(*("float64",) * 3, *dtypes), int_limit=1000, joint=True,
            label=label,
        ),
        Sample(
            f"{name}_gradient", direct(ops[1], a),
            (y, q, k, v, y, (*batch, rows), *shapes), attended_back(scores_of, drops),
            dtypes=(*("float64",) * 6, *dtypes), label=label,
        ),
    ]  # fmt: skip


SAMPLES = [
    # softmax
    Sample("softmax", g.softmax, (M,), lambda x: softmax(x, -1), {"x": {"dy", "y"}}),
    Sample(
        "softmax", lambda x: g.softmax(x, 0), ((5,),), softmax, {"x": {"dy", "y"}}, label=" vector"
    ),
    Sample(
        "masked_softmax", g.masked_softmax, ((3, 6, 3), (6, 3)), masked_softmax,
        {"x": {"dy", "y"}}, dtypes=("float64", "bool"),
    ),
    *(
        Sample(
            "causal_softmax", g.causal_softmax, (shape_of,), causal_softmax, {"x": {"dy", "y"}},
            label=f" {label}",
        )
        for label, shape_of in (
            ("square", (2, 5, 5)), ("wide", (3, 7)), ("one", (1, 1)), ("block", (33, 37))
        )
    ),
    Sample(
        "softmax_gradient", direct(softmax_ops.SoftmaxGradient, AXIS1), (M, M),
        lambda y, dy: y * (dy - (dy * y).sum(1, keepdims=True)),
        {"y": {"ddx", "y", "dy"}, "dy": {"ddx", "y"}},
    ),
    Sample(
        "log_softmax", lambda x: g.log_softmax(x, 0), (M,), lambda x: log_softmax(x, 0),
        {"x": {"dy", "y"}},
    ),
    Sample(
        "log_softmax_gradient", direct(softmax_ops.LogSoftmaxGradient, AXIS0), (M, M),
        lambda y, dy: dy - np.exp(y) * dy.sum(0), {"y": {"ddx", "y", "dy"}, "dy": {"ddx", "y"}},
    ),
    # attention
    *attention_samples("", (2, 2), 3, 4, 5, 2),
    *attention_samples(" causal", (1, 2), 5, 5, 3, 3, True),
    *attention_samples(" causal, more columns", (2, 1), 2, 5, 2, 4, True),
    *attention_samples(" one", (1, 1), 1, 1, 1, 1, True),
    *attention_samples(" from the first, more rows", (1, 2), 6, 4, 2, 3, True, True),
    *attention_samples(" shared keys", (2, 6), 3, 4, 5, 2, keys=2),
    *attention_samples(" mask", (2, 2), 3, 4, 5, 2, mask=((2, 1, 3, 4), "bool")),
    *attention_samples(" added", (2, 4), 3, 4, 5, 2, keys=2, mask=((1, 4, 3, 4), "float64")),
    *attention_samples(
        " causal, mask", (2, 2), 4, 5, 2, 3, True, keys=1, mask=((2, 2, 4, 5), "bool")
    ),
    *attention_samples("", (2, 3), 4, 5, 5, 2, drops=True),
    *attention_samples(" causal, even", (1, 2), 5, 6, 3, 3, True, drops=True),
    *attention_samples(
        " shared keys, mask", (2, 4), 3, 4, 5, 2, keys=2, mask=((2, 1, 3, 4), "bool"), drops=True
    ),
    *attention_samples(
        " added", (1, 2), 6, 7, 2, 3, True, mask=((1, 2, 6, 7), "float64"), drops=True
    ),
]  # fmt: skip
