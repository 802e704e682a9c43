"""Activation functions, each given by its expression and that of its gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from graphc.errors import OptionError, choose
from graphc.ir.attributes import Between
from graphc.ir.builder import apply
from graphc.ir.graph import Node, Value
from graphc.ops.choice import less_equal, minimum, where
from graphc.ops.elementwise import FloatElementwise, mul, zero
from graphc.ops.unary import Unary


class Tanh(Unary):
    """y = tanh(x)."""

    name, expression = "tanh", "tanh(x)"
    backward, bend = "dy * (1 - y * y)", "-2 * y"


class Sigmoid(Unary):
    """y = 1 / (1 + exp(-x))."""

    name, expression = "sigmoid", "sigmoid(x)"
    backward, bend = "dy * (y * (1 - y))", "1 - 2 * y"


class Relu(Unary):
    """y = max(x, 0). The gradient uses the output, which is positive exactly if x is."""

    name, expression = "relu", "maximum(x, 0)"
    backward = "where(y > 0, dy, 0)"


class Relu6(Unary):
    """y = min(max(x, 0), 6) (Howard et al., 2017). The gradient uses the output."""

    name, expression = "relu6", "-maximum(-maximum(x, 0), -6)"
    backward = "where(y > 0, where(y < 6, dy, 0), 0)"


@dataclass(frozen=True, slots=True)
class Slope:
    """The factor for negative inputs, above 0 so that the output keeps the input's sign."""

    slope: Annotated[float, Between(above=0.0)]


class LeakyRelu(Unary):
    """y = x if x > 0, else slope · x."""

    name, expression = "leaky_relu", "where(x > 0, x, x * slope)"
    attributes = Slope
    backward = "where(y > 0, dy, dy * slope)"


_SQRT_HALF = repr(math.sqrt(0.5))
_NORMAL = repr(1 / math.sqrt(2 * math.pi))
_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBE = 0.044715
_TANH_OF_X = f"tanh({_TANH_SCALE!r} * x * (1 + {_TANH_CUBE} * x * x))"
_TANH_SLOPE = f"({_TANH_SCALE!r} * (1 + {3 * _TANH_CUBE!r} * (x * x)))"


class Gelu(Unary):
    """y = x · Φ(x) with the normal distribution Φ (Hendrycks and Gimpel, 2016), exact."""

    name, expression = "gelu", f"0.5 * x * (1 + erf(x * {_SQRT_HALF}))"
    backward = f"dy * (0.5 * (1 + erf(x * {_SQRT_HALF})) + x * exp(-0.5 * x * x) * {_NORMAL})"
    bend = f"exp(-0.5 * (x * x)) * {_NORMAL} * (2 - x * x)"


class GeluTanh(Unary):
    """y = x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))), the form GPT-2 was trained with."""

    name, expression = "gelu_tanh", f"0.5 * x * (1 + {_TANH_OF_X})"
    backward = (
        f"dy * (0.5 * (1 + {_TANH_OF_X}) + 0.5 * x * (1 - {_TANH_OF_X} ** 2)"
        f" * {_TANH_SCALE!r} * (1 + {3 * _TANH_CUBE!r} * x * x))"
    )
    # s·u' + x/2·(s·u'' - 2·t·s·u'²) with t = tanh(u) and s = 1 - t²
    bend = (
        f"(1 - {_TANH_OF_X} * {_TANH_OF_X}) * ({_TANH_SLOPE} + 0.5 * x * ("
        f"{6 * _TANH_CUBE * _TANH_SCALE!r} * x - 2 * {_TANH_OF_X} * {_TANH_SLOPE} * {_TANH_SLOPE}))"
    )


class Silu(Unary):
    """y = x · sigmoid(x)."""

    name, expression = "silu", "x * sigmoid(x)"
    backward = "dy * sigmoid(x) * (1 + x * (1 - sigmoid(x)))"
    bend = "sigmoid(x) * (1 - sigmoid(x)) * (2 + x * (1 - 2 * sigmoid(x)))"


_SOFTPLUS = "(maximum(x, 0) + log1p(exp(-abs(x))))"


class Softplus(Unary):
    """y = log(1 + exp(x)), in a form that does not overflow."""

    name, expression, precision = "softplus", _SOFTPLUS, "wide"
    backward, bend = "-(dy * expm1(-y))", "exp(-y)"


class Mish(Unary):
    """y = x · tanh(softplus(x)) (Misra, 2019)."""

    name, expression = "mish", f"x * tanh({_SOFTPLUS})"
    backward = (
        f"dy * (tanh({_SOFTPLUS}) + x * sigmoid(x) * (1 - tanh({_SOFTPLUS}) * tanh({_SOFTPLUS})))"
    )
    # s·(1 - t²)·(2 + x·(1 - s - 2·t·s)) with t = tanh(log(1 + exp(x))) and s = sigmoid(x)
    _tanh = "tanh(maximum(x, 0) + log(1 + exp(-abs(x))))"
    bend = (
        f"sigmoid(x) * (1 - {_tanh} * {_tanh})"
        f" * (2 + x * (1 - sigmoid(x) - 2 * {_tanh} * sigmoid(x)))"
    )


