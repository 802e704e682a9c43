"""Functions of scalar expressions as nodes of ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onnx import TensorProto

from graphc.ir.types import DType, bool_, int32, uint8
from graphc.onnx.emission import Emission, element_type

SAME = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "negative": "Neg",
    "power": "Pow", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "erf": "Erf",
    "sigmoid": "Sigmoid", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin",
    "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh",
    "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "abs": "Abs", "sign": "Sign",
    "floor": "Floor", "ceil": "Ceil", "rint": "Round", "maximum": "Max", "minimum": "Min",
    "equal": "Equal", "isnan": "IsNaN", "isinf": "IsInf", "where": "Where",
}  # fmt: skip
"""Function → the operator that computes it."""

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
    """A function of operands of one dtype; of ``where``, that of its branches."""
    if function in SAME:
        return on(SAME[function], *names)
    if function in ORDERED:  # ONNX orders no bools
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
    if dtype.kind == "int":  # a quotient of integers is cut already
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
    return _shifted(on, names, dtype, "LEFT")


def _right_shift(on: Emission, names: Sequence[str], dtype: DType) -> str:
    """Of a negative number, the bits that are 0 move: its sign stays."""
    if dtype == uint8:
        return _shifted(on, names, dtype, "RIGHT")
    x, count = names
    moved = _shifted(on, names, dtype, "RIGHT")
    flipped = on("BitwiseNot", _shifted(on, (on("BitwiseNot", x), count), dtype, "RIGHT"))
    return on("Where", on("Less", x, on.number(0, dtype)), flipped, moved)


def _shifted(on: Emission, names: Sequence[str], dtype: DType, direction: str) -> str:
    """ONNX shifts numbers without a sign alone."""
    if dtype == uint8:
        return on("BitShift", *names, direction=direction)
    wide = TensorProto.UINT32 if dtype == int32 else TensorProto.UINT64
    words = [on("Cast", name, to=wide) for name in names]
    shifted = on("BitShift", *words, direction=direction)
    return on("Cast", shifted, to=element_type(dtype))


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
"""Function → what makes it of several nodes."""
