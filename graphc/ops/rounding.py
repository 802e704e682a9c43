"""Whole numbers near x, its sign and its absolute value."""

from __future__ import annotations

from graphc.ir.builder import apply
from graphc.ir.graph import Node, Value
from graphc.ir.operators import operator
from graphc.ops.elementwise import Elementwise, FloatElementwise
from graphc.ops.unary import Unary


class Rounding(FloatElementwise):
    """Base: constant between jumps, so nothing flows back."""

    inputs = ("x",)

    def gradient(self, node: Node) -> None:
        return None


class Floor(Rounding):
    """y = the largest whole number up to x."""

    name, expression = "floor", "floor(x)"


class Ceil(Rounding):
    """y = the least whole number from x up."""

    name, expression = "ceil", "ceil(x)"


class Round(Rounding):
    """y = the nearest whole number, the even one of two."""

    name, expression = "round", "rint(x)"


class Trunc(Rounding):
    """y = x without its fraction."""

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
    """The largest whole number up to float x; keeps shape and dtype. Its gradient is 0."""
    return apply(Floor, x).output


def ceil(x: Value) -> Value:
    """The least whole number from float x up; keeps shape and dtype. Its gradient is 0."""
    return apply(Ceil, x).output


@operator("round")
def round(x: Value) -> Value:
    """The whole number nearest to float x, of two the even one; keeps shape and dtype.

    Its gradient is 0.
    """
    return apply(Round, x).output


def trunc(x: Value) -> Value:
    """Float x cut towards zero; keeps shape and dtype. Its gradient is 0."""
    return apply(Trunc, x).output


def sign(x: Value) -> Value:
    """-1, 0 or 1 as x is below, at or above 0, NaN for NaN; keeps shape and dtype.

    x is of floats or integers. The gradient is 0. Raises `DTypeError` for bool.
    """
    return apply(Sign, x).output


@operator("abs")
def abs(x: Value) -> Value:
    """|x| of floats or integers; keeps shape and dtype. The gradient at 0 is 0.

    The least integer of a dtype stays as it is, as in NumPy. Raises `DTypeError` for bool.
    """
    return apply(Abs, x).output