class Softsign(Unary):
    """y = x / (1 + |x|)."""

    name, expression = "softsign", "x / (1 + abs(x))"
    backward, bend = "dy * ((1 - abs(y)) * (1 - abs(y)))", "2 * (abs(y) - 1) * sign(y)"


@dataclass(frozen=True, slots=True)
class Alpha:
    """The `alpha` of elu and celu: outputs stay above -alpha.

    It is above 0, so outputs keep the input's sign.
    """

    alpha: Annotated[float, Between(above=0.0)]


class Elu(Unary):
    """y = x if x > 0, else alpha · (exp(x) - 1) (Clevert et al., 2015)."""

    name, expression = "elu", "where(x > 0, x, alpha * expm1(x))"
    attributes = Alpha
    backward, bend = "where(y > 0, dy, dy * (y + alpha))", "where(y < 0, 1, 0)"


class Celu(Unary):
    """y = x if x > 0, else alpha · (exp(x / alpha) - 1) (Barron, 2017)."""

    name, expression = "celu", "where(x > 0, x, alpha * expm1(x / alpha))"
    attributes = Alpha
    backward, bend = "where(y > 0, dy, dy * (y / alpha + 1))", "where(y < 0, 1 / alpha, 0)"


@dataclass(frozen=True, slots=True)
class ScaledAlpha:
    """The `alpha` and `gamma` of selu, both above 0: outputs stay above -gamma · alpha."""

    alpha: Annotated[float, Between(above=0.0)]
    gamma: Annotated[float, Between(above=0.0)]


class Selu(Unary):
    """y = gamma · elu(x) (Klambauer et al., 2017)."""

    name, expression = "selu", "where(x > 0, gamma * x, gamma * alpha * expm1(x))"
    attributes = ScaledAlpha
    backward = "where(y > 0, dy * gamma, dy * (y + gamma * alpha))"
    bend = "where(y < 0, 1, 0)"


@dataclass(frozen=True, slots=True)
class Line:
    """Slope `alpha` and offset `beta` of the part of a hard sigmoid between 0 and 1."""

    alpha: Annotated[float, Between()]
    beta: Annotated[float, Between()]


class HardSigmoid(Unary):
    """y = alpha · x + beta, clipped to `[0, 1]`."""

    name, expression = "hard_sigmoid", "minimum(maximum(alpha * x + beta, 0), 1)"
    attributes = Line
    backward = "where(y > 0, where(y < 1, dy * alpha, 0), 0)"


class HardSwish(Unary):
    """y = x · min(max(x / 6 + 1/2, 0), 1) (Howard et al., 2019)."""

    name, expression = "hard_swish", "x * minimum(maximum(x / 6 + 0.5, 0), 1)"
    backward = "where(x > -3, where(x < 3, dy * (x / 3 + 0.5), dy), 0)"
    bend = f"where(abs(x) < 3, {1 / 3!r}, 0)"


@dataclass(frozen=True, slots=True)
class Threshold:
    """The threshold; inputs above it are returned unchanged, others become 0."""

    threshold: Annotated[float, Between()]


class ThresholdedRelu(Unary):
    """y = x if x is above the threshold, else 0 (Konda et al., 2014)."""

    name, expression = "thresholded_relu", "where(x > threshold, x, 0)"
    attributes = Threshold
    backward = "where(x > threshold, dy, 0)"


class PRelu(FloatElementwise):
    """y = x if x > 0, else slope · x (He et al., 2015)."""

    name, inputs = "prelu", ("x", "slope")
    expression = "where(x > 0, x, x * slope)"

    def gradient_x(self, node: Node, dy: Value, x: Value, slope: Value) -> Value:
        return apply(PReluGradient, x, slope, dy).output

    def gradient_slope(self, node: Node, dy: Value, x: Value) -> Value:
        return mul(dy, minimum(x, 0.0))


class PReluGradient(FloatElementwise):
    """dx = dy if x > 0, else slope · dy."""

    name, inputs, outputs = "prelu_gradient", ("x", "slope", "dy"), ("dx",)
    expression = "where(x > 0, dy, dy * slope)"

    def gradient_x(self, node: Node) -> None:
        return None

    def gradient_slope(self, node: Node, ddx: Value, x: Value, dy: Value) -> Value:
        return where(less_equal(x, 0.0), mul(ddx, dy), zero(dy))

    def gradient_dy(self, node: Node, ddx: Value, x: Value, slope: Value) -> Value:
        return apply(PReluGradient, x, slope, ddx).output


