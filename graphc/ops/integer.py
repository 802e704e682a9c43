"""Quotients and remainders, rounded down or truncated, bitwise operations, and logic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from graphc.errors import DTypeError
from graphc.ir.builder import apply
from graphc.ir.expression import ScalarProgram, parse
from graphc.ir.graph import Node, Value
from graphc.ir.operators import operator
from graphc.ir.types import DType, TensorType
from graphc.ops.elementwise import Elementwise, Operand, mul, neg, operands

# --- quotients and remainders ---


class Quotient(Elementwise):
    """Base: integer quotients, piecewise constant, so the gradient is 0."""

    inputs = ("a", "b")

    def gradient_a(self, node: Node) -> None:
        return None

    def gradient_b(self, node: Node) -> None:
        return None


class FloorDivide(Quotient):
    """y = a / b, rounded down."""

    name, expression = "floor_divide", "a // b"


class TruncDivide(Quotient):
    """y = a / b, truncated."""

    name, expression = "trunc_divide", "trunc(a / b)"
    _integers = parse("(a - fmod(a, b)) // b")

    def scalar_program(self, attributes: Any, dtypes: tuple[DType, ...]) -> ScalarProgram:
        program = super().scalar_program(attributes, dtypes)
        if dtypes[0].kind == "float":
            return program
        return replace(program, expressions={"y": self._integers})


class Remainder(Elementwise):
    """y = a - b · floor(a / b), with the sign of b."""

    name, inputs = "remainder", ("a", "b")
    expression = "a % b"

    def gradient_a(self, node: Node, dy: Value) -> Value:
        return dy

    def gradient_b(self, node: Node, dy: Value, a: Value, b: Value) -> Value:
        return neg(mul(dy, floor_divide(a, b)))


class Fmod(Elementwise):
    """y = a - b · trunc(a / b), with the sign of a."""

    name, inputs = "fmod", ("a", "b")
    expression = "fmod(a, b)"

    def gradient_a(self, node: Node, dy: Value) -> Value:
        return dy

    def gradient_b(self, node: Node, dy: Value, a: Value, b: Value) -> Value:
        return neg(mul(dy, trunc_divide(a, b)))


# --- bits and logic ---


class Bitwise(Elementwise):
    """Base: bitwise operations on integers, and logic on bools."""

    inputs: ClassVar[tuple[str, ...]] = ("a", "b")
    takes_bool = True

    def infer(self, attributes: Any, *types: TensorType) -> TensorType:
        type: TensorType = super().infer(attributes, *types)
        if type.dtype.kind == "float":
            raise DTypeError(
                f"bitwise operators need bool or integers, got {type}; convert with graphc.cast, "
                "or write a comparison such as x > 0"
            )
        return type


class BitwiseAnd(Bitwise):
    """y = a and b."""

    name, expression = "bitwise_and", "a & b"


class BitwiseOr(Bitwise):
    """y = a or b."""

    name, expression = "bitwise_or", "a | b"


class BitwiseXor(Bitwise):
    """y = a xor b."""

    name, expression = "bitwise_xor", "a ^ b"


class BitwiseNot(Bitwise):
    """y = the complement of x."""

    name, inputs = "bitwise_not", ("x",)
    expression = "~x"


class LeftShift(Bitwise):
    """y = a · 2 ** b, without the bits that are shifted out."""

    name, expression = "left_shift", "a << b"
    takes_bool = False


class RightShift(Bitwise):
    """y = a / 2 ** b, rounded down."""

    name, expression = "right_shift", "a >> b"
    takes_bool = False


# --- functions ---


@operator("//")
def floor_divide(a: Operand, b: Operand) -> Value:
    """Return a / b rounded down, as Python's ``//``, of floats or integers of one dtype.

    The operands broadcast, and either may be a number. An integer divided by 0 is 0. The gradient
    is 0. Raises `DTypeError` for bool.
    """
    return apply(FloorDivide, *operands(a, b)).output


def trunc_divide(a: Operand, b: Operand) -> Value:
    """Return a / b truncated, as C divides integers.

    Both have one dtype and broadcast, and either may be a number. An integer divided by 0 is 0.
    The gradient is 0. Raises `DTypeError` for bool.
    """
    return apply(TruncDivide, *operands(a, b)).output


@operator("%")
def remainder(a: Operand, b: Operand) -> Value:
    """Return a - b · (a // b), Python's ``%``.

    Both have one dtype and broadcast, and either may be a number. The result has the sign of b. For
    b = 0 it is 0 for integers and NaN for floats. The derivative with respect to a is 1, and with
    respect to b it is -(a // b). Raises `DTypeError` for bool.
    """
    return apply(Remainder, *operands(a, b)).output


def fmod(a: Operand, b: Operand) -> Value:
    """Return a - b · trunc(a / b), C's fmod.

    Both have one dtype and broadcast, and either may be a number. The result has the sign of a. For
    b = 0 it is 0 for integers and NaN for floats. The derivative with respect to a is 1, and with
    respect to b it is -trunc(a / b). Raises `DTypeError` for bool.
    """
    return apply(Fmod, *operands(a, b)).output


@operator("&")
def bitwise_and(a: Operand, b: Operand) -> Value:
    """Return a and b, bitwise for integers, logical for bools.

    Both operands have one dtype and broadcast.

    Either may be a number. It has no gradient. Raises `DTypeError` for floats.
    """
    return apply(BitwiseAnd, *operands(a, b)).output


@operator("|")
def bitwise_or(a: Operand, b: Operand) -> Value:
    """Return a or b, bitwise for integers, logical for bools.

    Both operands have one dtype and broadcast.

    Either may be a number. It has no gradient. Raises `DTypeError` for floats.
    """
    return apply(BitwiseOr, *operands(a, b)).output


@operator("^")
def bitwise_xor(a: Operand, b: Operand) -> Value:
    """Return a xor b, bitwise for integers, logical for bools.

    Both operands have one dtype and broadcast.

    Either may be a number. It has no gradient. Raises `DTypeError` for floats.
    """
    return apply(BitwiseXor, *operands(a, b)).output


@operator("~")
def bitwise_not(x: Value) -> Value:
    """Return not x, bitwise for integers, logical for bools; keeps shape and dtype.

    It has no gradient. Raises `DTypeError` for floats.
    """
    return apply(BitwiseNot, x).output


@operator("<<")
def left_shift(a: Operand, b: Operand) -> Value:
    """Shift the bits of integer a left by b, filling with zeros.

    Both operands have one dtype and broadcast.

    Either may be a number. The result is 0 if b is negative, or at least the number of bits of a.
    It has no gradient. Raises `DTypeError` for floats and bools.
    """
    return apply(LeftShift, *operands(a, b)).output


@operator(">>")
def right_shift(a: Operand, b: Operand) -> Value:
    """Shift the bits of integer a right by b, filling with its sign.

    Both operands have one dtype and broadcast.

    Either may be a number. The result is the sign, 0 or -1, if b is negative, or at least the
    number of bits of a. It has no gradient. Raises `DTypeError` for floats and bools.
    """
    return apply(RightShift, *operands(a, b)).output
