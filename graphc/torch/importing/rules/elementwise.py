"""Elementwise arithmetic, comparisons, logic and functions, with torch's type promotion."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch

import graphc
from graphc.importing.calls import UnsupportedError
from graphc.importing.unary import UNARY as COMMON
from graphc.ir.graph import Value
from graphc.ir.types import DType, bool_
from graphc.torch.importing.calls import Number, Operand, TorchCall, dtype_of, rule

Unary = Callable[[Value], Value]
Binary = Callable[[Number, Number], Value]


def _log1p(x: Value) -> Value:
    """Return log(1 + x), as an area tangent near 0, where 1 + x would be rounded."""
    is_near = graphc.less(graphc.abs(x), 0.5)
    near, far = graphc.where(is_near, x, 0.0), graphc.where(is_near, 0.0, x)
    series = graphc.mul(graphc.atanh(graphc.div(near, graphc.add(near, 2.0))), 2.0)
    return graphc.where(is_near, series, graphc.log(graphc.add(far, 1.0)))


UNARY: Mapping[str, Unary] = {
    **COMMON,
    "bitwise_not": graphc.bitwise_not,
    "digamma": graphc.digamma,
    "erfc": lambda x: graphc.sub(1.0, graphc.erf(x)),
    "exp2": lambda x: graphc.exp(graphc.mul(x, math.log(2))),
    "expm1": lambda x: graphc.mul(graphc.tanh(graphc.mul(x, 0.5)), graphc.add(graphc.exp(x), 1.0)),
    "frac": lambda x: graphc.sub(x, graphc.trunc(x)),
    "hardsigmoid": graphc.hard_sigmoid,
    "hardswish": graphc.hard_swish,
    "lgamma": graphc.lgamma,
    "log10": lambda x: graphc.mul(graphc.log(x), 1 / math.log(10)),
    "log1p": _log1p,
    "log2": lambda x: graphc.mul(graphc.log(x), 1 / math.log(2)),
    "relu6": graphc.relu6,
    "rsqrt": lambda x: graphc.reciprocal(graphc.sqrt(x)),
    "selu": graphc.selu,
    "sgn": graphc.sign,
    "silu": graphc.silu,
    "square": lambda x: graphc.mul(x, x),
    "trunc": graphc.trunc,
}


@rule(*UNARY)
def unary(call: TorchCall) -> Value:
    """Return a unary function; integers become floats if torch's result is a float."""
    if call.get("decimals"):
        raise UnsupportedError("rounding to decimals is not supported")
    return UNARY[call.operator](graphc.cast(call.value("self"), call.dtype))


def plain(call: TorchCall) -> Operand:
    """Return the operand itself."""
    found: Operand = call["self"]
    return found


rule(
    "alias", "clone", "contiguous", "lift", "lift_fresh", "lift_fresh_copy", "positive",
    "resolve_conj", "resolve_neg",
)(plain)  # fmt: skip


@rule("detach")
def detach(call: TorchCall) -> Value:
    """Return the operand without a gradient."""
    return graphc.stop_gradient(call.value("self"))


@rule("isnan", "isinf", "isfinite", "logical_not")
def tested(call: TorchCall) -> Value:
    """Return elementwise whether a predicate holds."""
    x = call.value("self")
    if call.operator == "logical_not":
        return graphc.bitwise_not(truth(x))
    if x.type.dtype.kind != "float":
        return graphc.full(x.shape, float(call.operator == "isfinite"), bool_)
    if call.operator == "isnan":
        return graphc.isnan(x)
    if call.operator == "isinf":
        return graphc.isinf(x)
    return graphc.bitwise_not(graphc.bitwise_or(graphc.isnan(x), graphc.isinf(x)))


def truth(x: Value) -> Value:
    """Return elementwise whether x differs from 0."""
    return x if x.type.dtype == bool_ else graphc.cast(x, bool_)


# --- two operands ---


def promoted(*given: object) -> DType:
    """Return the dtype in which torch computes; Python numbers are promoted by kind only."""
    fakes = [each for each in given if each is not None]
    found = torch.result_type(*[_example(each) for each in fakes[:2]])
    return dtype_of(found)


def _example(given: object) -> object:
    """Return an uninitialized tensor that is promoted like the operand."""
    if isinstance(given, Value):
        dtype = getattr(torch, str(given.type.dtype))
        return torch.empty((1,) * given.type.rank, dtype=dtype)
    return given


def operands(call: TorchCall, a: str = "self", b: str = "other") -> tuple[Number, Number]:
    """Return two operands in the dtype in which torch computes; single numbers stay numbers."""
    dtype = promoted(call[a], call[b])
    return number(call, call[a], call[b], dtype), number(call, call[b], call[a], dtype)


