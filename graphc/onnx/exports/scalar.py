"""Export of the functions of scalar expressions as ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from graphc.ir.types import DType, bool_, int32, uint8
from graphc.onnx.emission import Emission

SAME = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "negative": "Neg",
    "power": "Pow", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "erf": "Erf",
    "sigmoid": "Sigmoid", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin",
    "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh",
    "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "abs": "Abs", "sign": "Sign",
    "floor": "Floor", "ceil": "Ceil", "rint": "Round", "maximum": "Max", "minimum": "Min",
    "equal": "Equal", "isnan": "IsNaN", "isinf": "IsInf", "where": "Where",
}  # fmt: skip
"""Function → the ONNX operator that computes it directly."""

ORDERED = {
    "less": "Less",
    "less_equal": "LessOrEqual",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
}

LOGICAL = {"bitwise_and": "And", "bitwise_or": "Or", "bitwise_xor": "Xor", "invert": "Not"}

BITWISE = {
    "bitwise_and": "BitwiseAnd",
    "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor",
    "invert": "BitwiseNot",
}

Composed = Callable[[Emission, Sequence[str], DType], str]


def applied(on: Emission, function: str, names: Sequence[str], dtype: DType) -> str:
    """Emit a function of operands of one dtype.

    For ``where``, `dtype` is that of its two branches.
    """
    if function in SAME:
        return on(SAME[function], *names)
    if function in ORDERED:  # ONNX does not compare bools
        narrow = dtype in (bool_, uint8)
        return on(ORDERED[function], *(on.cast(n, dtype, int32) if narrow else n for n in names))
    if function in LOGICAL:
        return on((LOGICAL if dtype == bool_ else BITWISE)[function], *names)
    return COMPOSED[function](on, names, dtype)


def _not_equal(on: Emission, names: Sequence[str], dtype: DType) -> str:
    return on("Not", on("Equal", *names))


def _expm1(on: Emission, names: Sequence[str], dtype: DType) -> str:
    return on("Sub", on("Exp", *names), on.number(1, dtype))


def _log1p(on: Emission, names: Sequence[str], dtype: DType) -> str:
    return on("Log", on("Add", on.number(1, dtype), *names))


def _trunc(on: Emission, names: Sequence[str], dtype: DType) -> str:
    if dtype.kind == "int":  # an integer quotient is already truncated
        return names[0]
    return on("Mul", on("Sign", *names), on("Floor", on("Abs", *names)))


def _floor_divide(on: Emission, names: Sequence[str], dtype: DType) -> str:
    if dtype.kind == "float":
        return on("Floor", on("Div", *names))
    return on("Div", on("Sub", names[0], on("Mod", *names)), names[1])


def _remainder(on: Emission, names: Sequence[str], dtype: DType) -> str:
    if dtype.kind == "int":
        return on("Mod", *names)
    return on("Sub", names[0], on("Mul", on("Floor", on("Div", *names)), names[1]))


def _fmod(on: Emission, names: Sequence[str], dtype: DType) -> str:
    return on("Mod", *names, fmod=1)


def _left_shift(on: Emission, names: Sequence[str], dtype: DType) -> str:
    if dtype == uint8:
        return on("BitShift", *names, direction="LEFT")
    x, count = names
    is_out, power = _power_of_two(on, count, dtype, 8 * dtype.itemsize)
    return on("Where", is_out, on.number(0, dtype), on("Mul", x, power))


def _right_shift(on: Emission, names: Sequence[str], dtype: DType) -> str:
    """Emit an arithmetic right shift.

    For a negative number, its complement is shifted, and the result complemented again.
    """
    if dtype == uint8:
        return on("BitShift", *names, direction="RIGHT")
    x, count = names
    is_out, power = _power_of_two(on, count, dtype, 8 * dtype.itemsize - 1)
    is_negative = on("Less", x, on.number(0, dtype))
    positive = on("Where", is_negative, on("BitwiseNot", x), x)
    moved = on("Where", is_out, on.number(0, dtype), on("Div", positive, power))
    return on("Where", is_negative, on("BitwiseNot", moved), moved)


def _power_of_two(on: Emission, count: str, dtype: DType, bits: int) -> tuple[str, str]:
    """Emit a test if a shift count is outside `[0, bits)`, and 2 to the power of the count.

    ONNX's BitShift supports only unsigned integers, and does not define shifts by all bits.
    """
    below, above = on("Less", count, on.number(0, dtype)), on.number(bits - 1, dtype)
    is_out = on("Or", below, on("Greater", count, above))
    powers = np.left_shift(np.ones(bits, dtype.numpy), np.arange(bits, dtype=dtype.numpy))
    place = on("Where", is_out, on.number(0, dtype), count)
    return is_out, on("Gather", on.constant(powers), place, axis=0)


COMPOSED: Mapping[str, Composed] = {
    "not_equal": _not_equal,
    "expm1": _expm1,
    "log1p": _log1p,
    "trunc": _trunc,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "fmod": _fmod,
    "left_shift": _left_shift,
    "right_shift": _right_shift,
}
"""Function → an emitter, for functions that need several ONNX nodes."""
