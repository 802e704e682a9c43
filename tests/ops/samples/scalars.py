"""Rows of functions of one operand, of powers, quotients, remainders and of what has no slope."""

from __future__ import annotations

import numpy as np
import scipy.special
from ops.samples.elementwise import complex_step
from ops.samples.sample import BOTH, M, N, Sample, direct

import graphc as g
from graphc.ops import activation, choice, gamma, power, rounding, trigonometry


def rows(
    op, build, function, kept="x", domain=(-2.0, 2.0), slope=None, inverse=None, bends=True,
    attributes=None, image=None,
):  # fmt: skip
    """The rows of a function and of its gradient, which reads x, or y from which x is `inverse`.

    The slope by x is that of the function at a point beside x in the complex plane, if not given.
    """
    slope = slope or (lambda x: complex_step(function, x))

    def gradient(seen, dy):
        return dy * slope(inverse(seen) if inverse else seen)

    image = image or (sorted(function(np.array(domain))) if inverse else domain)
    return (
        Sample(op.name, build, (M,), function, {"x": {"dy", kept}}, domain=domain),
        Sample(
            op.derivative.name, direct(op.derivative, attributes), (M, M), gradient,
            {kept: {"ddx", kept, "dy"} if bends else set(), "dy": {"ddx", kept}},
            domain=image,
        ),
    )  # fmt: skip


def pieces(op, build, function, slope, kept="x", **others):
    """The rows of a function made of straight pieces."""
    return rows(op, build, function, kept, slope=slope, bends=False, **others)


def elu(x, alpha, gamma=1.0):
    return gamma * np.where(x > 0, x, alpha * (np.exp(x) - 1))


def softplus(x):
    return np.log(1 + np.exp(x))


def rows_without_slope(op, function, domain=(-4.0, 4.0)):
    return Sample(op, getattr(g, op), (M,), function, domain=domain)


POSITIVE = (0.5, 2.0)
BOUNDS = choice.Bounds(-0.5, 1.25)
INSIDE = (-0.9, 0.9)
INT32, INT64, BOOL = (("int32",) * 2, ("int64",) * 2, ("bool",) * 2)

