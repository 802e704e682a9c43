"""Activation functions. A gradient that would need a temporary is an op of its own, right after the
op it belongs to: one kernel, which may run over the bytes of what it reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from graphc.errors import OptionError, choose
from graphc.ir.attributes import Between
from graphc.ir.builder import apply
from graphc.ir.graph import Node, Value
from graphc.ops.elementwise import FloatElementwise, add, exp, mul, neg, scale, shift, sub


class Tanh(FloatElementwise):
    """y = tanh(x)."""

    name, inputs = "tanh", ("x",)
    expression = "tanh(x)"

    def gradient(self, node: Node, dy: Value, y: Value) -> Value:
        return apply(TanhGradient, y, dy).output


class TanhGradient(FloatElementwise):
    """dx = dy · (1 - y²)."""

    name, inputs, outputs = "tanh_gradient", ("y", "dy"), ("dx",)
    expression = "dy * (1 - y * y)"

    def gradient_y(self, node: Node, ddx: Value, y: Value, dy: Value) -> Value:
        return scale(mul(mul(ddx, y), dy), -2.0)

    def gradient_dy(self, node: Node, ddx: Value, y: Value) -> Value:
        return apply(TanhGradient, y, ddx).output


class Sigmoid(FloatElementwise):
    """y = 1 / (1 + exp(-x))."""

    name, inputs = "sigmoid", ("x",)
    expression = "sigmoid(x)"

    def gradient(self, node: Node, dy: Value, y: Value) -> Value:
        return apply(SigmoidGradient, y, dy).output


class SigmoidGradient(FloatElementwise):
    """dx = dy · y · (1 - y)."""

    name, inputs, outputs = "sigmoid_gradient", ("y", "dy"), ("dx",)
    expression = "dy * (y * (1 - y))"

    def gradient_y(self, node: Node, ddx: Value, y: Value, dy: Value) -> Value:
        return mul(mul(ddx, dy), shift(scale(y, -2.0), 1.0))

    def gradient_dy(self, node: Node, ddx: Value, y: Value) -> Value:
        return apply(SigmoidGradient, y, ddx).output


class Relu(FloatElementwise):
    """y = max(x, 0). The output gives the gradient: it is positive exactly where x was."""

    name, inputs = "relu", ("x",)
    expression = "maximum(x, 0)"

    def gradient(self, node: Node, dy: Value, y: Value) -> Value:
        return apply(ReluGradient, y, dy).output


class ReluGradient(FloatElementwise):
    """dx = dy where y > 0, else 0."""

    name, inputs, outputs = "relu_gradient", ("y", "dy"), ("dx",)
    expression = "where(y > 0, dy, 0)"

    def gradient_y(self, node: Node) -> None:
        return None

    def gradient_dy(self, node: Node, ddx: Value, y: Value) -> Value:
        return apply(ReluGradient, y, ddx).output


class Relu6(FloatElementwise):
    """y = min(max(x, 0), 6) (Howard et al., 2017). The output gives the gradient."""

    name, inputs = "relu6", ("x",)
    expression = "-maximum(-maximum(x, 0), -6)"

    def gradient(self, node: Node, dy: Value, y: Value) -> Value:
        return apply(Relu6Gradient, y, dy).output


class Relu6Gradient(FloatElementwise):
    """dx = dy where 0 < y < 6, else 0."""

    name, inputs, outputs = "relu6_gradient", ("y", "dy"), ("dx",)
    expression = "where(y > 0, where(y < 6, dy, 0), 0)"

    def gradient_y(self, node: Node) -> None:
        return None

    def gradient_dy(self, node: Node, ddx: Value, y: Value) -> Value:
        return apply(Relu6Gradient, y, ddx).output


@dataclass(frozen=True, slots=True)
class Slope:
    """The factor for negative inputs, above 0 so that the output keeps the input's sign."""

    slope: Annotated[float, Between(above=0.0)]


class LeakyRelu(FloatElementwise):
    """y = x where x > 0, else slope · x."""

    name, inputs = "leaky_relu", ("x",)
    attributes = Slope
    expression = "where(x > 0, x, x * slope)"

    def gradient(self, node: Node, dy: Value, y: Value) -> Value:
        return apply(LeakyReluGradient, y, dy, attributes=node.attributes).output


class LeakyReluGradient(FloatElementwise):
    """dx = dy where y > 0, else slope · dy."""

    name, inputs, outputs = "leaky_relu_gradient", ("y", "dy"), ("dx",)
    attributes = Slope
    expression = "where(y > 0, dy, dy * slope)"

    def gradient_y(self, node: Node) -> None:
        return None

    def gradient_dy(self, node: Node, ddx: Value, y: Value) -> Value:
        return apply(LeakyReluGradient, y, ddx, attributes=node.attributes).output


_SQRT_HALF = repr(math.sqrt(0.5))
_NORMAL = repr(1 / math.sqrt(2 * math.pi))
_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBE = 0.044715
_TANH_OF_X = f"tanh({_TANH_SCALE!r} * x * (1 + {_TANH_CUBE} * x * x))"


class Gelu(FloatElementwise):
    """y = x · Φ(x) with the normal distribution Φ (Hendrycks and Gimpel, 2016), exact."""

    name, inputs = "gelu", ("x",)
    expression = f"0.5 * x * (1 + erf(x * {_SQRT_HALF}))"

    def gradient(self, node: Node, dy: Value, x: Value) -> Value:
        return apply(GeluGradient, x, dy).output


