"""Arithmetic, comparisons and functions, element by element."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import graphc
from graphc.ir.graph import Value
from graphc.onnx.calls import Call, Operand, UnsupportedError
from graphc.onnx.rules import rule
from graphc.onnx.weights import Weight
from graphc.ops.elementwise import Operand as Number

Unary = Callable[[Value], Value]
Binary = Callable[[Number, Number], Value]

UNARY: Mapping[str, Unary] = {
    "Exp": graphc.exp,
    "Log": graphc.log,
    "Neg": graphc.neg,
    "Sqrt": graphc.sqrt,
}


@rule(*UNARY)
def unary(call: Call) -> Value:
    """A function of one operand."""
    return UNARY[call.node.op_type](call.value(0))


def numbers(call: Call, a: int = 0, b: int = 1) -> tuple[Number, Number]:
    """Two operands, of which a known one of one number is that number where no axis is lost."""
    x, y = call.operand(a), call.operand(b)
    if isinstance(x, Weight) and isinstance(y, Weight):
        return call.value(a), call.value(b)
    return _number(call, x, y), _number(call, y, x)


def _number(call: Call, operand: Operand, other: Operand) -> Number:
    if (
        isinstance(operand, Weight)
        and isinstance(other, Value)
        and operand.elements == 1
        and len(operand.shape) <= other.type.rank
        and operand.dtype == other.type.dtype.numpy
    ):
        number = operand.number
        if number is not None:
            return number
    return call.importer.as_value(operand)


BINARY: Mapping[str, Binary] = {
    "Add": graphc.add,
    "Div": graphc.div,
    "Equal": graphc.equal,
    "Greater": graphc.greater,
    "GreaterOrEqual": graphc.greater_equal,
    "Less": graphc.less,
    "LessOrEqual": graphc.less_equal,
    "Mul": graphc.mul,
    "Sub": graphc.sub,
}


@rule(*BINARY)
def binary(call: Call) -> Value:
    """A function of two operands that broadcast."""
    if call.attribute("broadcast") is not None and call.attribute("axis") is not None:
        raise UnsupportedError("broadcasting from an axis, as before opset 7, is not supported")
    return BINARY[call.node.op_type](*numbers(call))


@rule("Sum")
def add_all(call: Call) -> Value:
    """A sum of any number of operands."""
    return functools.reduce(graphc.add, call.values)


@rule("Identity")
def identity(call: Call) -> Operand:
    """The operand itself."""
    return call.operand(0)


@rule("Where")
def where(call: Call) -> Value:
    """A choice between two operands."""
    return graphc.where(call.value(0), *numbers(call, 1, 2))
