"""Lowering of scalar expressions to LLVM IR over vectors of lanes.

Dtypes and rounding are those of `codegen/text/scalar.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from graphc.codegen.llvm import functions
from graphc.codegen.llvm.integers import OF_INTEGERS, of_integers
from graphc.codegen.llvm.lanes import (
    DOUBLE,
    HELD,
    Builder,
    IrValue,
    constant,
    converted,
    intrinsic,
    narrow,
    splat,
    vector,
    widen,
)
from graphc.codegen.text.scalar import arithmetic_dtype, common_dtype
from graphc.ir.expression import LOGIC, PREDICATES, Expression, Instruction, Operand, Result
from graphc.ir.types import DType, bool_, float32, float64

BY_LIBRARY = {
    "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh",
    "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "power": "pow", "fmod": "fmod",
}  # fmt: skip
"""Functions of floats that the C library computes in float64, with the names of the C functions."""

WIDE_BY_LIBRARY = {"tanh": "tanh", "erf": "erf", "sin": "sin", "cos": "cos", "expm1": "expm1"}
"""Functions that the C library computes for float64 operands only, with the names of the C
functions."""

ROUNDINGS = ("floor", "ceil", "rint", "trunc", "sqrt")

_ORDERED = {"less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=", "equal": "=="}

Lanes = tuple[IrValue, DType]
"""A vector, and the arithmetic dtype of its lanes."""

OF_BOOLS = (*LOGIC, *_ORDERED, "not_equal", "where", "maximum", "minimum", "multiply")
"""Functions that apply to bools directly, without conversion to numbers."""


def supports(expression: Expression, dtypes: Mapping[str, DType]) -> bool:
    """Return true if `LaneCode` can compute an expression over names of these dtypes.

    It cannot compute powers of integers, float functions of integers, or arithmetic on bools
    alone.
    """
    computed_in, _ = _dtypes(expression, dtypes)
    for instruction, dtype in zip(expression.instructions, computed_in, strict=True):
        if dtype is None or dtype.kind == "float":
            continue
        if instruction.function not in (OF_BOOLS if dtype == bool_ else OF_INTEGERS):
            return False
    return True


def dtype_of(expression: Expression, dtypes: Mapping[str, DType], beside_none: DType) -> DType:
    """Return the arithmetic dtype of an expression's value in `LaneCode`."""
    return _dtypes(expression, dtypes, beside_none)[1] or beside_none


def _dtypes(
    expression: Expression, dtypes: Mapping[str, DType], beside_none: DType | None = None
) -> tuple[list[DType | None], DType | None]:
    """Return the dtype of each instruction, and the dtype of the value.

    `beside_none` is used if there are only literals and bools.
    """
    found: list[DType | None] = []
    done: list[DType | None] = []

    def of(operands: Sequence[Operand]) -> DType | None:
        known: list[DType | None] = []
        for operand in operands:
            given = dtypes.get(operand) if isinstance(operand, str) else None
            named = None if given is None else arithmetic_dtype(given)
            known.append(done[operand.index] if isinstance(operand, Result) else named)
        return common_dtype(known) or beside_none

    for instruction in expression.instructions:
        found.append(of(instruction.operands))
        done.append(bool_ if instruction.function in PREDICATES else found[-1])
    return found, of((expression.value,))