def number(call: TorchCall, given: object, other: object, dtype: DType) -> Number:
    """Return an operand as a number if it is one and `other` is a value, else as a value."""
    is_value = isinstance(other, Value)
    if isinstance(given, bool | int | float):
        if is_value and dtype != bool_:
            return _held(given, dtype)
        return graphc.full((), float(given), dtype)
    if isinstance(given, torch.Tensor) and is_value and given.numel() == 1:
        single = given.item()
        fits = given.dim() <= _rank(other) and dtype != bool_ and np.isfinite(single)
        if fits:
            return _held(single, dtype)
    return graphc.cast(call.as_value(given), dtype)


def _held(given: bool | int | float, dtype: DType) -> float:
    """Convert a number to the kind of the dtype."""
    return given if dtype.kind == "float" else int(given)


def _rank(other: object) -> int:
    return other.type.rank if isinstance(other, Value) else 0


def scaled(x: Number, factor: object) -> Number:
    """Return x times a number; no node is made for 1."""
    if factor == 1:
        return x
    assert isinstance(factor, int | float)
    return x * factor if isinstance(x, int | float) else graphc.mul(x, factor)


@rule("add", "sub", "rsub")
def add(call: TorchCall) -> Value:
    """Return the sum or difference of one operand and a multiple of the other; of bools, the or."""
    a, b = operands(call)
    if call.dtype == bool_:
        return graphc.bitwise_or(a, b)
    if call.operator == "rsub":
        return graphc.sub(b, scaled(a, call.get("alpha", 1)))
    other = scaled(b, call.get("alpha", 1))
    return graphc.add(a, other) if call.operator == "add" else graphc.sub(a, other)


@rule("mul", "multiply")
def multiply(call: TorchCall) -> Value:
    """Return a product, which may be an in-place dropout; of bools, the and."""
    from graphc.torch.importing.rules.random import dropped_in_place

    dropped = dropped_in_place(call)
    if dropped is not None:
        return dropped
    a, b = operands(call)
    return graphc.bitwise_and(a, b) if call.dtype == bool_ else graphc.mul(a, b)


@rule("div", "true_divide", "divide")
def divide(call: TorchCall) -> Value:
    """Return a quotient of floats, or rounded down or toward zero."""
    a, b = operands(call)
    mode = call.get("rounding_mode")
    if mode is not None:
        return graphc.cast(_rounded(a, b, mode, promoted(call["self"], call["other"])), call.dtype)
    wide = [graphc.cast(x, call.dtype) if isinstance(x, Value) else float(x) for x in (a, b)]
    if isinstance(wide[1], float) and wide[1]:
        return graphc.div(wide[0], wide[1])
    return graphc.div(*wide)


def _rounded(a: Number, b: Number, mode: str, dtype: DType) -> Value:
    if dtype.kind != "float":
        return graphc.floor_divide(a, b) if mode == "floor" else graphc.trunc_divide(a, b)
    quotient = graphc.div(a, b)
    return graphc.floor(quotient) if mode == "floor" else graphc.trunc(quotient)


@rule("floor_divide")
def floor_divide(call: TorchCall) -> Value:
    """Return a quotient rounded down."""
    a, b = operands(call)
    return _rounded(a, b, "floor", promoted(call["self"], call["other"]))


BINARY: Mapping[str, Binary] = {
    "__and__": graphc.bitwise_and,
    "__lshift__": graphc.left_shift,
    "__or__": graphc.bitwise_or,
    "__rshift__": graphc.right_shift,
    "__xor__": graphc.bitwise_xor,
    "bitwise_and": graphc.bitwise_and,
    "bitwise_left_shift": graphc.left_shift,
    "bitwise_or": graphc.bitwise_or,
    "bitwise_right_shift": graphc.right_shift,
    "bitwise_xor": graphc.bitwise_xor,
    "fmod": graphc.fmod,
    "maximum": graphc.maximum,
    "minimum": graphc.minimum,
    "remainder": graphc.remainder,
}


@rule(*BINARY)
def binary(call: TorchCall) -> Value:
    """Return a function of two operands with broadcasting."""
    return BINARY[call.operator](*operands(call))


COMPARISONS: Mapping[str, Binary] = {
    "eq": graphc.equal,
    "ge": graphc.greater_equal,
    "gt": graphc.greater,
    "le": graphc.less_equal,
    "lt": graphc.less,
    "ne": lambda a, b: graphc.bitwise_not(graphc.equal(a, b)),
}


@rule(*COMPARISONS)
def compare(call: TorchCall) -> Value:
    """Return a comparison of two operands; bools are compared as numbers."""
    a, b = operands(call)
    if promoted(call["self"], call["other"]) == bool_:
        a, b = (graphc.cast(x, "uint8") if isinstance(x, Value) else x for x in (a, b))
    return COMPARISONS[call.operator](a, b)


@rule("logical_and", "logical_or", "logical_xor")
def logic(call: TorchCall) -> Value:
    """Return the and, or, or exclusive or of two operands, where nonzero is true."""
    functions: Mapping[str, Binary] = {
        "logical_and": graphc.bitwise_and,
        "logical_or": graphc.bitwise_or,
        "logical_xor": graphc.bitwise_xor,
    }
    return functions[call.operator](truth(call.value("self")), truth(call.value("other")))


