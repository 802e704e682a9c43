"""Rows of matrix products and convolutions."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from ops.samples.elementwise import gelu_tanh
from ops.samples.sample import M, Sample, direct, linear_transpose, windows

import graphc as g
from graphc.ops import conv, matmul, product_with_sums

MATMUL_READS = {"a": {"dy", "b"}, "b": {"dy", "a"}, "sum": {"dy"}}


def convolution(x, w, a):
    """Direct: for each group, every window times every filter."""
    parts = []
    for group, filters in zip(np.split(x, a.groups, 1), np.split(w, a.groups, 0), strict=True):
        seen = windows(group, w.shape[2:], a.stride, a.padding, a.dilation)
        parts.append(np.einsum("nchwrs,kcrs->nkhw", seen, filters))
    return np.concatenate(parts, 1)


def conv_samples(label, x, w, stride, padding, dilation=(1, 1), groups=1):
    """A convolution with this geometry, and its two gradients as ops of their own."""
    a = conv.Conv2dAttributes(stride, padding, dilation, groups)
    dy = convolution(np.zeros(x), np.zeros(w), a).shape
    to_x = conv._input_attributes(a, x)
    to_w = conv._weight_attributes(a, w)
    return [
        Sample(
            "conv2d",
            direct(conv.Conv2d, a),
            (x, w),
            lambda x, w: convolution(x, w, a),
            {"x": {"dy", "w"}, "w": {"dy", "x"}, "bias": {"dy"}},
            label=label,
        ),
        Sample(
            "conv2d_input_gradient",
            direct(conv.Conv2dInputGradient, to_x),
            (dy, w),
            lambda dy, w: linear_transpose(lambda x: convolution(x, w, a), x, dy),
            {"dy": {"ddx", "w"}, "w": {"ddx", "dy"}},
            label=label,
        ),
        Sample(
            "conv2d_weight_gradient",
            direct(conv.Conv2dWeightGradient, to_w),
            (dy, x),
            lambda dy, x: linear_transpose(lambda w: convolution(x, w, a), w, dy),
            {"dy": {"ddw", "x"}, "x": {"ddw", "dy"}, "sum": {"ddw"}},
            label=label,
        ),
        Sample(
            "conv2d_weight_gradient",
            direct(conv.Conv2dWeightGradient, replace(to_w, accumulate=True)),
            (dy, x, w),
            lambda dy, x, sum: sum + linear_transpose(lambda w: convolution(x, w, a), w, dy),
            {"dy": {"ddw", "x"}, "x": {"ddw", "dy"}, "sum": {"ddw"}},
            label=f"{label}-accumulate",
        ),
    ]


SAMPLES = [
    # products
    Sample("matmul", g.matmul, (M, (4, 5)), np.matmul, MATMUL_READS),
    *(
        Sample(
            "matmul", direct(matmul.Matmul, matmul.MatmulAttributes(*flags, accumulate=True)),
            ((4, 3) if flags[0] else M, (5, 4) if flags[1] else (4, 5), (3, 5)),
            lambda a, b, sum, flags=flags:
                sum + (a.T if flags[0] else a) @ (b.T if flags[1] else b),
            MATMUL_READS, label=f"-accumulate{flags[0]:d}{flags[1]:d}",
        )
        for flags in itertools.product((False, True), repeat=2)
    ),
    Sample(
        "matmul", lambda a, b: g.matmul(a, b, True, True), ((4, 3), (5, 4)),
        lambda a, b: a.T @ b.T, MATMUL_READS, label=" transposed",
    ),
    Sample(
        "matmul", lambda a, b: g.matmul(a, b, False, True), ((2, 1, 3, 4), (5, 2, 4)),
        lambda a, b: a @ b.swapaxes(-1, -2), MATMUL_READS, label=" batched",
    ),
    Sample(
        "matmul", lambda a, b: g.matmul(a, b, True, False), ((2, 4, 3), (2, 4, 5)),
        lambda a, b: a.swapaxes(-1, -2) @ b, MATMUL_READS, label=" left",
    ),
    Sample(
        "scaled_matmul",
        direct(matmul.ScaledMatmul, matmul.ScaledMatmulAttributes(transpose_b=True, alpha=0.3)),
        (M, (5, 4)), lambda a, b: 0.3 * (a @ b.T), MATMUL_READS,
    ),
    Sample(
        "scaled_matmul", direct(matmul.ScaledMatmul, matmul.ScaledMatmulAttributes(alpha=-2.5)),
        ((2, 3, 4), (2, 4, 5)), lambda a, b: -2.5 * (a @ b), MATMUL_READS, label=" batched",
    ),
    *(
        Sample(
            "scaled_matmul",
            direct(
                matmul.ScaledMatmul,
                matmul.ScaledMatmulAttributes(*flags, accumulate=True, alpha=0.3),
            ),
            ((4, 3) if flags[0] else M, (5, 4) if flags[1] else (4, 5), (3, 5)),
            lambda a, b, sum, flags=flags:
                sum + 0.3 * ((a.T if flags[0] else a) @ (b.T if flags[1] else b)),
            MATMUL_READS, label=f"-accumulate{flags[0]:d}{flags[1]:d}",
        )
        for flags in itertools.product((False, True), repeat=2)
    ),
    Sample(
        "linear", direct(matmul.Linear), (M, (5, 4), (5,)), lambda x, w, b: x @ w.T + b,
        {"x": {"dy", "weight"}, "weight": {"dy", "x"}, "bias": {"dy"}},
    ),
    Sample(
        "linear", direct(matmul.Linear, matmul.LinearAttributes("gelu")), (M, (5, 4), (5,)),
        lambda x, w, b: gelu_tanh(x @ w.T + b), label=" gelu",
    ),
    Sample(
        "product_with_sums", direct(product_with_sums.ProductWithSums), (M, (3, 5)),
        lambda dy, x: (dy.T @ x, dy.sum(0)),
    ),
    # convolution
    *conv_samples("", (2, 3, 5, 7), (4, 3, 3, 2), (1, 1), (0, 0)),
    *conv_samples(" padded", (1, 2, 5, 5), (3, 2, 3, 3), (2, 2), (1, 1)),
    *conv_samples(" stride above window", (2, 1, 7, 7), (1, 1, 2, 2), (3, 3), (0, 0)),
    *conv_samples(" dilated", (1, 2, 7, 5), (2, 2, 3, 2), (1, 2), (2, 1), (2, 3)),
    *conv_samples(" one side padded", (1, 2, 5, 6), (2, 2, 3, 2), (2, 1), (0, 1, 2, 0)),
    *conv_samples(" depthwise", (2, 3, 5, 5), (3, 1, 3, 3), (1, 1), (1, 1), groups=3),
    *conv_samples(" grouped", (1, 4, 3, 3), (6, 2, 1, 1), (2, 1), (0, 0), groups=2),
    *conv_samples(" pointwise", (2, 3, 4, 5), (2, 3, 1, 1), (1, 1), (0, 0)),
    *conv_samples(" ones", (1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (0, 0)),
    Sample(
        "conv2d", direct(conv.Conv2d, conv.Conv2dAttributes()), ((2, 3, 5, 5), (4, 3, 2, 2), (4,)),
        lambda x, w, b: convolution(x, w, conv.Conv2dAttributes()) + b[:, None, None],
        {"x": {"dy", "w"}, "w": {"dy", "x"}, "bias": {"dy"}}, label=" bias",
    ),
]  # fmt: skip
