"""Trigonometric and hyperbolic functions, their inverses, and the error function."""

from __future__ import annotations

import math

from graphc.ir.builder import apply
from graphc.ir.graph import Node, Value
from graphc.ops.choice import equal, where
from graphc.ops.elementwise import FloatElementwise, Operand, add, div, mul, neg, operands
from graphc.ops.unary import Unary

_DENSITY = f"{2 / math.sqrt(math.pi)!r} * exp(-(x * x))"


class Sin(Unary):
    """y = sin(x)."""

    name, expression = "sin", "sin(x)"
    backward, bend = "dy * cos(x)", "-sin(x)"


class Cos(Unary):
    """y = cos(x)."""

    name, expression = "cos", "cos(x)"
    backward, bend = "-(dy * sin(x))", "-cos(x)"


class Tan(Unary):
    """y = tan(x)."""

    name, expression, precision = "tan", "tan(x)", "wide"
    backward, bend = "dy * (1 + y * y)", "2 * y"


class Asin(Unary):
    """y = the arc sine of x."""

    name, expression, precision = "asin", "asin(x)", "wide"
    backward, bend = "dy / sqrt(1 - x * x)", "x / ((1 - x * x) * sqrt(1 - x * x))"


class Acos(Unary):
    """y = the arc cosine of x."""

    name, expression, precision = "acos", "acos(x)", "wide"
    backward, bend = "-(dy / sqrt(1 - x * x))", "-x / ((1 - x * x) * sqrt(1 - x * x))"


class Atan(Unary):
    """y = the arc tangent of x."""

    name, expression = "atan", "atan(x)"
    backward, bend = "dy / (1 + x * x)", "-2 * x / ((1 + x * x) * (1 + x * x))"


class Sinh(Unary):
    """y = sinh(x)."""

    name, expression, precision = "sinh", "sinh(x)", "wide"
    backward, bend = "dy * cosh(x)", "sinh(x)"


class Cosh(Unary):
    """y = cosh(x)."""

    name, expression, precision = "cosh", "cosh(x)", "wide"
    backward, bend = "dy * sinh(x)", "cosh(x)"


class Asinh(Unary):
    """y = the inverse of sinh at x."""

    name, expression = "asinh", "asinh(x)"
    backward, bend = "dy / sqrt(x * x + 1)", "-x / ((x * x + 1) * sqrt(x * x + 1))"


class Acosh(Unary):
    """y = the inverse of cosh at x."""

    name, expression, precision = "acosh", "acosh(x)", "wide"
    backward, bend = "dy / sqrt(x * x - 1)", "-x / ((x * x - 1) * sqrt(x * x - 1))"


class Atanh(Unary):
    """y = the inverse of tanh at x."""

    name, expression, precision = "atanh", "atanh(x)", "wide"
    backward, bend = "dy / (1 - x * x)", "2 * x / ((1 - x * x) * (1 - x * x))"


class Erf(Unary):
    """y = the error function of x."""

    name, expression = "erf", "erf(x)"
    backward, bend = f"dy * ({_DENSITY})", f"-2 * x * ({_DENSITY})"


class Atan2(FloatElementwise):
    """y = the angle of the point (b, a): arc tangent of a / b in the right quadrant.

    It is computed from the smaller over the larger of |a| and |b|. The signs of zeros count. The
    gradient at the origin is 0.
    """

    name, inputs, precision = "atan2", ("a", "b"), "wide"
    _IS_STEEP = "(abs(a) > abs(b))"
    _DIVISOR = f"where({_IS_STEEP}, a, b)"
    _ANGLE = f"atan(where({_IS_STEEP}, b, a) / where({_DIVISOR} == 0, 1, {_DIVISOR}))"
    _SIGN = "where(where(a == 0, 1 / a, a) < 0, -1, 1)"
    _TURN = f"where(where(b == 0, 1 / b, b) < 0, {_SIGN} * {math.pi!r}, 0)"
    expression = f"where({_IS_STEEP}, {_SIGN} * {math.pi / 2!r} - {_ANGLE}, {_ANGLE} + {_TURN})"

    def gradient_a(self, node: Node, dy: Value, a: Value, b: Value) -> Value:
        return div(mul(dy, b), _square_of_radius(a, b))

    def gradient_b(self, node: Node, dy: Value, a: Value, b: Value) -> Value:
        return neg(div(mul(dy, a), _square_of_radius(a, b)))


def _square_of_radius(a: Value, b: Value) -> Value:
    """Return a² + b², or 1 at the origin."""
    found = add(mul(a, a), mul(b, b))
    return where(equal(found, 0.0), 1.0, found)


def sin(x: Value) -> Value:
    """Return the sine of float x in radians; keeps shape and dtype."""
    return apply(Sin, x).output


def cos(x: Value) -> Value:
    """Return the cosine of float x in radians; keeps shape and dtype."""
    return apply(Cos, x).output


def tan(x: Value) -> Value:
    """Return the tangent of float x in radians; keeps shape and dtype."""
    return apply(Tan, x).output


def asin(x: Value) -> Value:
    """Return the arc sine of float x, from -π/2 to π/2; keeps shape and dtype.

    It is NaN outside -1 to 1. At both ends the gradient is infinite.
    """
    return apply(Asin, x).output


def acos(x: Value) -> Value:
    """Return the arc cosine of float x, from 0 to π; keeps shape and dtype.

    It is NaN outside -1 to 1. At both ends the gradient is infinite.
    """
    return apply(Acos, x).output


def atan(x: Value) -> Value:
    """Return the arc tangent of float x, between -π/2 and π/2; keeps shape and dtype."""
    return apply(Atan, x).output


def atan2(a: Operand, b: Operand) -> Value:
    """Return the angle of the point (b, a), from -π to π, broadcast; one may be a number.

    The signs of a and b select the quadrant, also if they are 0. The gradient at the origin is 0.
    If both are infinite the result is NaN.
    """
    return apply(Atan2, *operands(a, b)).output


def sinh(x: Value) -> Value:
    """Return the hyperbolic sine of float x; keeps shape and dtype."""
    return apply(Sinh, x).output


def cosh(x: Value) -> Value:
    """Return the hyperbolic cosine of float x; keeps shape and dtype."""
    return apply(Cosh, x).output


def asinh(x: Value) -> Value:
    """Return the inverse hyperbolic sine of float x; keeps shape and dtype."""
    return apply(Asinh, x).output


def acosh(x: Value) -> Value:
    """Return the inverse hyperbolic cosine of float x, at least 0; keeps shape and dtype.

    It is NaN below 1. At 1 the gradient is infinite.
    """
    return apply(Acosh, x).output


def atanh(x: Value) -> Value:
    """Return the inverse hyperbolic tangent of float x; keeps shape and dtype.

    It is infinite at -1 and 1, and NaN outside.
    """
    return apply(Atanh, x).output


def erf(x: Value) -> Value:
    """Return the error function of float x, from -1 to 1; keeps shape and dtype."""
    return apply(Erf, x).output