@rule("pow")
def power(call: TorchCall) -> Value:
    """Return a ** b; a square becomes a product, whose gradient has no power."""
    base, exponent = call["self"], call["exponent"]
    if isinstance(exponent, int | float) and isinstance(base, Value):
        x = graphc.cast(base, call.dtype)
        if exponent in (1, 2):
            return graphc.mul(x, x) if exponent == 2 else x
        if exponent == 0.5:
            return graphc.sqrt(x)
        return graphc.power(x, exponent)
    return graphc.power(*operands(call, "self", "exponent"))


@rule("hypot")
def hypotenuse(call: TorchCall) -> Value:
    """Return the square root of the sum of squares."""
    a, b = (graphc.cast(call.value(name), call.dtype) for name in ("self", "other"))
    return graphc.sqrt(graphc.add(graphc.mul(a, a), graphc.mul(b, b)))


def _with_sign(a: Value, b: Value) -> Value:
    """Return |a| with the sign of b, which a zero has, too."""
    signed = graphc.where(graphc.equal(b, 0.0), graphc.div(1.0, b), b)
    return graphc.mul(graphc.abs(a), graphc.where(graphc.less(signed, 0.0), _ones(a, -1), _ones(a)))


def _ones(like: Value, number: float = 1) -> Value:
    return graphc.full((), number, like.type.dtype)


def _extreme_number(first: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    """Return a function that selects a if `first` holds or b is NaN, else b."""

    def selected(a: Value, b: Value) -> Value:
        is_first = first(a, b)
        if b.type.dtype.kind == "float":
            is_first = graphc.bitwise_or(is_first, graphc.isnan(b))
        return graphc.where(is_first, a, b)

    return selected


PAIRED: Mapping[str, Callable[[Value, Value], Value]] = {
    "atan2": graphc.atan2,
    "copysign": _with_sign,
    "fmax": _extreme_number(graphc.greater_equal),
    "fmin": _extreme_number(graphc.less_equal),
    "ldexp": lambda a, b: graphc.mul(a, graphc.power(2.0, b)),
}


@rule(*PAIRED)
def paired(call: TorchCall) -> Value:
    """Return a function of two operands, both in the dtype of the result."""
    a, b = (graphc.cast(call.as_value(call[name]), call.dtype) for name in ("self", "other"))
    return PAIRED[call.operator](a, b)


@rule("where")
def where(call: TorchCall) -> Value:
    """Return elements of two operands, selected by a condition."""
    condition = truth(call.value("condition"))
    a, b = operands(call)
    if not isinstance(a, Value) and not isinstance(b, Value):
        a = graphc.full((), a, call.dtype)
    return _to_shape(call, graphc.where(condition, a, b))


def _to_shape(call: TorchCall, x: Value) -> Value:
    return graphc.broadcast_to(x, call.shape)


@rule("masked_fill")
def masked_fill(call: TorchCall) -> Value:
    """Return x with one number where a mask is true."""
    x, given = call.value("self"), call["value"]
    filling = (
        given if isinstance(given, int | float) else graphc.cast(call.as_value(given), x.dtype)
    )
    if isinstance(filling, bool | int | float) and (x.type.dtype == bool_ or math.isinf(filling)):
        filling = graphc.full((), float(filling), x.type.dtype)
    return _to_shape(call, graphc.where(truth(call.value("mask")), filling, x))


@rule("clamp", "clip", "clamp_min", "clamp_max")
def clamp(call: TorchCall) -> Value:
    """Clip x to bounds that are numbers or tensors."""
    x = graphc.cast(call.value("self"), call.dtype)
    low, high = (_bound(call, name) for name in ("min", "max"))
    return graphc.clip(x, low, high)


def _bound(call: TorchCall, name: str) -> Number | None:
    given = call.get(name)
    if given is None or isinstance(given, int | float):
        return given if given is None else _held(given, call.dtype)
    return graphc.cast(call.as_value(given), call.dtype)


@rule("addcmul", "addcdiv")
def add_product(call: TorchCall) -> Value:
    """Return x plus a multiple of a product or quotient."""
    a, b = call.value("tensor1"), call.value("tensor2")
    part = graphc.mul(a, b) if call.operator == "addcmul" else graphc.div(a, b)
    return graphc.add(call.value("self"), scaled(part, call.get("value", 1)))


@rule("lerp")
def interpolate(call: TorchCall) -> Value:
    """Return x + weight · (end - x)."""
    x, end, weight = call.value("self"), call.value("end"), call["weight"]
    factor = weight if isinstance(weight, int | float) else call.as_value(weight)
    return graphc.add(x, graphc.mul(graphc.sub(end, x), factor))


@rule(
    "_assert_async", "_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range",
    "sym_constrain_range_for_size",
)  # fmt: skip
def stated(call: TorchCall) -> None:
    """Drop an assertion: the facts that torch traced, like shapes, hold for every step."""


@rule("_to_copy", "to", "type_as")
def cast(call: TorchCall) -> Value:
    """Return x in another dtype; the device is ignored."""
    return graphc.cast(call.value("self"), call.dtype)