class LaneCode:
    """A compiler of expressions over the variables declared so far.

    A variable is held in the `arithmetic_dtype` of its operand.
    """

    def __init__(self, builder: Builder, floating: DType | None) -> None:
        self.builder = builder
        self.floating = floating
        """The dtype of literals in expressions without variables. If None, it is that of the first
        variable."""
        self.variables: dict[str, Lanes] = {}
        self.constants: dict[str, IrValue] = {}
        """Named float64 constants whose values are known only at run time."""
        self.results: dict[str, Lanes] = {}
        """Results of instructions by their text, so that no instruction is computed twice."""

    def declare(self, name: str, dtype: DType, stored: IrValue) -> None:
        """Declare a variable for an operand, given its elements as stored in memory."""
        self.hold(name, arithmetic_dtype(dtype), widen(self.builder, stored, dtype))

    def hold(self, name: str, dtype: DType, value: IrValue) -> None:
        """Declare a variable whose value is a vector of the arithmetic dtype `dtype`."""
        if name in self.variables:
            self.results = {}  # they may depend on its previous value
        self.variables[name] = (value, dtype)

    def nested(self) -> LaneCode:
        """Return a compiler for code inside a loop, in which all variables declared so far are
        visible."""
        inner = LaneCode(self.builder, self.floating)
        inner.variables, inner.constants = dict(self.variables), self.constants
        inner.results = dict(self.results)
        return inner

    def define(self, name: str, dtype: DType, expression: Expression) -> IrValue:
        """Declare a variable for the expression's value, rounded to `dtype`; return the value as
        stored."""
        value, source = self.compute(expression)
        stored = narrow(self.builder, value, source, dtype)
        self.declare(name, dtype, stored)
        return stored

    def compute(self, expression: Expression) -> Lanes:
        """Return the expression's value and its dtype."""
        done: list[Lanes] = []
        written = _written(expression)
        for instruction, text in zip(expression.instructions, written, strict=True):
            if text not in self.results:
                self.results[text] = self._result(instruction, done)
            done.append(self.results[text])
        dtype = self._dtype((expression.value,), done)
        return self._operand(expression.value, done, dtype), dtype

    def prepare(self, expressions: Iterable[Expression]) -> None:
        """Compute the parts of expressions that depend only on known variables, before a loop."""
        for expression in expressions:
            done: dict[int, Lanes] = {}
            written = _written(expression)
            for number, instruction in enumerate(expression.instructions):
                operands = instruction.operands
                if all(self._is_known(operand, done) for operand in operands):
                    known = [done.get(i, _NOTHING) for i in range(number)]
                    text = written[number]
                    if text not in self.results:
                        self.results[text] = self._result(instruction, known)
                    done[number] = self.results[text]

    def _is_known(self, operand: Operand, done: Mapping[int, Lanes]) -> bool:
        if isinstance(operand, Result):
            return operand.index in done
        return isinstance(operand, float) or operand in self.variables or operand in self.constants

    def _result(self, instruction: Instruction, done: Sequence[Lanes]) -> Lanes:
        dtype = self._dtype(instruction.operands, done)
        operands = [self._operand(operand, done, dtype) for operand in instruction.operands]
        function = instruction.function
        if function == "where":
            operands[0] = self._condition(instruction.operands[0], done, operands[0], dtype)
        kind = bool_ if function in PREDICATES else dtype
        return _apply(self.builder, function, operands, dtype), kind

    def _known(self, operand: Operand, done: Sequence[Lanes]) -> Lanes | None:
        if isinstance(operand, Result):
            return done[operand.index]
        return self.variables.get(operand) if isinstance(operand, str) else None

    def _dtype(self, operands: Sequence[Operand], done: Sequence[Lanes]) -> DType:
        known = [self._known(operand, done) for operand in operands]
        found = common_dtype([None if each is None else each[1] for each in known])
        return found or self.floating or next(iter(self.variables.values()))[1]

    def _operand(self, operand: Operand, done: Sequence[Lanes], dtype: DType) -> IrValue:
        known = self._known(operand, done)
        if known:
            return converted(self.builder, known[0], known[1], dtype)
        if isinstance(operand, str):
            return self._constant(self.constants[operand], dtype)
        assert isinstance(operand, float)
        return literal(operand, dtype)

    def _constant(self, number: IrValue, dtype: DType) -> IrValue:
        to = HELD[dtype]
        if dtype.kind != "float":
            return splat(self.builder, self.builder.fptosi(number, to))
        same = to == DOUBLE
        return splat(self.builder, number if same else self.builder.fptrunc(number, to))

    def _condition(
        self, operand: Operand, done: Sequence[Lanes], value: IrValue, dtype: DType
    ) -> IrValue:
        """Return the condition of a `where` as bools, converted from the condition's own dtype."""
        known = self._known(operand, done)
        given, source = known or (value, dtype)
        return converted(self.builder, given, source, bool_)


_NOTHING: Lanes = (None, bool_)
"""A placeholder for a result that is never read."""


def _written(expression: Expression) -> list[str]:
    """Return a text for each instruction; equal texts compute equal results in any expression."""
    texts: list[str] = []
    for instruction in expression.instructions:
        operands = [
            texts[o.index] if isinstance(o, Result) else repr(o) for o in instruction.operands
        ]
        texts.append(f"{instruction.function}({', '.join(operands)})")
    return texts


def literal(number: float, dtype: DType) -> IrValue:
    """Return a vector with the number in every lane, rounded to `dtype`."""
    type = vector(HELD[dtype])
    if dtype.kind == "float":
        with np.errstate(over="ignore"):
            return constant(type, float(dtype.numpy.type(number)))
    return constant(type, bool(number) if dtype == bool_ else int(number))


def _apply(builder: Builder, function: str, operands: list[IrValue], dtype: DType) -> IrValue:
    """Apply one function to operands of dtype `dtype`."""
    if function == "where":
        return builder.select(*operands)
    if dtype == bool_:
        return _of_bools(builder, function, operands)
    of = _of_floats if dtype.kind == "float" else of_integers
    return of(builder, function, operands)


def _of_bools(builder: Builder, function: str, operands: list[IrValue]) -> IrValue:
    match function:
        case "bitwise_and" | "minimum" | "multiply":
            return builder.and_(*operands)
        case "bitwise_or" | "maximum":
            return builder.or_(*operands)
        case "bitwise_xor" | "not_equal":
            return builder.xor(*operands)
        case "invert":
            return builder.not_(operands[0])
    return builder.icmp_unsigned(_ORDERED[function], *operands)


def _of_floats(builder: Builder, function: str, operands: list[IrValue]) -> IrValue:
    x = operands[0]
    if function in ROUNDINGS:
        return intrinsic(builder, function, x)
    if function in _ORDERED:
        return builder.fcmp_ordered(_ORDERED[function], *operands)
    if function in _SIMPLE:
        return _SIMPLE[function](builder, *operands)
    return _transcendental(builder, function, operands)


