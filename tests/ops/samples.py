"""One row an op: how to build it, on which inputs, and what NumPy or SciPy says it is.

`reference` computes the outputs independently of graphc. Inputs are drawn from `domain`; integer
inputs from range(int_limit). `reads` states, for each differentiable input, the least set of
values that its gradient needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.special
from scipy.special import log_softmax, softmax

import graphc as g
from graphc.ir.builder import apply
from graphc.ir.op import REGISTRY
from graphc.ir.ops import activation, embedding, loss, shape
from graphc.ir.ops import softmax as softmax_ops
from graphc.ir.ops.elementwise import scale, shift
from graphc.ir.ops.matmul import Linear


@dataclass(frozen=True)
class Sample:
    op: str
    build: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    reference: Callable[..., Any]
    reads: dict[str, set[str]] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    domain: tuple[float, float] = (-2.0, 2.0)
    int_limit: int = 3
    second_order: bool = True
    label: str = ""

    @property
    def name(self) -> str:
        return f"{self.op}{self.label}"

    def dtype(self, index: int) -> str:
        return self.dtypes[index] if self.dtypes else "float64"


def direct(op_class, attributes=None):
    """Build a node of an op that has no function of its own."""

    def build(*inputs):
        outputs = apply(op_class, *inputs, attributes=attributes).outputs
        return outputs[0] if len(outputs) == 1 else outputs

    return build


def gelu_slope(x):
    density = np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    return scipy.special.ndtr(x) + x * density


def gelu_tanh(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def complex_step(function, x):
    """The derivative of a real analytic function, to the last bit or so."""
    return function(x + 1e-30j).imag / 1e-30


def cross_entropy(logits, labels):
    chosen = np.take_along_axis(log_softmax(logits, 1), labels[:, None].astype(int), 1)
    return -chosen.mean(), softmax(logits, 1)


def scatter(dy, indices):
    table = np.zeros((5, *dy.shape[indices.ndim :]))
    np.add.at(table, indices, dy)
    return table


def padded(x):
    out = np.zeros((4, 5))
    out[1:4:2, 0:3:1] = x
    return out


M, N = (3, 4), (4,)
BOTH = {"dy", "a", "b"}
PART = shape.SliceAttributes((1, 0), (4, 3), (2, 1))
WHOLE = shape.PadSliceAttributes((4, 5), (1, 0), (4, 3), (2, 1))
SLOPE = activation.Slope(0.1)
AXIS0, AXIS1 = shape.AxisAttributes(0), shape.AxisAttributes(1)

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
        "tanh_gradient", direct(activation.TanhGradient), (M, M),
        lambda y, dy: dy * (1 - y * y), {"y": {"ddx", "y", "dy"}, "dy": {"ddx", "y"}},
    ),
    Sample("sigmoid", g.sigmoid, (M,), scipy.special.expit, {"x": {"dy", "y"}}),
    Sample(
        "sigmoid_gradient", direct(activation.SigmoidGradient), (M, M),
        lambda y, dy: dy * y * (1 - y), {"y": {"ddx", "y", "dy"}, "dy": {"ddx", "y"}},
    ),
    Sample("relu", g.relu, (M,), lambda x: np.where(x > 0, x, 0), {"x": {"dy", "y"}}),
    Sample(
        "relu_gradient", direct(activation.ReluGradient), (M, M),
        lambda y, dy: np.where(y > 0, dy, 0), {"y": set(), "dy": {"ddx", "y"}},
    ),
    Sample(
        "leaky_relu", lambda x: g.leaky_relu(x, 0.1), (M,),
        lambda x: np.where(x > 0, x, 0.1 * x), {"x": {"dy", "y"}},
    ),
    Sample(
        "leaky_relu_gradient", direct(activation.LeakyReluGradient, SLOPE), (M, M),
        lambda y, dy: np.where(y > 0, dy, 0.1 * dy), {"y": set(), "dy": {"ddx", "y"}},
    ),
    Sample("gelu", g.gelu, (M,), lambda x: x * scipy.special.ndtr(x), {"x": {"dy", "x"}}),
    Sample(
        "gelu_gradient", direct(activation.GeluGradient), (M, M),
        lambda x, dy: dy * gelu_slope(x), {"x": {"ddx", "x", "dy"}, "dy": {"ddx", "x"}},
    ),
    Sample(
        "gelu_tanh", lambda x: g.gelu(x, "tanh"), (M,), gelu_tanh, {"x": {"dy", "x"}}
    ),
    Sample(
        "gelu_tanh_gradient", direct(activation.GeluTanhGradient), (M, M),
        lambda x, dy: dy * complex_step(gelu_tanh, x),
        {"x": {"ddx", "x", "dy"}, "dy": {"ddx", "x"}},
    ),
    Sample("silu", g.silu, (M,), lambda x: x * scipy.special.expit(x), {"x": {"dy", "x"}}),
    Sample(
        "silu_gradient", direct(activation.SiluGradient), (M, M),
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
    Sample(
        "cast", lambda x: g.cast(x, "float64"), (M,), lambda x: x.astype(np.float64),
        {"x": {"dy"}}, dtypes=("float32",), second_order=False,
    ),
    # shape
    Sample("full", lambda: g.full((3, 2), 1.5, "float64"), (), lambda: np.full((3, 2), 1.5)),
    Sample(
        "reshape", lambda x: g.reshape(x, (2, -1)), (M,), lambda x: x.reshape(2, 6), {"x": {"dy"}}
    ),
    Sample(
        "transpose", lambda x: g.transpose(x, (2, 0, 1)), ((2, 3, 4),),
        lambda x: x.transpose(2, 0, 1), {"x": {"dy"}},
    ),
    Sample(
        "broadcast_to", lambda x: g.broadcast_to(x, (2, 3, 4)), ((3, 1),),
        lambda x: np.broadcast_to(x, (2, 3, 4)), {"x": {"dy"}},
    ),
    Sample("slice", lambda x: x[1:4:2, :3], ((4, 5),), lambda x: x[1:4:2, :3], {"x": {"dy"}}),
    Sample("pad_slice", direct(shape.PadSlice, WHOLE), ((2, 3),), padded, {"x": {"dy"}}),
    Sample(
        "concat", lambda *x: g.concat(x, 1), (M, (3, 1), (3, 2)),
        lambda *x: np.concatenate(x, 1), {"parts": {"dy"}},
    ),
    Sample(
        "split", lambda x: g.split(x, [1, 3], 1), (M,),
        lambda x: (x[:, :1], x[:, 1:]), {"x": {"dparts"}},
    ),
    # reductions
    Sample("sum", lambda x: g.sum(x, 1), ((2, 3, 4),), lambda x: x.sum(1), {"x": {"dy"}}),
    Sample("sum", g.sum, (M,), np.sum, {"x": {"dy"}}, label=" all"),
    Sample(
        "mean", lambda x: g.mean(x, (0, 2), True), ((2, 3, 4),),
        lambda x: x.mean((0, 2), keepdims=True), {"x": {"dy"}},
    ),
    Sample("max", lambda x: g.max(x, -1), (M,), lambda x: x.max(-1), {"x": {"dy", "x", "y"}}),
    # products
    Sample("matmul", g.matmul, (M, (4, 5)), np.matmul, {"a": {"dy", "b"}, "b": {"dy", "a"}}),
    Sample(
        "matmul", lambda a, b: g.matmul(a, b, True, True), ((4, 3), (5, 4)),
        lambda a, b: a.T @ b.T, {"a": {"dy", "b"}, "b": {"dy", "a"}}, label=" transposed",
    ),
    Sample(
        "matmul", lambda a, b: g.matmul(a, b, False, True), ((2, 1, 3, 4), (5, 2, 4)),
        lambda a, b: a @ b.swapaxes(-1, -2), {"a": {"dy", "b"}, "b": {"dy", "a"}}, label=" batched",
    ),
    Sample(
        "matmul", lambda a, b: g.matmul(a, b, True, False), ((2, 4, 3), (2, 4, 5)),
        lambda a, b: a.swapaxes(-1, -2) @ b, {"a": {"dy", "b"}, "b": {"dy", "a"}}, label=" left",
    ),
    Sample(
        "linear", direct(Linear), (M, (5, 4), (5,)), lambda x, w, b: x @ w.T + b,
        {"x": {"dy", "weight"}, "weight": {"dy", "x"}, "bias": {"dy"}},
    ),
    # softmax
    Sample("softmax", g.softmax, (M,), lambda x: softmax(x, -1), {"x": {"dy", "y"}}),
    Sample(
        "softmax", lambda x: g.softmax(x, 0), ((5,),), softmax, {"x": {"dy", "y"}}, label=" vector"
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
    # look-ups and losses
    Sample(
        "gather", g.gather, ((5, 2), (2, 3)), lambda table, i: table[i],
        {"table": {"dy", "indices"}}, dtypes=("float64", "int32"), int_limit=5,
    ),
    Sample(
        "gather_gradient", direct(embedding.GatherGradient, embedding.RowsAttributes(5)),
        ((2, 3, 2), (2, 3)), scatter, {"dy": {"ddtable", "indices"}},
        dtypes=("float64", "int64"), int_limit=5,
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

STATE_OPS = {name for name, op in REGISTRY.items() if op.has_effect} | {"adam_correction"}
"""Ops of optimizers; tests/test_optim.py compares them with their papers' formulas."""
