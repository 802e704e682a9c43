"""Rows of softmax and attention."""

from __future__ import annotations

import numpy as np
import scipy.special
from ops.samples.sample import M, Sample, direct
from scipy.special import log_softmax, softmax

import graphc as g
from graphc.ops import attention, shape
from graphc.ops import softmax as softmax_ops

AXIS0, AXIS1 = shape.AxisAttributes(0), shape.AxisAttributes(1)


def masked_softmax(x, mask):
    weights = np.exp(x) * mask
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total == 0, 1, total)


def causal_softmax(x):
    later = np.triu(np.ones(x.shape[-2:], bool), x.shape[-1] - x.shape[-2] + 1)
    return softmax(np.where(later, -np.inf, x), -1)


def attended(causal):
    """y and the logarithms of the sums, by the formula."""

    def reference(q, k, v):
        scores = attention_scores(q, k, causal)
        return softmax(scores, -1) @ v, scipy.special.logsumexp(scores, -1)

    return reference


def attention_scores(q, k, causal):
    scores = q @ k.swapaxes(-1, -2) * 0.75
    later = np.triu(np.ones(scores.shape[-2:], bool), scores.shape[-1] - scores.shape[-2] + 1)
    return np.where(later & causal, -np.inf, scores)


def attended_back(causal):
    """What y and stats say is taken as given, whatever softmax would say."""

    def reference(dy, q, k, v, y, stats):
        weights = np.exp(attention_scores(q, k, causal) - stats[..., None])
        slopes = weights * (dy @ v.swapaxes(-1, -2) - (dy * y).sum(-1, keepdims=True)) * 0.75
        return slopes @ k, slopes.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ dy

    return reference


def attention_samples(label, batch, rows, columns, width, values, causal):
    """Attention of these extents, and its gradient as an op of its own."""
    a = attention.AttentionAttributes(0.75, causal)
    q, k, v = ((*batch, *e) for e in ((rows, width), (columns, width), (columns, values)))
    y = (*batch, rows, values)
    reads = {"dy", "q", "k", "v", "y", "stats"}
    return [
        Sample(
            "attention",
            direct(attention.Attention, a),
            (q, k, v),
            attended(causal),
            dict.fromkeys("qkv", reads),
            second_order=False,
            joint=True,
            label=label,
        ),
        Sample(
            "attention_gradient",
            direct(attention.AttentionGradient, a),
            (y, q, k, v, y, (*batch, rows)),
            attended_back(causal),
            label=label,
        ),
    ]


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
    *attention_samples("", (2, 2), 3, 4, 5, 2, False),
    *attention_samples(" causal", (1, 2), 5, 5, 3, 3, True),
    *attention_samples(" causal, more columns", (2, 1), 2, 5, 2, 4, True),
    *attention_samples(" one", (1, 1), 1, 1, 1, 1, True),
]  # fmt: skip