SAMPLES = [
    # trigonometry
    *rows(trigonometry.Sin, g.sin, np.sin),
    *rows(trigonometry.Cos, g.cos, np.cos),
    *rows(trigonometry.Tan, g.tan, np.tan, "y", (-1.2, 1.2), inverse=np.arctan),
    *rows(trigonometry.Asin, g.asin, np.arcsin, domain=INSIDE),
    *rows(trigonometry.Acos, g.acos, np.arccos, domain=INSIDE),
    *rows(trigonometry.Atan, g.atan, np.arctan),
    *rows(trigonometry.Sinh, g.sinh, np.sinh),
    *rows(trigonometry.Cosh, g.cosh, np.cosh),
    *rows(trigonometry.Asinh, g.asinh, np.arcsinh),
    *rows(trigonometry.Acosh, g.acosh, np.arccosh, domain=(1.5, 4.0)),
    *rows(trigonometry.Atanh, g.atanh, np.arctanh, domain=INSIDE),
    *rows(trigonometry.Erf, g.erf, scipy.special.erf),
    Sample("atan2", g.atan2, (M, N), np.arctan2, {"a": BOTH, "b": BOTH}),
    # gamma functions
    *rows(
        gamma.Lgamma, g.lgamma, scipy.special.gammaln, slope=scipy.special.psi,
        domain=(0.2, 2.0),
    ),
    *rows(gamma.Digamma, g.digamma, scipy.special.psi, domain=(0.2, 2.0)),
    # activations
    *rows(
        activation.Softplus, g.softplus, softplus, "y",
        inverse=lambda y: np.log(np.exp(y) - 1),
    ),
    *rows(activation.Mish, g.mish, lambda x: x * np.tanh(softplus(x))),
    *rows(
        activation.Softsign, g.softsign, lambda x: x / (1 + np.abs(x)), "y",
        slope=lambda x: 1 / (1 + np.abs(x)) ** 2, inverse=lambda y: y / (1 - np.abs(y)),
    ),
    *rows(
        activation.Elu, lambda x: g.elu(x, 0.7), lambda x: elu(x, 0.7), "y",
        slope=lambda x: np.where(x > 0, 1, 0.7 * np.exp(x)),
        inverse=lambda y: np.where(y > 0, y, np.log(1 + np.minimum(y, 0) / 0.7)),
        attributes=activation.Alpha(0.7),
    ),
    *rows(
        activation.Celu, lambda x: g.celu(x, 0.7),
        lambda x: np.where(x > 0, x, 0.7 * (np.exp(x / 0.7) - 1)), "y",
        slope=lambda x: np.where(x > 0, 1, np.exp(x / 0.7)),
        inverse=lambda y: np.where(y > 0, y, 0.7 * np.log(1 + np.minimum(y, 0) / 0.7)),
        attributes=activation.Alpha(0.7),
    ),
    *rows(
        activation.Selu, lambda x: g.selu(x, 0.7, 1.3), lambda x: elu(x, 0.7, 1.3), "y",
        slope=lambda x: 1.3 * np.where(x > 0, 1, 0.7 * np.exp(x)),
        inverse=lambda y: np.where(y > 0, y / 1.3, np.log(1 + np.minimum(y, 0) / 0.7 / 1.3)),
        attributes=activation.ScaledAlpha(0.7, 1.3),
    ),
    *pieces(
        activation.HardSigmoid, lambda x: g.hard_sigmoid(x, 0.4, 0.6),
        lambda x: np.clip(0.4 * x + 0.6, 0, 1), lambda x: np.where((x > -1.5) & (x < 1), 0.4, 0),
        "y", attributes=activation.Line(0.4, 0.6), inverse=lambda y: (y - 0.6) / 0.4,
        image=(-1.0, 2.0),
    ),
    *rows(
        activation.HardSwish, g.hard_swish, lambda x: x * np.clip(x + 3, 0, 6) / 6,
        domain=(-4.0, 4.0),
        slope=lambda x: np.where(x < -3, 0, np.where(x > 3, 1, (2 * x + 3) / 6)),
    ),
    *pieces(
        activation.ThresholdedRelu, lambda x: g.thresholded_relu(x, 0.5),
        lambda x: x * (x > 0.5), lambda x: 1.0 * (x > 0.5), attributes=activation.Threshold(0.5),
    ),
    Sample(
        "prelu", g.prelu, (M, (3, 1)), lambda x, slope: np.maximum(x, 0) + slope * np.minimum(x, 0),
        {"x": {"dy", "x", "slope"}, "slope": {"dy", "x"}},
    ),
    Sample(
        "prelu_gradient", direct(activation.PReluGradient), (M, (3, 1), M),
        lambda x, slope, dy: dy * ((x > 0) + slope * (x <= 0)),
        {"x": set(), "slope": {"ddx", "x", "dy"}, "dy": {"ddx", "x", "slope"}},
    ),
    # absolute values, bounds
    *pieces(rounding.Abs, g.abs, np.abs, np.sign),
    *pieces(
        choice.Clip, lambda x: g.clip(x, -0.5, 1.25), lambda x: np.clip(x, -0.5, 1.25),
        lambda x: 1.0 * ((x > -0.5) & (x < 1.25)), "y", attributes=BOUNDS,
        inverse=lambda y: y, image=(-1.0, 2.0),
    ),
    Sample("minimum", g.minimum, (M, N), np.minimum, {"a": BOTH, "b": BOTH}),
    # powers
    *rows(power.Reciprocal, g.reciprocal, lambda x: 1 / x, "y", POSITIVE, inverse=lambda y: 1 / y),
    Sample("pow", g.power, (M, N), np.power, {"a": BOTH, "b": BOTH}, domain=POSITIVE),
    Sample(
        "pow_base_gradient", direct(power.PowBaseGradient), (M, N, M),
        lambda a, b, dy: dy * b * a**b / a,
        {"a": {"ddx", "a", "b", "dy"}, "b": {"ddx", "a", "b", "dy"}, "dy": {"ddx", "a", "b"}},
        domain=POSITIVE,
    ),
    Sample(
        "pow_exponent_gradient", direct(power.PowExponentGradient), (M, N, M),
        lambda a, b, dy: dy * np.exp(b * np.log(a)) * np.log(a),
        {"a": {"ddx", "a", "b", "dy"}, "b": {"ddx", "a", "b", "dy"}, "dy": {"ddx", "a", "b"}},
        domain=POSITIVE,
    ),
    # whole numbers and questions
    rows_without_slope("floor", np.floor),
    rows_without_slope("ceil", np.ceil),
    rows_without_slope("round", np.round),
    rows_without_slope("trunc", np.trunc),
    rows_without_slope("sign", lambda x: 1.0 * (x > 0) - 1.0 * (x < 0)),
    rows_without_slope("isnan", lambda x: x != x),
    rows_without_slope("isinf", lambda x: np.abs(x) > 1e308),
    # quotients and remainders
    Sample("floor_divide", g.floor_divide, (M, N), lambda a, b: np.floor(a / b)),
    Sample("trunc_divide", g.trunc_divide, (M, N), lambda a, b: np.trunc(a / b)),
    Sample(
        "remainder", g.remainder, (M, (3, 1)), lambda a, b: a - b * np.floor(a / b),
        {"a": {"dy"}, "b": BOTH},
    ),
    Sample(
        "fmod", g.fmod, (M, (3, 1)), lambda a, b: a - b * np.trunc(a / b),
        {"a": {"dy"}, "b": BOTH},
    ),
    # integers and bools
    Sample("bitwise_and", g.bitwise_and, (M, N), np.bitwise_and, dtypes=INT32, int_limit=99),
    Sample("bitwise_or", g.bitwise_or, (M, N), np.bitwise_or, dtypes=INT64, int_limit=99),
    Sample("bitwise_xor", g.bitwise_xor, (M, N), np.bitwise_xor, dtypes=BOOL),
    Sample("bitwise_not", g.bitwise_not, (M,), np.bitwise_not, dtypes=INT32, int_limit=99),
    Sample("left_shift", g.left_shift, (M, N), np.left_shift, dtypes=INT32, int_limit=9),
    Sample("right_shift", g.right_shift, (M, N), np.right_shift, dtypes=INT64, int_limit=9),
]  # fmt: skip
