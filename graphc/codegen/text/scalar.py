"""Lowering of scalar expressions to C++ statements.

16-bit floats are computed in float32 and rounded once, at the end, as on the CPU. Functions
are those of C with the suffix of their type, so a kernel's text states the precision of its
arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.ir.expression import PREDICATES, Expression, Operand, Result
from graphc.ir.types import (
    DType,
    bfloat16,
    bool_,
    compute_dtype,
    float8_e4m3,
    float8_e5m2,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint8,
)

C_TYPES = {
    float32: "float",
    float64: "double",
    float16: "float16",
    bfloat16: "bfloat16",
    float8_e4m3: "float8_e4m3",
    float8_e5m2: "float8_e5m2",
    int32: "int",
    int64: "long long",
    uint8: "unsigned char",
    bool_: "bool",
}

_SIGNS = {
    "add": "+", "multiply": "*", "subtract": "-", "divide": "/", "less": "<", "less_equal": "<=",
    "greater": ">", "greater_equal": ">=", "equal": "==", "not_equal": "!=",
}  # fmt: skip

_OF_MATH = (
    "exp", "log", "expm1", "log1p", "sqrt", "erf", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "floor", "ceil", "rint", "trunc",
)  # fmt: skip
"""Functions of floats that have the same name in C."""

_HELPERS = {
    "maximum": "maximum", "minimum": "minimum", "sign": "sign", "isinf": "is_infinite",
    "floor_divide": "floored_quotient", "remainder": "floored_remainder",
    "fmod": "truncated_remainder", "left_shift": "shifted_left", "right_shift": "shifted_right",
}  # fmt: skip
"""Functions of any dtype, with the names of their helpers in `prelude.cuh`."""

_BITWISE = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}


def arithmetic_dtype(dtype: DType) -> DType:
    """Return the dtype of a kernel's variable for an operand: at least float32, or at least
    int32."""
    wide = compute_dtype(dtype)
    return int32 if wide == uint8 else wide


def literal(number: float, dtype: DType) -> str:
    """Return a number as an exact C++ literal of a given dtype."""
    if dtype.kind != "float":
        return f"{int(number)}LL" if dtype == int64 else str(int(number))
    suffix = "f" if dtype == float32 else ""
    with np.errstate(over="ignore"):
        rounded = float(dtype.numpy.type(number))
    if np.isinf(rounded):
        sign = "-" if rounded < 0 else ""
        return f"{sign}infinite(0.0{suffix})"
    return f"({rounded!r}{suffix})" if rounded < 0 else f"{rounded!r}{suffix}"


def floating(dtypes: Sequence[DType]) -> DType | None:
    """Return the dtype of literals in expressions without variables: the arithmetic dtype of the
    first float."""
    floats = [compute_dtype(dtype) for dtype in dtypes if dtype.kind == "float"]
    return floats[0] if floats else None


def common_dtype(dtypes: Sequence[DType | None]) -> DType | None:
    """Return the dtype in which a function of operands of these dtypes is computed.

    A dtype of None represents a literal. The result is None if there are only literals and bools.
    """
    found = [dtype for dtype in dtypes if dtype is not None]
    arithmetic = [dtype for dtype in found if dtype != bool_]
    if arithmetic:
        return max(arithmetic, key=lambda dtype: (dtype.kind == "float", dtype.itemsize))
    return bool_ if len(found) == len(dtypes) else None


class ScalarCode:
    """A compiler of expressions over the variables declared so far; it appends to `statements`.

    A variable is held in the `arithmetic_dtype` of its operand.
    """

    def __init__(self, floating: DType | None) -> None:
        self.floating = floating
        """The dtype of literals in expressions without variables. If None, it is that of the first
        variable."""
        self.statements: list[str] = []
        self.variables: dict[str, tuple[str, DType]] = {}
        self.results = 0

    def declare(self, name: str, dtype: DType, value: str) -> None:
        """Declare a variable for an operand called `name`."""
        held = arithmetic_dtype(dtype)
        self.variables[name] = (f"{name}_value", held)
        self.statements.append(f"const {C_TYPES[held]} {name}_value = {value};")

    def compute(self, expression: Expression) -> tuple[str, DType]:
        """Return C++ for the expression's value, such as the name of a variable, and its dtype."""
        done: list[tuple[str, DType]] = []
        for instruction in expression.instructions:
            dtype = self._dtype(instruction.operands, done)
            operands = [self._operand(operand, done, dtype) for operand in instruction.operands]
            result = f"r{self.results}"
            self.results += 1
            kind = bool_ if instruction.function in PREDICATES else dtype
            code = _apply(instruction.function, operands, dtype)
            self.statements.append(f"const {C_TYPES[kind]} {result} = {code};")
            done.append((result, kind))
        dtype = self._dtype((expression.value,), done)
        return self._operand(expression.value, done, dtype), dtype

    def nested(self) -> ScalarCode:
        """Return a compiler for code inside a loop, in which all variables declared so far are
        visible."""
        inner = ScalarCode(self.floating)
        inner.variables, inner.results = dict(self.variables), self.results
        return inner

    def define(self, name: str, dtype: DType, expression: Expression) -> None:
        """Declare a variable for the expression's value, rounded to `dtype`."""
        value, _ = self.compute(expression)
        if dtype.itemsize == 2:
            held = C_TYPES[arithmetic_dtype(dtype)]
            self.statements.append(f"{C_TYPES[dtype]} {name}_narrow;")
            self.statements.append(f"narrow(({held}){value}, {name}_narrow);")
            value = f"widen({name}_narrow)"
        self.declare(name, dtype, value)

    def assign(self, expression: Expression, dtype: DType, target: str) -> None:
        """Assign the expression's value to `target`, rounded to its dtype."""
        value, _ = self.compute(expression)
        held = C_TYPES[arithmetic_dtype(dtype)]
        converted = value if dtype.itemsize != 2 else f"({held}){value}"
        self.statements.append(f"narrow({converted}, {target});")

    def _known(self, operand: Operand, done: list[tuple[str, DType]]) -> tuple[str, DType] | None:
        if isinstance(operand, Result):
            return done[operand.index]
        return self.variables[operand] if isinstance(operand, str) else None

    def _dtype(self, operands: tuple[Operand, ...], done: list[tuple[str, DType]]) -> DType:
        known = [self._known(operand, done) for operand in operands]
        found = common_dtype([None if each is None else each[1] for each in known])
        return found or self.floating or next(iter(self.variables.values()))[1]

    def _operand(self, operand: Operand, done: list[tuple[str, DType]], dtype: DType) -> str:
        known = self._known(operand, done)
        return known[0] if known else literal(float(operand), dtype)  # type: ignore[arg-type]


