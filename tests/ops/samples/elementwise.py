"""Rows of arithmetic, activations, comparisons and casts."""

from __future__ import annotations

import numpy as np
import scipy.special
from ops.samples.sample import BOTH, M, N, Sample, direct

import graphc as g
from graphc.ops import activation
from graphc.ops.elementwise import scale, shift


def gelu_slope(x):
    density = np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    return scipy.special.ndtr(x) + x * density


def gelu_tanh(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def complex_step(function, x):
    """The derivative of a real analytic function, to the last bit or so."""
    return function(x + 1e-30j).imag / 1e-30


SLOPE = activation.Slope(0.1)


SAMPLES = [
    # arithmetic
    Sample("add", g.add, (M, N), np.add, {"a": {"dy"}, "b": {"dy"}}),
    Sample("sub", g.sub, (M, (3, 1)), np.subtract, {"a": {"dy"}, "b": {"dy"}}),
    Sample("mul", g.mul, (M, N), np.multiply, {"a": {"dy", "b"}, "b": {"dy", "a"}}),
    Sample(
        "div", g.div, (M, (1, 4)), np.divide,
        {"a": {"dy", "b"}, "b": {"dy", "y", "b"}}, domain=(0.5, 2),
    ),
    Sample("neg", g.neg, (M,), np.negative, {"x": {"dy"}}),
    Sample("scale", lambda x: scale(x, 2.5), (M,), lambda x: 2.5 * x, {"x": {"dy"}}),
    Sample("shift", lambda x: shift(x, 2.5), (M,), lambda x: x + 2.5, {"x": {"dy"}}),
    Sample(
        "power", lambda x: x**2.5, (M,), lambda x: x**2.5, {"x": {"dy", "x"}}, domain=(0.5, 2)
    ),
    Sample("exp", g.exp, (M,), np.exp, {"x": {"dy", "y"}}),
    Sample("log", g.log, (M,), np.log, {"x": {"dy", "x"}}, domain=(0.5, 2)),
    Sample("sqrt", g.sqrt, (M,), np.sqrt, {"x": {"dy", "y"}}, domain=(0.5, 2)),
    # activations
    Sample("tanh", g.tanh, (M,), np.tanh, {"x": {"dy", "y"}}),
    Sample(
        "tanh_gradient", direct(activation.Tanh.derivative), (M, M),
        lambda y, dy: dy * (1 - y * y), {"y": {"ddx", "y", "dy"}, "dy": {"ddx", "y"}},
    ),
    Sample("sigmoid", g.sigmoid, (M,), scipy.special.expit, {"x": {"dy", "y"}}),
    Sample(
        "sigmoid_gradient", direct(activation.Sigmoid.derivative), (M, M),
        lambda y, dy: dy * y * (1 - y), {"y": {"ddx", "y", "dy"}, "dy": {"ddx", "y"}},
    ),
    Sample("relu", g.relu, (M,), lambda x: np.where(x > 0, x, 0), {"x": {"dy", "y"}}),
    Sample(
        "relu_gradient", direct(activation.Relu.derivative), (M, M),
        lambda y, dy: np.where(y > 0, dy, 0), {"y": set(), "dy": {"ddx", "y"}},
    ),
    Sample("relu6", g.relu6, (M,), lambda x: np.clip(x, 0, 6), {"x": {"dy", "y"}}, domain=(-2, 9)),
    Sample(
        "relu6_gradient", direct(activation.Relu6.derivative), (M, M),
        lambda y, dy: np.where((y > 0) & (y < 6), dy, 0), {"y": set(), "dy": {"ddx", "y"}},
        domain=(-2, 9),
    ),
    Sample(
        "leaky_relu", lambda x: g.leaky_relu(x, 0.1), (M,),
        lambda x: np.where(x > 0, x, 0.1 * x), {"x": {"dy", "y"}},
    ),
    Sample(
        "leaky_relu_gradient", direct(activation.LeakyRelu.derivative, SLOPE), (M, M),
        lambda y, dy: np.where(y > 0, dy, 0.1 * dy), {"y": set(), "dy": {"ddx", "y"}},
    ),
    Sample("gelu", g.gelu, (M,), lambda x: x * scipy.special.ndtr(x), {"x": {"dy", "x"}}),
    Sample(
        "gelu_gradient", direct(activation.Gelu.derivative), (M, M),
        lambda x, dy: dy * gelu_slope(x), {"x": {"ddx", "x", "dy"}, "dy": {"ddx", "x"}},
    ),
    Sample(
        "gelu_tanh", lambda x: g.gelu(x, "tanh"), (M,), gelu_tanh, {"x": {"dy", "x"}}
    ),
    Sample(
        "gelu_tanh_gradient", direct(activation.GeluTanh.derivative), (M, M),
        lambda x, dy: dy * complex_step(gelu_tanh, x),
        {"x": {"ddx", "x", "dy"}, "dy": {"ddx", "x"}},
    ),
    Sample("silu", g.silu, (M,), lambda x: x * scipy.special.expit(x), {"x": {"dy", "x"}}),
    Sample(
        "silu_gradient", direct(activation.Silu.derivative), (M, M),
        lambda x, dy: dy * complex_step(lambda z: z / (1 + np.exp(-z)), x),
        {"x": {"ddx", "x", "dy"}, "dy": {"ddx", "x"}},
    ),
    # comparison and choice
    Sample("equal", g.equal, (M, M), np.equal, dtypes=("int32", "int32")),
    Sample("less", g.less, (M, N), np.less),
    Sample("less_equal", g.less_equal, (M, N), np.less_equal),
    Sample(
        "where", g.where, (M, N, M), np.where,
        {"a": {"dy", "condition"}, "b": {"dy", "condition"}},
        dtypes=("bool", "float64", "float64"),
    ),
    Sample("maximum", g.maximum, (M, N), np.maximum, {"a": BOTH, "b": BOTH}),
    Sample("bitcast", lambda x: g.bitcast(x, "int64"), (M,), lambda x: x.view(np.int64)),
    Sample(
        "bitcast", lambda x: g.bitcast(x, "float32"), (M,), lambda x: x.view(np.float32),
        dtypes=("int32",), label=" of integers",
    ),
    Sample(
        "cast", lambda x: g.cast(x, "float64"), (M,), lambda x: x.astype(np.float64),
        {"x": {"dy"}}, dtypes=("float32",), second_order=False,
    ),
]  # fmt: skip
