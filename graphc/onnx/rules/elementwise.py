"""Import of elementwise arithmetic, comparisons, logic and functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import numpy as np

import graphc
from graphc.importing.calls import UnsupportedError
from graphc.importing.unary import UNARY as COMMON
from graphc.importing.weights import Weight
from graphc.ir.graph import Value
from graphc.ir.types import bool_
from graphc.onnx.calls import OnnxCall, Operand, rule
from graphc.ops.elementwise import Operand as Number

Unary = Callable[[Value], Value]
Binary = Callable[[Number, Number], Value]

UNARY: Mapping[str, Unary] = {
    **{name.capitalize(): function for name, function in COMMON.items()},
    "BitwiseNot": graphc.bitwise_not,
    "HardSwish": graphc.hard_swish,
    "IsNaN": graphc.isnan,
    "Not": graphc.bitwise_not,
    "Softplus": graphc.softplus,
    "Softsign": graphc.softsign,
}


@rule(*UNARY)
def unary(call: OnnxCall) -> Value:
    """Import a function of one operand."""
    return UNARY[call.operator](call.value(0))


def numbers(call: OnnxCall, a: int = 0, b: int = 1) -> tuple[Number, Number]:
    """Return two operands; a known scalar becomes a Python number if the result keeps its rank."""
    x, y = call.operand(a), call.operand(b)
    if isinstance(x, Weight) and isinstance(y, Weight):
        return call.value(a), call.value(b)
    return _number(call, x, y), _number(call, y, x)


def _number(call: OnnxCall, operand: Operand, other: Operand) -> Number:
    if (
        isinstance(operand, Weight)
        and isinstance(other, Value)
        and operand.elements == 1
        and len(operand.shape) <= other.type.rank
        and operand.dtype == other.type.dtype.numpy
        and other.type.dtype != bool_
    ):
        number = operand.number
        if number is not None and np.isfinite(number):
            return number
    return call.as_value(operand)


def divide(a: Number, b: Number) -> Value:
    """Divide a by b; integers are truncated towards zero."""
    value = a if isinstance(a, Value) else b
    assert isinstance(value, Value), "one of the two is a value"
    is_float = value.type.dtype.kind == "float"
    return graphc.div(a, b) if is_float else graphc.trunc_divide(a, b)


BINARY: Mapping[str, Binary] = {
    "Add": graphc.add,
    "And": graphc.bitwise_and,
    "BitwiseAnd": graphc.bitwise_and,
    "BitwiseOr": graphc.bitwise_or,
    "BitwiseXor": graphc.bitwise_xor,
    "Div": divide,
    "Equal": graphc.equal,
    "Greater": graphc.greater,
    "GreaterOrEqual": graphc.greater_equal,
    "Less": graphc.less,
    "LessOrEqual": graphc.less_equal,
    "Mul": graphc.mul,
    "Or": graphc.bitwise_or,
    "Sub": graphc.sub,
    "Xor": graphc.bitwise_xor,
}


@rule(*BINARY)
def binary(call: OnnxCall) -> Value:
    """Import a function of two operands with broadcasting."""
    if call.attribute("axis") is not None:
        raise UnsupportedError(
            "broadcasting with the attribute axis (opset 6 and older) is not supported"
        )
    return BINARY[call.operator](*numbers(call))


@rule("Pow")
def power(call: OnnxCall) -> Value:
    """Import Pow: a ** b, in the dtype of a."""
    a, b = numbers(call)
    dtype = call.dtype(0)
    if call.dtype(1) == dtype:
        return graphc.power(a, b)
    if call.is_known(1) and dtype.kind == "float" and call.operand(1).shape == ():
        return graphc.power(a, float(call.number(1)))
    wide = dtype if dtype.kind == "float" else call.dtype(1)
    result = graphc.power(graphc.cast(call.value(0), wide), graphc.cast(call.value(1), wide))
    return graphc.cast(result, dtype)


@rule("Mod")
def mod(call: OnnxCall) -> Value:
    """Import Mod, whose result has the sign of the divisor, or of the dividend for fmod."""
    return (graphc.fmod if call.attribute("fmod", 0) else graphc.remainder)(*numbers(call))


@rule("BitShift")
def bit_shift(call: OnnxCall) -> Value:
    """Import a left or right shift."""
    is_left = call.choice("direction", "", ("LEFT", "RIGHT")) == "LEFT"
    return (graphc.left_shift if is_left else graphc.right_shift)(*numbers(call))


@rule("IsInf")
def isinf(call: OnnxCall) -> Value:
    """Import IsInf, which may detect only one sign."""
    x = call.value(0)
    positive, negative = call.attribute("detect_positive", 1), call.attribute("detect_negative", 1)
    found = graphc.isinf(x)
    if not positive:
        found = graphc.bitwise_and(found, graphc.less(x, 0.0))
    if not negative:
        found = graphc.bitwise_and(found, graphc.greater(x, 0.0))
    return found


@rule("Sum", "Max", "Min")
def fold(call: OnnxCall) -> Value:
    """Import the sum, maximum or minimum of any number of operands."""
    functions: Mapping[str, Binary] = {
        "Sum": graphc.add,
        "Max": graphc.maximum,
        "Min": graphc.minimum,
    }
    first, *rest = call.values
    total: Number = first
    for value in rest:
        total = functions[call.operator](total, value)
    assert isinstance(total, Value), "sums of values are values"
    return total


@rule("Mean")
def mean(call: OnnxCall) -> Value:
    """Import the mean of any number of operands."""
    values = call.values
    return graphc.div(functools.reduce(graphc.add, values), float(len(values)))


@rule("Clip")
def clip(call: OnnxCall) -> Value:
    """Import Clip; in older versions, the bounds are attributes."""
    low, high = _bound(call, 1, "min"), _bound(call, 2, "max")
    return graphc.clip(call.value(0), low, high)


def _bound(call: OnnxCall, index: int, name: str) -> Number | None:
    if not call.has(index):
        given: float | None = call.attribute(name)
        return given
    return call.number(index) if call.is_known(index) else call.value(index)


@rule("Identity")
def identity(call: OnnxCall) -> Operand:
    """Return the operand itself."""
    found: Operand = call.operand(0)
    return found


@rule("Where")
def where(call: OnnxCall) -> Value:
    """Import an elementwise selection between two operands."""
    return graphc.where(call.value(0), *numbers(call, 1, 2))