def _apply(function: str, operands: list[str], dtype: DType) -> str:
    """Return C++ for one function, computed in `dtype`; operands are converted to it if
    necessary."""
    kind, suffix = C_TYPES[dtype], "f" if dtype == float32 else ""
    if function in _OF_MATH:
        return f"{function}{suffix}({operands[0]})"
    if function in _HELPERS:
        return f"{_HELPERS[function]}<{kind}>({', '.join(operands)})"
    if function in _BITWISE:
        return f"({kind})({operands[0]} {_BITWISE[function]} {operands[1]})"
    match function:
        case "where":
            condition, a, b = operands
            return f"{condition} ? {a} : {b}"
        case "sigmoid":
            return f"sigmoid({operands[0]})"
        case "isnan":
            return f"{operands[0]} != {operands[0]}"
        case "invert":
            return f"{'!' if dtype == bool_ else '~'}{operands[0]}"
    if dtype.kind == "float":
        return _of_floats(function, operands, suffix)
    return _of_integers(function, operands, kind)


def _of_floats(function: str, operands: list[str], suffix: str) -> str:
    match function:
        case "negative":
            return f"-{operands[0]}"
        case "power":
            return f"pow{suffix}({', '.join(operands)})"
        case "abs":
            return f"fabs{suffix}({operands[0]})"
    return f" {_SIGNS[function]} ".join(operands)


def _of_integers(function: str, operands: list[str], kind: str) -> str:
    """Return C++ for a function of integers that wrap around, though signed overflow is undefined
    in C++."""
    a, *others = [f"({kind}){operand}" for operand in operands]
    match function:
        case "add" | "multiply":
            return f"{function}({a}, {others[0]})"
        case "subtract":
            return f"add({a}, multiply({others[0]}, ({kind})-1))"
        case "negative":
            return f"multiply({operands[0]}, ({kind})-1)"
        case "power":
            return f"integer_power({a}, {others[0]})"
        case "abs":
            return f"{operands[0]} < 0 ? multiply({a}, ({kind})-1) : {a}"
    return f" {_SIGNS[function]} ".join(operands)
