"""Powers and reciprocals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from graphc.ir.builder import apply
from graphc.ir.expression import ScalarProgram, parse
from graphc.ir.graph import Node, Value
from graphc.ir.operators import operator
from graphc.ir.types import DType
from graphc.ops.choice import equal, where
from graphc.ops.elementwise import (
    Elementwise,
    FloatElementwise,
    Operand,
    Scalar,
    log,
    mul,
    operands,
    scalar,
    scale,
    shift,
)
from graphc.ops.unary import Unary


class Power(FloatElementwise):
    """y = x ** value."""

    name, inputs = "power", ("x",)
    precision = "wide"
    attributes = Scalar
    expression = "x ** value"

    def gradient(self, node: Node, dy: Value, x: Value) -> Value | None:
        exponent = node.attributes.value
        if exponent == 0.0:
            return None
        slope = x if exponent == 2.0 else power(x, exponent - 1.0)
        return scale(mul(dy, slope), exponent)


class Reciprocal(Unary):
    """y = 1 / x."""

    name, expression, precision = "reciprocal", "1 / x", "wide"
    backward, bend = "-(dy * (y * y))", "-2 * y"


class Pow(Elementwise):
    """y = a ** b, of floats or of integers."""

    name, inputs = "pow", ("a", "b")
    precision = "wide"
    expression = "a ** b"
    _integers = parse(
        "where(b < 0, where(a == 1, 1, where(a + 1 == 0, 1 - 2 * (b & 1), 0)), a ** maximum(b, 0))"
    )

    def scalar_program(self, attributes: Any, dtypes: tuple[DType, ...]) -> ScalarProgram:
        program = super().scalar_program(attributes, dtypes)
        if dtypes[0].kind == "float":
            return program
        return replace(program, expressions={"y": self._integers})

    def gradient_a(self, node: Node, dy: Value, a: Value, b: Value) -> Value:
        return apply(PowBaseGradient, a, b, dy).output

    def gradient_b(self, node: Node, dy: Value, a: Value, b: Value) -> Value:
        return apply(PowExponentGradient, a, b, dy).output


class PowBaseGradient(FloatElementwise):
    """dx = dy · b · a ** (b - 1), and 0 for b = 0 and any a."""

    name, inputs, outputs = "pow_base_gradient", ("a", "b", "dy"), ("dx",)
    precision = "wide"
    expression = "where(b == 0, 0, dy * b * a ** (b - 1))"

    def gradient_a(self, node: Node, ddx: Value, a: Value, b: Value, dy: Value) -> Value:
        return apply(PowBaseGradient, a, shift(b, -1.0), mul(mul(ddx, dy), b)).output

    def gradient_b(self, node: Node, ddx: Value, a: Value, b: Value, dy: Value) -> Value:
        return _by_both(mul(ddx, dy), a, b)

    def gradient_dy(self, node: Node, ddx: Value, a: Value, b: Value) -> Value:
        return apply(PowBaseGradient, a, b, ddx).output


class PowExponentGradient(FloatElementwise):
    """dx = dy · a ** b · log(a), and for a = 0 and b ≥ 0 the limit 0."""

    name, inputs, outputs = "pow_exponent_gradient", ("a", "b", "dy"), ("dx",)
    precision = "wide"
    expression = "dy * a ** b * log(where(a == 0, where(b < 0, 0, 1), a))"

    def gradient_a(self, node: Node, ddx: Value, a: Value, b: Value, dy: Value) -> Value:
        return _by_both(mul(ddx, dy), a, b)

    def gradient_b(self, node: Node, ddx: Value, a: Value, b: Value, dy: Value) -> Value:
        return apply(PowExponentGradient, a, b, mul(mul(ddx, dy), _finite_log(a))).output

    def gradient_dy(self, node: Node, ddx: Value, a: Value, b: Value) -> Value:
        return apply(PowExponentGradient, a, b, ddx).output


def _finite_log(a: Value) -> Value:
    return log(where(equal(a, 0.0), 1.0, a))


def _by_both(factor: Value, a: Value, b: Value) -> Value:
    """Multiply `factor` by ∂²(a ** b) / ∂a ∂b, which is a ** (b - 1) · (1 + b · log(a))."""
    return mul(factor, mul(power(a, shift(b, -1.0)), shift(mul(b, _finite_log(a)), 1.0)))


@operator("**")
def power(a: Operand, b: Operand) -> Value:
    """Return a ** b. Both have one dtype and broadcast, and either may be a number.

    For float a, b may be fractional or negative. A negative a gives NaN unless b is an integer. If
    a has integers, b must be a value, not a number. Results wrap around; for negative b, 1 / a **
    -b is truncated, and is 0 for a = 0. The derivative with respect to a is 0 if b is 0. The
    derivative with respect to b is 0 if a is 0 and b is not negative.
    """
    if isinstance(b, Value):
        return apply(Pow, *operands(a, b)).output
    base, _ = operands(a, b)
    if base.type.dtype.kind == "int":
        return apply(Pow, *operands(a, b)).output
    return apply(Power, base, attributes=scalar("power", base, b)).output


def reciprocal(x: Value) -> Value:
    """Return 1 / x of float x: infinite at 0; keeps shape and dtype."""
    return apply(Reciprocal, x).output
