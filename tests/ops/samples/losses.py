"""Rows of losses."""

from __future__ import annotations

import numpy as np
from ops.samples.sample import M, Sample, direct
from scipy.special import log_softmax, softmax

from graphc.ops import cross_entropy, linear_cross_entropy, loss, row_cross_entropy

FLOAT, LABELS = "float64", "int32"


def mean_entropy(logits, labels):
    chosen = np.take_along_axis(log_softmax(logits, 1), labels[:, None].astype(int), 1)
    return -chosen.mean(), softmax(logits, 1)


def targets(labels, weights, smoothing, ignored):
    """What each row's -log p is multiplied with, (rows, classes)."""
    classes = weights.size
    spread = (1 - smoothing) * np.eye(classes)[labels] + smoothing / classes
    return spread * weights * (labels != ignored)[:, None]


def row_entropy(smoothing, ignored=None):
    def reference(logits, labels, weights=np.ones(4)):  # noqa: B008
        wanted = targets(labels, weights, smoothing, ignored)
        return -(wanted * log_softmax(logits, 1)).sum(1), softmax(logits, 1)

    return reference


def row_entropy_back(smoothing, ignored=None):
    """The gradient of -sum of targets · log softmax."""

    def reference(p, labels, dlosses, weights=np.ones(4)):  # noqa: B008
        wanted = targets(labels, weights, smoothing, ignored)
        return dlosses[:, None] * (p * wanted.sum(1, keepdims=True) - wanted)

    return reference


def binary_entropy(x, target, positive):
    return positive * target * np.logaddexp(0, -x) + (1 - target) * np.logaddexp(0, x)


def label_weights(ignored):
    return lambda labels, weights: weights[labels] * (labels != ignored)


def entropy_samples(label, smoothing, ignored, weighted):
    """Losses of rows, and their gradient as an op of its own."""
    a = row_cross_entropy.CrossEntropyAttributes(smoothing, () if ignored is None else (ignored,))
    weights, dtype = (((4,),), (FLOAT,)) if weighted else ((), ())
    options = {"int_limit": 4, "label": label}
    back = {
        "probabilities": {"ddlogits", "labels", "dlosses", "weights"},
        "dlosses": {"ddlogits", "probabilities", "labels", "weights"},
    }
    return [
        Sample(
            "cross_entropy", direct(row_cross_entropy.CrossEntropy, a), (M, (3,), *weights),
            row_entropy(smoothing, ignored),
            {"logits": {"dlosses", "dprobabilities", "probabilities", "labels", "weights"}},
            dtypes=(FLOAT, LABELS, *dtype), **options,
        ),
        Sample(
            "cross_entropy_gradient", direct(row_cross_entropy.CrossEntropyGradient, a),
            (M, (3,), (3,), *weights), row_entropy_back(smoothing, ignored),
            back if smoothing or weighted else {},  # plain, labels do not change the first
            dtypes=(FLOAT, LABELS, FLOAT, *dtype), **options,
        ),
    ]  # fmt: skip


def with_slopes(smoothing, ignored):
    a = linear_cross_entropy.PaddedCrossEntropyAttributes(
        smoothing, () if ignored is None else (ignored,)
    )

    def reference(logits, labels):
        losses, p = row_entropy(smoothing, ignored)(logits, labels)
        return losses, row_entropy_back(smoothing, ignored)(p, labels, np.ones(labels.shape))

    return Sample(
        "cross_entropy_with_slopes", direct(linear_cross_entropy.CrossEntropyWithSlopes, a),
        (M, (3,)), reference, dtypes=(FLOAT, LABELS), int_limit=4,
        label=" smooth" if smoothing else "",
    )  # fmt: skip


def weight_sample(label, ignored):
    a = row_cross_entropy.LabelWeightAttributes(() if ignored is None else (ignored,))
    return Sample(
        "label_weight", direct(row_cross_entropy.LabelWeight, a), ((5, 3), (4,)),
        label_weights(ignored), dtypes=(LABELS, FLOAT), int_limit=4, label=label,
    )  # fmt: skip


SAMPLES = [
    Sample(
        "softmax_cross_entropy", direct(cross_entropy.SoftmaxCrossEntropy), (M, (3,)), mean_entropy,
        {"logits": {"dloss", "dprobabilities", "probabilities", "labels"}},
        dtypes=(FLOAT, LABELS), int_limit=4,
    ),
    Sample(
        "softmax_cross_entropy_gradient", direct(cross_entropy.SoftmaxCrossEntropyGradient),
        (M, (3,), ()), lambda p, labels, d: (p - np.eye(4)[labels]) * d / 3,
        {"probabilities": {"ddlogits", "dloss"}, "dloss": {"ddlogits", "probabilities", "labels"}},
        dtypes=(FLOAT, LABELS, FLOAT), int_limit=4,
    ),
    *entropy_samples("", 0.25, 3, weighted=True),
    *entropy_samples(" plain", 0.0, None, weighted=False),
    *entropy_samples(" smooth", 0.25, 3, weighted=False),
    *entropy_samples(" weighted", 0.0, 3, weighted=True),
    with_slopes(0.0, None),
    with_slopes(0.25, 3),
    Sample(
        "binary_cross_entropy",
        direct(loss.BinaryCrossEntropy), (M, M, (4,)), binary_entropy,
        {
            "x": {"dy", "x", "target", "positive"}, "target": {"dy", "x", "positive"},
            "positive": {"dy", "x", "target"},
        },
        domain=(0.1, 0.9),
    ),
    Sample(
        "huber", direct(loss.Huber, loss.HuberAttributes(0.75)), (M,),
        lambda x: np.where(np.abs(x) <= 0.75, x * x / 2, 0.75 * (np.abs(x) - 0.375)),
        {"x": {"dy", "x"}},
    ),
    Sample(
        "huber_gradient", direct(loss.HuberGradient, loss.HuberAttributes(0.75)), (M, M),
        lambda x, dy: dy * np.clip(x, -0.75, 0.75),
        {"x": {"ddx", "x", "dy"}, "dy": {"ddx", "x"}},
    ),
    Sample(
        "gradient_sum", direct(linear_cross_entropy.GradientSum), (M, M), lambda a, b: a + b,
        {"a": {"dy"}, "b": {"dy"}},
    ),
    Sample(
        "carried_gradient", direct(linear_cross_entropy.CarriedGradient), (M, ()),
        lambda slope, dy: slope * dy,
    ),
    weight_sample("", 3),
    weight_sample(" all", None),
]  # fmt: skip
