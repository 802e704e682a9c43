"""Trigonometric and hyperbolic functions, their inverses, and the error function."""

from __future__ import annotations

import math

from graphc.ir.builder import apply
from graphc.ir.graph import Value
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
    """y = arc sine of x."""

    name, expression, precision = "asin", "asin(x)", "wide"
    backward, bend = "dy / sqrt(1 - x * x)", "x / ((1 - x * x) * sqrt(1 - x * x))"


class Acos(Unary):
    """y = arc cosine of x."""

    name, expression, precision = "acos", "acos(x)", "wide"
    backward, bend = "-(dy / sqrt(1 - x * x))", "-x / ((1 - x * x) * sqrt(1 - x * x))"


class Atan(Unary):
    """y = arc tangent of x."""

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
    """y = inverse of sinh at x."""

    name, expression = "asinh", "asinh(x)"
    backward, bend = "dy / sqrt(x * x + 1)", "-x / ((x * x + 1) * sqrt(x * x + 1))"


class Acosh(Unary):
    """y = inverse of cosh at x."""

    name, expression, precision = "acosh", "acosh(x)", "wide"
    backward, bend = "dy / sqrt(x * x - 1)", "-x / ((x * x - 1) * sqrt(x * x - 1))"


class Atanh(Unary):
    """y = inverse of tanh at x."""

    name, expression, precision = "atanh", "atanh(x)", "wide"
    backward, bend = "dy / (1 - x * x)", "2 * x / ((1 - x * x) * (1 - x * x))"


class Erf(Unary):
    """y = the error function of x."""

    name, expression = "erf", "erf(x)"
    backward, bend = f"dy * ({_DENSITY})", f"-2 * x * ({_DENSITY})"


def sin(x: Value) -> Value:
    """Sine of float x in radians; keeps shape and dtype."""
    return apply(Sin, x).output


def cos(x: Value) -> Value:
    """Cosine of float x in radians; keeps shape and dtype."""
    return apply(Cos, x).output


def tan(x: Value) -> Value:
    """Tangent of float x in radians; keeps shape and dtype."""
    return apply(Tan, x).output


def asin(x: Value) -> Value:
    """Arc sine of float x, from -π/2 to π/2: NaN outside -1 to 1, and an infinite gradient at both.

    Keeps shape and dtype.
    """
    return apply(Asin, x).output


def acos(x: Value) -> Value:
    """Arc cosine of float x, from 0 to π: NaN outside -1 to 1, and an infinite gradient at both.

    Keeps shape and dtype.
    """
    return apply(Acos, x).output


def atan(x: Value) -> Value:
    """Arc tangent of float x, between -π/2 and π/2; keeps shape and dtype."""
    return apply(Atan, x).output


def sinh(x: Value) -> Value:
    """Hyperbolic sine of float x; keeps shape and dtype."""
    return apply(Sinh, x).output


def cosh(x: Value) -> Value:
    """Hyperbolic cosine of float x; keeps shape and dtype."""
    return apply(Cosh, x).output


def asinh(x: Value) -> Value:
    """Inverse hyperbolic sine of float x; keeps shape and dtype."""
    return apply(Asinh, x).output


def acosh(x: Value) -> Value:
    """Inverse hyperbolic cosine of float x, from 0 up: NaN below 1, an infinite gradient at 1.

    Keeps shape and dtype.
    """
    return apply(Acosh, x).output


def atanh(x: Value) -> Value:
    """Inverse hyperbolic tangent of float x: infinite at -1 and 1, NaN outside.

    Keeps shape and dtype.
    """
    return apply(Atanh, x).output


def erf(x: Value) -> Value:
    """The error function of float x, from -1 to 1; keeps shape and dtype."""
    return apply(Erf, x).output
