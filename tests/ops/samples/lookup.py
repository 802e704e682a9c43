"""Rows of look-ups and losses."""

from __future__ import annotations

import numpy as np
from ops.samples.sample import M, Sample, direct
from scipy.special import log_softmax, softmax

import graphc as g
from graphc.ops import embedding, loss


def cross_entropy(logits, labels):
    chosen = np.take_along_axis(log_softmax(logits, 1), labels[:, None].astype(int), 1)
    return -chosen.mean(), softmax(logits, 1)


def scatter(dy, indices):
    table = np.zeros((5, *dy.shape[indices.ndim :]))
    np.add.at(table, indices, dy)
    return table


SAMPLES = [
    Sample(
        "gather", g.gather, ((5, 2), (2, 3)), lambda table, i: table[i],
        {"table": {"dy", "indices"}}, dtypes=("float64", "int32"), int_limit=5,
    ),
    Sample(
        "gather_gradient", direct(embedding.GatherGradient, embedding.RowsAttributes(5)),
        ((2, 3, 2), (2, 3)), scatter, {"dy": {"ddtable", "indices"}, "sum": {"ddtable"}},
        dtypes=("float64", "int64"), int_limit=5,
    ),
    Sample(
        "gather_gradient", direct(embedding.GatherGradient, embedding.RowsAttributes(5, True)),
        ((2, 3, 2), (2, 3), (5, 2)), lambda dy, i, sum: sum + scatter(dy, i),
        {"dy": {"ddtable", "indices"}, "sum": {"ddtable"}},
        dtypes=("float64", "int64", "float64"), int_limit=5, label="-accumulate",
    ),
    Sample(
        "one_hot", lambda i: g.one_hot(i, 3, "float64"), ((2, 4),), lambda i: np.eye(3)[i],
        dtypes=("uint8",),
    ),
    Sample(
        "softmax_cross_entropy", direct(loss.SoftmaxCrossEntropy), (M, (3,)), cross_entropy,
        {"logits": {"dloss", "dprobabilities", "probabilities", "labels"}},
        dtypes=("float64", "int32"), int_limit=4,
    ),
    Sample(
        "softmax_cross_entropy_gradient", direct(loss.SoftmaxCrossEntropyGradient),
        (M, (3,), ()), lambda p, labels, d: (p - np.eye(4)[labels]) * d / 3,
        {"probabilities": {"ddlogits", "dloss"}, "dloss": {"ddlogits", "probabilities", "labels"}},
        dtypes=("float64", "int32", "float64"), int_limit=4,
    ),
]  # fmt: skip