class GeluGradient(FloatElementwise):
    """dx = dy · (Φ(x) + x φ(x))."""

    name, inputs, outputs = "gelu_gradient", ("x", "dy"), ("dx",)
    expression = f"dy * (0.5 * (1 + erf(x * {_SQRT_HALF})) + x * exp(-0.5 * x * x) * {_NORMAL})"

    def gradient_x(self, node: Node, ddx: Value, x: Value, dy: Value) -> Value:
        square = mul(x, x)
        density = scale(exp(scale(square, -0.5)), float(_NORMAL))
        return mul(mul(ddx, dy), mul(density, shift(neg(square), 2.0)))

    def gradient_dy(self, node: Node, ddx: Value, x: Value) -> Value:
        return apply(GeluGradient, x, ddx).output


class GeluTanh(FloatElementwise):
    """y = x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))), the form GPT-2 was trained with."""

    name, inputs = "gelu_tanh", ("x",)
    expression = f"0.5 * x * (1 + {_TANH_OF_X})"

    def gradient(self, node: Node, dy: Value, x: Value) -> Value:
        return apply(GeluTanhGradient, x, dy).output


class GeluTanhGradient(FloatElementwise):
    """dx = dy · y'(x), with t = tanh(u): (1 + t)/2 + x/2 · (1 - t²) · u'."""

    name, inputs, outputs = "gelu_tanh_gradient", ("x", "dy"), ("dx",)
    expression = (
        f"dy * (0.5 * (1 + {_TANH_OF_X}) + 0.5 * x * (1 - {_TANH_OF_X} ** 2)"
        f" * {_TANH_SCALE!r} * (1 + {3 * _TANH_CUBE!r} * x * x))"
    )

    def gradient_x(self, node: Node, ddx: Value, x: Value, dy: Value) -> Value:
        # y'' = s·u' + x/2·(s·u'' - 2·t·s·u'²) with s = 1 - t²
        square = mul(x, x)
        t = tanh(scale(mul(x, shift(scale(square, _TANH_CUBE), 1.0)), _TANH_SCALE))
        s = shift(neg(mul(t, t)), 1.0)
        first = scale(shift(scale(square, 3 * _TANH_CUBE), 1.0), _TANH_SCALE)
        second = scale(x, 6 * _TANH_CUBE * _TANH_SCALE)
        bend = sub(second, scale(mul(t, mul(first, first)), 2.0))
        curvature = mul(s, add(first, scale(mul(x, bend), 0.5)))
        return mul(mul(ddx, dy), curvature)

    def gradient_dy(self, node: Node, ddx: Value, x: Value) -> Value:
        return apply(GeluTanhGradient, x, ddx).output


class Silu(FloatElementwise):
    """y = x · sigmoid(x)."""

    name, inputs = "silu", ("x",)
    expression = "x * sigmoid(x)"

    def gradient(self, node: Node, dy: Value, x: Value) -> Value:
        return apply(SiluGradient, x, dy).output


class SiluGradient(FloatElementwise):
    """dx = dy · s · (1 + x · (1 - s)) with s = sigmoid(x)."""

    name, inputs, outputs = "silu_gradient", ("x", "dy"), ("dx",)
    expression = "dy * sigmoid(x) * (1 + x * (1 - sigmoid(x)))"

    def gradient_x(self, node: Node, ddx: Value, x: Value, dy: Value) -> Value:
        # y'' = s'·(2 + x·(1 - 2s)) with s' = s·(1 - s)
        s = sigmoid(x)
        slope = apply(SigmoidGradient, s, mul(ddx, dy)).output
        return mul(slope, shift(mul(x, shift(scale(s, -2.0), 1.0)), 2.0))

    def gradient_dy(self, node: Node, ddx: Value, x: Value) -> Value:
        return apply(SiluGradient, x, ddx).output


def tanh(x: Value) -> Value:
    """Hyperbolic tangent of float x, from -1 to 1; keeps shape and dtype."""
    return apply(Tanh, x).output


def sigmoid(x: Value) -> Value:
    """1 / (1 + exp(-x)) of float x, from 0 to 1; keeps shape and dtype."""
    return apply(Sigmoid, x).output


def relu(x: Value) -> Value:
    """max(x, 0) of float x; keeps shape and dtype. The gradient at 0 is 0."""
    return apply(Relu, x).output


def relu6(x: Value) -> Value:
    """min(max(x, 0), 6) of float x (MobileNet, Howard et al., 2017); keeps shape and dtype."""
    return apply(Relu6, x).output


def leaky_relu(x: Value, slope: float = 0.01) -> Value:
    """x where positive, else slope · x, for float x; keeps shape and dtype.

    Raises `OptionError` unless the slope is above 0.
    """
    Between().check("leaky_relu: the slope", slope)
    if not slope > 0:
        raise OptionError(
            f"leaky_relu: the slope must be above 0, got {slope!r}; use graphc.relu for 0"
        )
    return apply(LeakyRelu, x, attributes=Slope(float(slope))).output


def gelu(x: Value, form: str = "exact") -> Value:
    """Gaussian error linear unit of float x (Hendrycks and Gimpel, 2016); keeps shape and dtype.

    The form "exact" is x · Φ(x) by erf, "tanh" the approximation that GPT-2 uses. Raises
    `OptionError` for another form.
    """
    op = {"exact": Gelu, "tanh": GeluTanh}[choose("gelu form", form, ("exact", "tanh"))]
    return apply(op, x).output


def silu(x: Value) -> Value:
    """x · sigmoid(x) of float x, also called swish; keeps shape and dtype."""
    return apply(Silu, x).output
