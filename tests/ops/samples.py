"""One row an op: how to build it, on which inputs, and what NumPy or SciPy says it is.

`reference` computes the outputs independently of graphc. Inputs are drawn from `domain`; integer
inputs from range(int_limit). `reads` states, for each differentiable input, the least set of
values that its gradient needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.special
from scipy.special import log_softmax, softmax

import graphc as g
from graphc.ir.builder import apply
from graphc.ir.op import REGISTRY
from graphc.ops import (
    activation,
    attention,
    batch_norm,
    conv,
    embedding,
    fused,
    loss,
    matmul,
    norm,
    pool,
    random,
    resample,
    shape,
)
from graphc.ops import softmax as softmax_ops
from graphc.ops.elementwise import scale, shift
from graphc.ops.fused_reduce import FusedReduce, FusedReduceAttributes
from graphc.ops.reduce import square_sum


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
    joint: bool = False
    """Whether one node gives all gradients, and so reads what any of them needs."""
    label: str = ""

    @property
    def name(self) -> str:
        return f"{self.op}{self.label}"

    def dtype(self, index: int) -> str:
        return self.dtypes[index] if self.dtypes else "float64"


MATMUL_READS = {"a": {"dy", "b"}, "b": {"dy", "a"}, "sum": {"dy"}}


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


def windows(x, size, stride, padding, dilation=(1, 1), fill=0.0):
    """All windows of x: (n, c, rows, columns, *size)."""
    spread = [(0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2]
    wide = np.pad(x, spread, constant_values=fill)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, size, strict=True)]
    found = np.lib.stride_tricks.sliding_window_view(wide, reach, (2, 3))
    return found[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


def convolution(x, w, a):
    """Direct: for each group, every window times every filter."""
    parts = []
    for group, filters in zip(np.split(x, a.groups, 1), np.split(w, a.groups, 0), strict=True):
        seen = windows(group, w.shape[2:], a.stride, a.padding, a.dilation)
        parts.append(np.einsum("nchwrs,kcrs->nkhw", seen, filters))
    return np.concatenate(parts, 1)


def linear_transpose(function, shape, dy):
    """The transpose of a linear map, from its action on unit vectors."""
    units = np.eye(int(np.prod(shape))).reshape(-1, *shape)
    return np.array([np.sum(function(unit) * dy) for unit in units]).reshape(shape)


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


def pool_samples(label, x, size, stride, padding):
    """Max and average pooling with this geometry, and their gradients as ops."""
    a = pool.Pool2dAttributes(size, stride, padding)
    back = pool._with_extent(a, x)

    def largest(x):
        seen = windows(x, size, stride, padding, fill=-np.inf)
        flat = seen.reshape(*seen.shape[:4], -1)
        return flat.max(-1), flat.argmax(-1)

    def average(x):
        return windows(x, size, stride, padding).mean((-2, -1))

    y = average(np.zeros(x)).shape
    # places that lie inside the input for every window
    inner = list(range(size[0] * size[1]))
    middle = inner[len(inner) // 2]

    def chosen(x, place):
        seen = windows(x, size, stride, padding).reshape(*y, -1)
        return np.take_along_axis(seen, place[..., None].astype(int), -1)[..., 0]

    return [
        Sample(
            "max_pool2d",
            direct(pool.MaxPool2d, a),
            (x,),
            largest,
            {"x": {"dy", "place"}},
            label=label,
        ),
        Sample(
            "max_pool2d_gradient",
            direct(pool.MaxPool2dGradient, back),
            (y, y),
            lambda dy, place: linear_transpose(lambda x: chosen(x, place), x, dy),
            {"dy": {"ddx", "place"}},
            dtypes=("float64", "uint8"),
            int_limit=middle + 1,
            label=label,
        ),
        Sample(
            "max_pool2d_select",
            direct(pool.MaxPool2dSelect, a),
            (x, y),
            chosen,
            {"x": {"dy", "place"}},
            dtypes=("float64", "uint8"),
            int_limit=middle + 1,
            label=label,
        ),
        Sample(
            "average_pool2d",
            direct(pool.AveragePool2d, a),
            (x,),
            average,
            {"x": {"dy"}},
            label=label,
        ),
        Sample(
            "average_pool2d_gradient",
            direct(pool.AveragePool2dGradient, back),
            (y,),
            lambda dy: linear_transpose(average, x, dy),
            {"dy": {"ddx"}},
            label=label,
        ),
    ]


def shares(x, extent):
    rows = list(np.array_split(np.arange(x.shape[2]), extent[0]))
    if all(n % m == 0 for n, m in zip(x.shape[2:], extent, strict=True)):
        columns = list(np.array_split(np.arange(x.shape[3]), extent[1]))
    else:  # uneven shares overlap by one: floor of the start, ceiling of the end
        rows = [
            range(i * x.shape[2] // extent[0], -(-(i + 1) * x.shape[2] // extent[0]))
            for i in range(extent[0])
        ]
        columns = [
            range(j * x.shape[3] // extent[1], -(-(j + 1) * x.shape[3] // extent[1]))
            for j in range(extent[1])
        ]
    out = [[x[:, :, list(r)][..., list(c)].mean((2, 3)) for c in columns] for r in rows]
    return np.array(out).transpose(2, 3, 0, 1)


def bilinear(x, factor):
    for axis in (2, 3):
        n = x.shape[axis]
        centres = (np.arange(n * factor) + 0.5) / factor - 0.5
        x = np.apply_along_axis(
            lambda line, n=n, c=centres: np.interp(c, np.arange(n), line), axis, x
        )
    return x


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


NORM_READS = {
    "x": {"dy", "x", "mean", "inverse", "scale"},
    "scale": {"dy", "x", "mean", "inverse"},
    "bias": {"dy"},
}
LAYER = norm.NormGradientAttributes((5, 6), (1,), (1,))
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


M, N = (3, 4), (4,)
BOTH = {"dy", "a", "b"}
PART = shape.SliceAttributes((1, 0), (4, 3), (2, 1))
WHOLE = shape.PadSliceAttributes((4, 5), (1, 0), (4, 3), (2, 1))
SLOPE = activation.Slope(0.1)
AXIS0, AXIS1 = shape.AxisAttributes(0), shape.AxisAttributes(1)


def lstm_tail(f, c, i, g):
    gates = [scipy.special.expit(x) for x in (f, i)]
    c_new = gates[0] * c + gates[1] * np.tanh(g)
    return gates[0], c_new, np.tanh(c_new)


GROUPS = [
    (
        "row", ("add(x0, x1)", "relu(m0)", "scale(m1, value=0.5)"), (2,), (M, N),
        lambda x, b: np.maximum(x + b, 0) / 2, (),
    ),
    (
        "cell",
        ("sigmoid(x0)", "mul(m0, x1)", "sigmoid(x2)", "tanh(x3)", "mul(m2, m3)", "add(m1, m4)",
         "tanh(m5)"),
        (0, 5, 6), (M, M, M, M), lstm_tail, (),
    ),
    (
        "early", ("mul(x0, x1)", "sub(x1, m0)", "power(x0, value=3.0)"), (0, 1, 2), (M, M),
        lambda a, b: (a * b, b - a * b, a**3), (),
    ),
    (
        "choice", ("less(x0, x1)", "neg(x1)", "where(m0, x0, m1)"), (0, 2), (M, M),
        lambda a, b: (a < b, np.where(a < b, a, -b)), (),
    ),
    (
        "mask", ("where(x0, x1, x2)", "shift(m0, value=-1.5)"), (1,), (M, M, ()),
        lambda m, a, b: np.where(m, a, b) - 1.5, ("bool", "float64", "float64"),
    ),
]  # fmt: skip
"""Label, members, results, shapes, reference and dtypes of fused nodes."""

MAPS = (2, 3, 4, 5)

REDUCED_GROUPS = [
    (
        "sum", ("mul(x0, x1)", "relu(m0)"), ("sum", (0,), False, (0, 1), ()), (M, N),
        lambda x, b: np.maximum(x * b, 0).sum(0), (),
    ),
    (
        "mean", ("sub(x0, x1)", "mul(m0, m0)"), ("mean", (0, 2, 3), True, (0, 2, 3, 1), ()),
        (MAPS, (3, 1, 1)), lambda x, b: ((x - b) ** 2).mean((0, 2, 3), keepdims=True), (),
    ),
    (
        "max", ("less(x0, x1)", "neg(x1)", "where(m0, x0, m1)"), ("max", (1,), False, (1, 0), ()),
        (M, M), lambda a, b: np.where(a < b, a, -b).max(1), (),
    ),
    (
        "square_sum", ("scale(x0, value=0.5)",), ("square_sum", (0, 1), False, (0, 1), ()),
        (M,), lambda x: (x**2).sum() / 4, (),
    ),
    (
        "after", ("neg(x0)",), ("sum", (1,), True, (0, 1), ("scale(x0, value=0.5)", "mul(m0, x0)")),
        (M,), lambda x: x.sum(1, keepdims=True) ** 2 / 2, (),
    ),
    (
        "root", (), ("square_sum", (0, 1), False, (0, 1), ("sqrt(x0)", "maximum(m0, 1.5)")),
        (M,), lambda x: np.maximum(np.sqrt((x**2).sum()), 1.5), (),
    ),
    (
        "mask", ("where(x0, x1, x2)",), ("sum", (0, 1), False, (0, 1), ()), (M, M, ()),
        lambda m, a, b: np.where(m, a, b).sum(), ("bool", "float64", "float64"),
    ),
]  # fmt: skip
"""Label, members, how they are reduced, shapes, reference and dtypes of fused reductions."""

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
    Sample("relu6", g.relu6, (M,), lambda x: np.clip(x, 0, 6), {"x": {"dy", "y"}}, domain=(-2, 9)),
    Sample(
        "relu6_gradient", direct(activation.Relu6Gradient), (M, M),
        lambda y, dy: np.where((y > 0) & (y < 6), dy, 0), {"y": set(), "dy": {"ddx", "y"}},
        domain=(-2, 9),
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
    # groups
    *(
        Sample(
            "fused", direct(fused.Fused, fused.FusedAttributes(members, results)), shapes,
            reference, label=f" {label}", dtypes=dtypes,
        )
        for label, members, results, shapes, reference, dtypes in GROUPS
    ),
    *(
        Sample(
            "fused_reduce", direct(FusedReduce, FusedReduceAttributes(members, *reduction)), shapes,
            reference, label=f" {label}", dtypes=dtypes,
        )
        for label, members, reduction, shapes, reference, dtypes in REDUCED_GROUPS
    ),
    # shape
    Sample("full", lambda: g.full((3, 2), 1.5, "float64"), (), lambda: np.full((3, 2), 1.5)),
    Sample(
        "reshape", lambda x: g.reshape(x, (2, -1)), (M,), lambda x: x.reshape(2, 6), {"x": {"dy"}}
    ),
    Sample("copy", direct(shape.Copy), (M,), lambda x: x, {"x": {"dy"}}),
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
    Sample("square_sum", square_sum, (M,), lambda x: (x**2).sum(), {"x": {"dy", "x"}}),
    Sample("max", lambda x: g.max(x, -1), (M,), lambda x: x.max(-1), {"x": {"dy", "x", "y"}}),
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
        "linear", direct(matmul.Linear), (M, (5, 4), (5,)), lambda x, w, b: x @ w.T + b,
        {"x": {"dy", "weight"}, "weight": {"dy", "x"}, "bias": {"dy"}},
    ),
    Sample(
        "linear", direct(matmul.Linear, matmul.LinearAttributes("relu")), (M, (5, 4), (5,)),
        lambda x, w, b: np.maximum(x @ w.T + b, 0), label=" relu",
    ),
    Sample(
        "linear", direct(matmul.Linear, matmul.LinearAttributes("gelu")), (M, (5, 4), (5,)),
        lambda x, w, b: gelu_tanh(x @ w.T + b), label=" gelu",
    ),
    # convolution
    *conv_samples("", (2, 3, 5, 7), (4, 3, 3, 2), (1, 1), (0, 0)),
    *conv_samples(" padded", (1, 2, 5, 5), (3, 2, 3, 3), (2, 2), (1, 1)),
    *conv_samples(" stride above window", (2, 1, 7, 7), (1, 1, 2, 2), (3, 3), (0, 0)),
    *conv_samples(" dilated", (1, 2, 7, 5), (2, 2, 3, 2), (1, 2), (2, 1), (2, 3)),
    *conv_samples(" depthwise", (2, 3, 5, 5), (3, 1, 3, 3), (1, 1), (1, 1), groups=3),
    *conv_samples(" grouped", (1, 4, 3, 3), (6, 2, 1, 1), (2, 1), (0, 0), groups=2),
    *conv_samples(" pointwise", (2, 3, 4, 5), (2, 3, 1, 1), (1, 1), (0, 0)),
    *conv_samples(" ones", (1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (0, 0)),
    Sample(
        "conv2d", direct(conv.Conv2d, conv.Conv2dAttributes()), ((2, 3, 5, 5), (4, 3, 2, 2), (4,)),
        lambda x, w, b: convolution(x, w, conv.Conv2dAttributes()) + b[:, None, None],
        {"x": {"dy", "w"}, "w": {"dy", "x"}, "bias": {"dy"}}, label=" bias",
    ),
    # pooling and resampling
    *pool_samples("", (2, 2, 6, 4), (2, 2), (2, 2), (0, 0)),
    *pool_samples(" overlapping", (1, 2, 7, 5), (3, 2), (2, 1), (0, 0)),
    *pool_samples(" stride above window", (1, 1, 7, 7), (2, 2), (3, 3), (0, 0)),
    Sample(
        "max_pool2d", lambda x: g.max_pool2d(x, 3, 2, 1).producer.outputs, ((2, 3, 5, 5),),
        lambda x: (
            (w := windows(x, (3, 3), (2, 2), (1, 1), fill=-np.inf).reshape(2, 3, 3, 3, -1)).max(-1),
            w.argmax(-1),
        ),
        {"x": {"dy", "place"}}, label=" padded",
    ),
    Sample(
        "average_pool2d", lambda x: g.average_pool2d(x, 3, 2, 1), ((2, 3, 5, 5),),
        lambda x: windows(x, (3, 3), (2, 2), (1, 1)).mean((-2, -1)), {"x": {"dy"}},
        label=" padded",
    ),
    Sample(
        "adaptive_average_pool2d", lambda x: g.adaptive_average_pool2d(x, (3, 2)), ((2, 2, 7, 5),),
        lambda x: shares(x, (3, 2)), {"x": {"dy"}},
    ),
    Sample(
        "adaptive_average_pool2d_gradient",
        direct(resample.AdaptiveAveragePool2dGradient, resample.ExtentAttributes((7, 5))),
        ((2, 2, 3, 2),),
        lambda dy: linear_transpose(lambda x: shares(x, (3, 2)), (2, 2, 7, 5), dy),
        {"dy": {"ddx"}},
    ),
    Sample(
        "upsample_nearest2d", lambda x: g.upsample2d(x, 3), ((2, 2, 2, 3),),
        lambda x: x.repeat(3, 2).repeat(3, 3), {"x": {"dy"}},
    ),
    Sample(
        "upsample_bilinear2d", lambda x: g.upsample2d(x, 2, "bilinear"), ((2, 2, 3, 4),),
        lambda x: bilinear(x, 2), {"x": {"dy"}},
    ),
    Sample(
        "upsample_bilinear2d_gradient",
        direct(resample.UpsampleBilinear2dGradient, resample.UpsampleAttributes(3)),
        ((1, 2, 6, 9),),
        lambda dy: linear_transpose(lambda x: bilinear(x, 3), (1, 2, 2, 3), dy), {"dy": {"ddx"}},
    ),
    # norms
    Sample(
        "batch_norm", direct(batch_norm.BatchNorm, BATCH), ((3, 5, 2, 3), *[(5,)] * 4),
        batch_normed, NORM_READS, second_order=False,
    ),
    Sample(
        "batch_norm", direct(batch_norm.BatchNorm, BATCH), ((7, 2), *[(2,)] * 4), batch_normed,
        NORM_READS, second_order=False, label=" of rows",
    ),
    Sample(
        "layer_norm", direct(norm.LayerNorm, EPSILON), ((2, 3, 7), (7,), (7,)), layer_normed,
        NORM_READS, second_order=False,
    ),
    Sample(
        "group_norm", direct(norm.GroupNorm, norm.GroupNormAttributes(2, 1e-5)),
        ((3, 4, 2, 3), (4,), (4,)), group_normed, NORM_READS, second_order=False,
    ),
    Sample(
        "rms_norm", direct(norm.RmsNorm, norm.EpsilonAttributes(1e-6)), ((2, 3, 5), (5,)),
        rms_normed, {"x": {"dy", "x", "inverse", "scale"}, "scale": {"dy", "x", "inverse"}},
        second_order=False,
    ),
    Sample(
        "norm_input_gradient", direct(norm.NormInputGradient, LAYER),
        ((5, 6), (5, 6), (5,), (5,), (6,)), norm_back,
    ),
    Sample(
        "norm_scale_gradient", direct(norm.NormScaleGradient, LAYER), ((5, 6), (5, 6), (5,), (5,)),
        lambda dy, x, m, v: (dy * (x - m[:, None]) * v[:, None]).sum(0),
    ),
    Sample("norm_bias_gradient", direct(norm.NormBiasGradient, LAYER), ((5, 6),),
           lambda dy: dy.sum(0)),
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
    # softmax
    Sample("softmax", g.softmax, (M,), lambda x: softmax(x, -1), {"x": {"dy", "y"}}),
    Sample(
        "softmax", lambda x: g.softmax(x, 0), ((5,),), softmax, {"x": {"dy", "y"}}, label=" vector"
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
    # look-ups and losses
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

STATE_OPS = {name for name, op in REGISTRY.items() if op.has_effect} | {
    "adam_correction",
    "learning_rate",
}
"""Ops of optimizers; tests/api/test_optim.py compares them with their papers' formulas."""
