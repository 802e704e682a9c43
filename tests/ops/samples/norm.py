"""Rows of norms and dropout."""

from __future__ import annotations

import numpy as np
from ops.samples.sample import Sample, direct

from graphc.ops import batch_norm, norm, norm_gradient, random
from graphc.ops.rms_norm import RmsNorm


def standardised(x, axes, epsilon=1e-5):
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    inverse = 1 / np.sqrt(variance + epsilon)
    return (x - mean) * inverse, mean.ravel(), inverse.ravel()


def batch_normed(x, scale, bias, *_):
    unit, mean, inverse = standardised(x, tuple(i for i in range(x.ndim) if i != 1))
    shape = (1, -1) + (1,) * (x.ndim - 2)
    return unit * scale.reshape(shape) + bias.reshape(shape), mean, inverse


def layer_normed(x, scale, bias):
    unit, mean, inverse = standardised(x, (-1,))
    return unit * scale + bias, mean, inverse


def group_normed(x, scale, bias):
    unit, mean, inverse = standardised(x.reshape(x.shape[0], 2, -1), (-1,))
    shape = (1, -1) + (1,) * (x.ndim - 2)
    return unit.reshape(x.shape) * scale.reshape(shape) + bias.reshape(shape), mean, inverse


def rms_normed(x, scale):
    inverse = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    return x * inverse * scale, inverse


def norm_back(dy, x, mean, inverse, scale):
    """For statistics as given, over the last axis of (5, 6)."""
    unit, g = (x - mean[:, None]) * inverse[:, None], dy * scale
    left = g - g.mean(1, keepdims=True) - unit * (g * unit).mean(1, keepdims=True)
    return left * inverse[:, None]


def all_back(dy, x, mean, inverse, scale):
    """For statistics as given, over all but the second axis of three."""
    unit = (x - mean[:, None]) * inverse[:, None]
    g, axes = dy * scale[:, None], (0, 2)
    means = (part.mean(axes, keepdims=True) for part in (g, g * unit))
    dx = (g - next(means) - unit * next(means)) * inverse[:, None]
    return dx, (dy * unit).sum(axes), dy.sum(axes)


NORM_READS = {
    "x": {"dy", "dmean", "dinverse", "x", "mean", "inverse", "scale"},
    "scale": {"dy", "x", "mean", "inverse"},
    "bias": {"dy"},
}


ALL = {"ddx", "dy", "x", "mean", "inverse", "scale"}


LAYER = norm_gradient.NormGradientAttributes((5, 6), (1,), (1,))
CHANNELS = norm_gradient.NormGradientAttributes((3, 4, 5), (0, 2), (1,))


BATCH = batch_norm.BatchNormAttributes(1e-5, 0.1)


EPSILON = norm.EpsilonAttributes(1e-5)


def given_statistics(x, mean, factor, bias):
    return (x - mean) * factor + bias


def philox4x32(counter, key):
    """Salmon et al. 2011 with Python's integers: one block of four words."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(q >> 32) ^ c[1] ^ k[0], q % 2**32, (p >> 32) ^ c[3] ^ k[1], p % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def dropped(x, seed, step):
    words = [
        word
        for block in range(-(-x.size // 4))
        for word in philox4x32((block, 0, 0, int(step)), [int(s) for s in seed])
    ]
    uniform = np.array([(word >> 8) * 2.0**-24 for word in words[: x.size]]).reshape(x.shape)
    return np.where(uniform >= 0.25, x / 0.75, 0.0)


SAMPLES = [
    # norms
    Sample(
        "batch_norm", direct(batch_norm.BatchNorm, BATCH), ((3, 5, 2, 3), *[(5,)] * 4),
        batch_normed, NORM_READS,
    ),
    Sample(
        "batch_norm", direct(batch_norm.BatchNorm, BATCH), ((7, 2), *[(2,)] * 4), batch_normed,
        NORM_READS, label=" of rows",
    ),
    Sample(
        "layer_norm", direct(norm.LayerNorm, EPSILON), ((2, 3, 7), (7,), (7,)), layer_normed,
        NORM_READS,
    ),
    Sample(
        "group_norm", direct(norm.GroupNorm, norm.GroupNormAttributes(2, 1e-5)),
        ((3, 4, 2, 3), (4,), (4,)), group_normed, NORM_READS,
    ),
    Sample(
        "rms_norm", direct(RmsNorm, norm.EpsilonAttributes(1e-6)), ((2, 3, 5), (5,)),
        rms_normed,
        {"x": {"dy", "dinverse", "x", "inverse", "scale"}, "scale": {"dy", "x", "inverse"}},
    ),
    Sample(
        "norm_input_gradient", direct(norm_gradient.NormInputGradient, LAYER),
        ((5, 6), (5, 6), (5,), (5,), (6,)), norm_back,
        {
            "dy": {"ddx", "x", "mean", "inverse", "scale"},
            "scale": {"ddx", "dy", "x", "mean", "inverse"},
            "x": ALL, "mean": ALL, "inverse": ALL,
        },
    ),
    Sample(
        "norm_scale_gradient", direct(norm_gradient.NormScaleGradient, LAYER),
        ((5, 6), (5, 6), (5,), (5,)),
        lambda dy, x, m, v: (dy * (x - m[:, None]) * v[:, None]).sum(0),
        {
            "dy": {"ddscale", "x", "mean", "inverse"}, "x": {"ddscale", "dy", "inverse"},
            "mean": {"ddscale", "dy", "inverse"}, "inverse": {"ddscale", "dy", "x", "mean"},
        },
    ),
    Sample("norm_bias_gradient", direct(norm_gradient.NormBiasGradient, LAYER), ((5, 6),),
           lambda dy: dy.sum(0), {"dy": {"ddbias"}}),
    Sample(
        "norm_parameter_gradients", direct(norm_gradient.NormParameterGradients, LAYER),
        ((5, 6), (5, 6), (5,), (5,)),
        lambda dy, x, m, v: ((dy * (x - m[:, None]) * v[:, None]).sum(0), dy.sum(0)),
    ),
    Sample(
        "norm_gradients", direct(norm_gradient.NormGradients, CHANNELS),
        ((3, 4, 5), (3, 4, 5), (4,), (4,), (4,)), all_back,
    ),
    # random
    Sample(
        "dropout", direct(random.Dropout, random.DropoutAttributes(0.25, 0)),
        ((5, 7), (2,), ()), dropped, {"x": {"dy", "seed", "step"}},
        dtypes=("float64", "int64", "int64"), int_limit=9,
    ),
    Sample(
        "batch_norm_inference", direct(batch_norm.BatchNormInference),
        ((2, 3, 4), *[(1, 3, 1)] * 3), given_statistics,
        {
            "x": {"dy", "factor"}, "mean": {"dy", "factor"}, "factor": {"dy", "x", "mean"},
            "bias": {"dy"},
        },
    ),
]  # fmt: skip