def tanh(x: Value) -> Value:
    """Return the hyperbolic tangent of float x, from -1 to 1; keeps shape and dtype."""
    return apply(Tanh, x).output


def sigmoid(x: Value) -> Value:
    """Return 1 / (1 + exp(-x)) of float x, from 0 to 1; keeps shape and dtype."""
    return apply(Sigmoid, x).output


def relu(x: Value) -> Value:
    """Return max(x, 0) of float x; keeps shape and dtype. The gradient at 0 is 0."""
    return apply(Relu, x).output


def relu6(x: Value) -> Value:
    """Return min(max(x, 0), 6) of float x (Howard et al., 2017); keeps shape and dtype."""
    return apply(Relu6, x).output


def leaky_relu(x: Value, slope: float = 0.01) -> Value:
    """Return x if positive, else slope · x, for float x; keeps shape and dtype.

    Raises `OptionError` unless the slope is above 0.
    """
    Between().check("leaky_relu: the slope", slope)
    if not slope > 0:
        raise OptionError(
            f"leaky_relu: the slope must be above 0, got {slope!r}; use graphc.relu for 0"
        )
    return apply(LeakyRelu, x, attributes=Slope(float(slope))).output


def gelu(x: Value, form: str = "exact") -> Value:
    """Apply the Gaussian error linear unit to float x (Hendrycks and Gimpel, 2016).

    It keeps shape and dtype. The form "exact" computes x · Φ(x) with the error function, "tanh" the
    approximation that GPT-2 uses. Raises `OptionError` for another form.
    """
    op = {"exact": Gelu, "tanh": GeluTanh}[choose("gelu form", form, ("exact", "tanh"))]
    return apply(op, x).output


def silu(x: Value) -> Value:
    """Return x · sigmoid(x) of float x, also called swish; keeps shape and dtype."""
    return apply(Silu, x).output


def softplus(x: Value) -> Value:
    """Return log(1 + exp(x)) of float x, at least 0; keeps shape and dtype."""
    return apply(Softplus, x).output


def mish(x: Value) -> Value:
    """Return x · tanh(softplus(x)) of float x (Misra, 2019); keeps shape and dtype."""
    return apply(Mish, x).output


def softsign(x: Value) -> Value:
    """Return x / (1 + |x|) of float x, from -1 to 1; keeps shape and dtype."""
    return apply(Softsign, x).output


def elu(x: Value, alpha: float = 1.0) -> Value:
    """Return x if positive, else alpha · (exp(x) - 1) (Clevert et al., 2015).

    x is a float; the result has the same shape and dtype. The gradient at 0 is alpha. Raises
    `OptionError` unless alpha is above 0.
    """
    return apply(Elu, x, attributes=Alpha(alpha)).output


def celu(x: Value, alpha: float = 1.0) -> Value:
    """Return x if positive, else alpha · (exp(x / alpha) - 1) (Barron, 2017).

    x is a float; the result has the same shape and dtype. Raises `OptionError` unless alpha is
    above 0.
    """
    return apply(Celu, x, attributes=Alpha(alpha)).output


def selu(x: Value, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Value:
    """Return gamma · elu(x, alpha), which keeps mean 0 and variance 1 (Klambauer et al., 2017).

    x is a float; the result has the same shape and dtype. The gradient at 0 is gamma · alpha.
    Raises `OptionError` unless both numbers are above 0.
    """
    return apply(Selu, x, attributes=ScaledAlpha(alpha, gamma)).output


def hard_sigmoid(x: Value, alpha: float = 1 / 6, beta: float = 0.5) -> Value:
    """Return alpha · x + beta clipped to `[0, 1]`, for float x; keeps shape and dtype.

    The gradient is 0 where the result is 0 or 1. The default of alpha is 0.2 in ONNX and 1/6 in
    PyTorch. Raises `OptionError` unless both numbers are finite.
    """
    return apply(HardSigmoid, x, attributes=Line(alpha, beta)).output


def hard_swish(x: Value) -> Value:
    """Return x · hard_sigmoid(x) of float x (Howard et al., 2019); keeps shape and dtype.

    The gradient at -3 is 0, and at 3 it is 1.
    """
    return apply(HardSwish, x).output


def thresholded_relu(x: Value, threshold: float = 1.0) -> Value:
    """Return x if it is above the threshold, else 0, for float x; keeps shape and dtype.

    Raises `OptionError` unless the threshold is finite.
    """
    return apply(ThresholdedRelu, x, attributes=Threshold(threshold)).output


def prelu(x: Value, slope: Value) -> Value:
    """Return x if positive, else slope · x, with learned slopes (He et al., 2015).

    x and `slope` have one float dtype and broadcast: a slope (channels, 1, 1) has one number per
    channel of a map. The derivative with respect to x at 0 is the slope.
    """
    return apply(PRelu, x, slope).output