def extreme(builder: Builder, sign: str, a: IrValue, b: IrValue) -> IrValue:
    """Return a if `a sign b` holds or a is NaN, else b; so NaN propagates, as in NumPy."""
    beyond = builder.fcmp_ordered(sign, a, b)
    nan = builder.fcmp_unordered("uno", a, a)
    return builder.select(builder.or_(beyond, nan), a, b)


def _sign(builder: Builder, x: IrValue) -> IrValue:
    zero, one = constant(x.type, 0.0), constant(x.type, 1.0)
    lower = builder.select(
        builder.fcmp_ordered("<", x, zero),
        constant(x.type, -1.0),
        builder.select(builder.fcmp_ordered("==", x, zero), zero, x),
    )
    return builder.select(builder.fcmp_ordered(">", x, zero), one, lower)


def _floored_remainder(builder: Builder, a: IrValue, b: IrValue) -> IrValue:
    rest = _transcendental(builder, "fmod", [a, b])
    zero = constant(a.type, 0.0)
    negative = builder.fcmp_ordered("<", b, zero)
    differ = builder.xor(builder.fcmp_ordered("<", rest, zero), negative)
    moved = builder.select(differ, builder.fadd(rest, b), rest)
    of_zero = builder.select(negative, constant(a.type, -0.0), zero)
    return builder.select(builder.fcmp_ordered("==", rest, zero), of_zero, moved)


def _floored_ratio(builder: Builder, a: IrValue, b: IrValue) -> IrValue:
    """Compute the floored quotient as in `prelude.cuh`, which follows NumPy."""
    zero, one = constant(a.type, 0.0), constant(a.type, 1.0)
    rest = _transcendental(builder, "fmod", [a, b])
    ratio = builder.fdiv(a, b)
    differ = builder.xor(builder.fcmp_ordered("<", rest, zero), builder.fcmp_ordered("<", b, zero))
    less = builder.and_(builder.fcmp_unordered("!=", rest, zero), differ)
    quotient = builder.fdiv(builder.fsub(a, rest), b)
    quotient = builder.fsub(quotient, builder.select(less, one, zero))
    whole = intrinsic(builder, "floor", quotient)
    above = builder.fcmp_ordered(">", builder.fsub(quotient, whole), constant(a.type, 0.5))
    found = builder.fadd(whole, builder.select(above, one, zero))
    is_zero = builder.fcmp_ordered("==", quotient, zero)
    found = builder.select(is_zero, builder.fmul(ratio, zero), found)
    return builder.select(builder.fcmp_ordered("==", b, zero), ratio, found)


_SIMPLE: dict[str, Callable[..., IrValue]] = {
    "add": lambda b, x, y: b.fadd(x, y),
    "subtract": lambda b, x, y: b.fsub(x, y),
    "multiply": lambda b, x, y: b.fmul(x, y),
    "divide": lambda b, x, y: b.fdiv(x, y),
    "negative": lambda b, x: b.fneg(x),
    "abs": lambda b, x: intrinsic(b, "fabs", x),
    "sign": _sign,
    "maximum": lambda b, x, y: extreme(b, ">=", x, y),
    "minimum": lambda b, x, y: extreme(b, "<=", x, y),
    "not_equal": lambda b, x, y: b.fcmp_unordered("!=", x, y),
    "isnan": lambda b, x: b.fcmp_unordered("uno", x, x),
    "isinf": lambda b, x: b.fcmp_ordered(
        "==", intrinsic(b, "fabs", x), constant(x.type, float("inf"))
    ),
    "remainder": _floored_remainder,
    "floor_divide": _floored_ratio,
    "exp": functions.exponential,
    "sigmoid": functions.sigmoid,
}

_OF_SINGLES: dict[str, Callable[..., IrValue]] = {
    "tanh": functions.hyperbolic_tangent,
    "erf": functions.error_function,
}
"""Functions that are computed in float32 for float32 operands."""

_IN_DOUBLES: dict[str, Callable[..., IrValue]] = {
    "log": functions.logarithm,
    "log1p": functions.log_of_one_more,
}
"""Functions computed in float64 for every dtype."""

_ROUNDED: dict[str, Callable[..., IrValue]] = {
    "expm1": functions.exponential_less_one,
    "sin": lambda b, x: functions.sine(b, x, 0),
    "cos": lambda b, x: functions.sine(b, x, 1),
}
"""Functions of float32 operands that are computed in float64, but with less than float64
accuracy."""


def _transcendental(builder: Builder, function: str, operands: list[IrValue]) -> IrValue:
    single = operands[0].type == functions.F32
    if single and function in _OF_SINGLES:
        return _OF_SINGLES[function](builder, *operands)
    given = [converted(builder, o, float32, float64) for o in operands] if single else operands
    if function in _IN_DOUBLES:
        found = _IN_DOUBLES[function](builder, *given)
    elif single and function in _ROUNDED:
        found = _ROUNDED[function](builder, *given)
    else:
        found = functions.by_lane(builder, (BY_LIBRARY | WIDE_BY_LIBRARY)[function], *given)
    return converted(builder, found, float64, float32) if single else found
