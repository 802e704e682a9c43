"""Rounding to integers, sign and absolute value."""

from __future__ import annotations

from graphc.ir.builder import apply
from graphc.ir.graph import Node, Value
from graphc.ir.operators import operator
from graphc.ops.elementwise import Elementwise, FloatElementwise
from graphc.ops.unary import Unary


class Rounding(FloatElementwise):
    """Base: piecewise constant, so the gradient is 0."""

    inputs = ("x",)

    def gradient(self, node: Node) -> None:
        return None


class Floor(Rounding):
    """y = the largest integer that is at most x."""

    name, expression = "floor", "floor(x)"


class Ceil(Rounding):
    """y = the smallest integer that is at least x."""

    name, expression = "ceil", "ceil(x)"


class Round(Rounding):
    """y = the nearest integer, ties to even."""

    name, expression = "round", "rint(x)"


class Trunc(Rounding):
    """y = x truncated to an integer."""

    name, expression = "trunc", "trunc(x)"


class Sign(Elementwise):
    """y = -1, 0 or 1: the sign of x."""

    name, inputs = "sign", ("x",)
    expression = "sign(x)"

    def gradient(self, node: Node) -> None:
        return None


class Abs(Unary):
    """y = |x|, of floats and of integers."""

    name, expression = "abs", "abs(x)"
    backward = "dy * sign(x)"
    infer = Elementwise.infer


def floor(x: Value) -> Value:
    """Round float x down to an integer; keeps shape and dtype. Its gradient is 0."""
    return apply(Floor, x).output


def ceil(x: Value) -> Value:
    """Round float x up to an integer; keeps shape and dtype. Its gradient is 0."""
    return apply(Ceil, x).output


@operator("round")
def round(x: Value) -> Value:
    """Round float x to the nearest integer, ties to even; keeps shape and dtype.

    Its gradient is 0.
    """
    return apply(Round, x).output


def trunc(x: Value) -> Value:
    """Truncate float x to an integer; keeps shape and dtype. Its gradient is 0."""
    return apply(Trunc, x).output


def sign(x: Value) -> Value:
    """Return -1, 0 or 1 as x is below, at or above 0, NaN for NaN; keeps shape and dtype.

    x has floats or integers. The gradient is 0. Raises `DTypeError` for bool.
    """
    return apply(Sign, x).output


@operator("abs")
def abs(x: Value) -> Value:
    """Return |x| of floats or integers; keeps shape and dtype. The gradient at 0 is 0.

    The smallest integer of a dtype is unchanged, as in NumPy. Raises `DTypeError` for bool.
    """
    return apply(Abs, x).output
