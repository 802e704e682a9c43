"""Scalar expressions of elementwise ops: parsed once, lowered to NumPy, C or CUDA.

An expression is written in Python's syntax over the names of an op's inputs and attributes, for
example ``dy * (1 - y * y)``. It becomes a short list of instructions in static single assignment
form. A target only needs to implement the functions in `FUNCTIONS`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from graphc.errors import GraphError
from graphc.ir.syntax import expression_tree
from graphc.ir.types import DType

FUNCTIONS = {
    # name: flops per element, counted as vendors count them (transcendentals as their polynomial)
    "add": 1, "subtract": 1, "multiply": 1, "divide": 1, "negative": 1, "power": 10,
    "exp": 8, "log": 8, "expm1": 8, "log1p": 8, "sqrt": 2, "erf": 10, "sigmoid": 10,
    "sin": 10, "cos": 10, "tan": 12, "asin": 12, "acos": 12, "atan": 12,
    "sinh": 10, "cosh": 10, "tanh": 10, "asinh": 12, "acosh": 12, "atanh": 12,
    "abs": 1, "sign": 1, "floor": 1, "ceil": 1, "rint": 1, "trunc": 1,
    "maximum": 1, "minimum": 1, "floor_divide": 4, "remainder": 4, "fmod": 4,
    "bitwise_and": 1, "bitwise_or": 1, "bitwise_xor": 1, "invert": 1,
    "left_shift": 1, "right_shift": 1,
    "less": 1, "less_equal": 1, "greater": 1, "greater_equal": 1, "equal": 1, "not_equal": 1,
    "isnan": 1, "isinf": 1, "where": 1,
}  # fmt: skip

PREDICATES = (
    "less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "isnan", "isinf",
)  # fmt: skip
"""Functions whose results are bool, whatever the types of their operands."""

LOGIC = ("bitwise_and", "bitwise_or", "bitwise_xor", "invert")
"""Bitwise functions of integers; their results are bool if their operands are."""

OPERANDS = {
    **dict.fromkeys(FUNCTIONS, 1),
    **dict.fromkeys(
        (
            "add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "floor_divide",
            "remainder", "fmod", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift",
            "right_shift", "less", "less_equal", "greater", "greater_equal", "equal", "not_equal",
        ),
        2,
    ),
    "where": 3,
}  # fmt: skip
"""The number of operands of each function."""

_BINARY = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.Pow: "power",
    ast.FloorDiv: "floor_divide",
    ast.Mod: "remainder",
    ast.BitAnd: "bitwise_and",
    ast.BitOr: "bitwise_or",
    ast.BitXor: "bitwise_xor",
    ast.LShift: "left_shift",
    ast.RShift: "right_shift",
}
_COMPARE = {
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of instruction number `index`, as an operand of a later one."""

    index: int


Operand = Result | str | float
"""An earlier instruction's result, the name of an input or attribute, or a literal."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One function of `FUNCTIONS` applied to operands."""

    function: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression; its value is `value`, usually the last instruction's result."""

    source: str
    instructions: tuple[Instruction, ...]
    value: Operand

    @property
    def names(self) -> frozenset[str]:
        """The inputs and attributes that the expression reads."""
        operands = [o for i in self.instructions for o in i.operands] + [self.value]
        return frozenset(o for o in operands if isinstance(o, str))

    @property
    def bitwise(self) -> str:
        """A bitwise function whose operands are not all comparisons; empty if there is none."""
        truths: set[Operand] = set()
        for index, instruction in enumerate(self.instructions):
            function, operands = instruction.function, instruction.operands
            if function in PREDICATES or (function in LOGIC and truths.issuperset(operands)):
                truths.add(Result(index))
            elif function in (*LOGIC, "left_shift", "right_shift"):
                return function
        return ""

    @property
    def flops(self) -> int:
        """Floating point operations per element."""
        return sum(FUNCTIONS[instruction.function] for instruction in self.instructions)

    def specialize(self, constants: Mapping[str, str | float]) -> Expression:
        """Return the expression with names replaced, constants folded, and small powers
        expanded."""
        known: dict[int, Operand] = {}
        kept: list[Instruction] = []

        def resolve(operand: Operand) -> Operand:
            if isinstance(operand, Result):
                return known[operand.index]
            return constants.get(operand, operand) if isinstance(operand, str) else operand

        for index, instruction in enumerate(self.instructions):
            operands = tuple(resolve(operand) for operand in instruction.operands)
            folded = _fold(instruction.function, operands)
            if isinstance(folded, Instruction):
                kept.append(folded)
                known[index] = Result(len(kept) - 1)
            else:
                known[index] = folded
        return Expression(self.source, tuple(kept), resolve(self.value))


@dataclass(frozen=True, slots=True)
class ScalarProgram:
    """The computation of a kernel for each element: specialized expressions by name, in order.

    `inputs` and `outputs` name operands in the order of a node. Other names are locals: their
    values are rounded to their dtype, but not stored in memory. An expression may read the inputs
    and all names that precede it.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    expressions: Mapping[str, Expression]
    locals: Mapping[str, DType] = field(default_factory=dict)


def _fold(function: str, operands: tuple[Operand, ...]) -> Instruction | Operand:
    """Return `function` of operands, simplified if all are numbers or it is a small power."""
    if all(isinstance(operand, float) for operand in operands):
        numbers = [operand for operand in operands if isinstance(operand, float)]
        match function:
            case "negative":
                return -numbers[0]
            case "add" | "subtract" | "multiply" | "divide" | "power":
                with np.errstate(all="ignore"):  # 1 / 0 is inf, as it is in every kernel
                    return float(getattr(np, function)(*numbers))
    if function == "power":
        base, exponent = operands
        if exponent == 0.0:
            return 1.0
        if exponent == 1.0:
            return base
        if exponent == 2.0:
            return Instruction("multiply", (base, base))
        if exponent == 0.5:
            return Instruction("sqrt", (base,))
        if exponent == -1.0:
            return Instruction("divide", (1.0, base))
    return Instruction(function, operands)


def parse(source: str) -> Expression:
    """Return the parsed expression.

    Raises `GraphError` with the part that the grammar does not allow.
    """
    if not isinstance(source, str):
        raise GraphError(f"an expression is text, such as 'exp(x)', got {source!r}")
    try:
        tree = expression_tree(source)
    except SyntaxError as error:
        raise GraphError(f"expression {source!r} is not valid: {error.msg}") from None
    instructions: list[Instruction] = []

    def emit(function: str, *operands: Operand) -> Result:
        instruction = Instruction(function, operands)
        if instruction not in instructions:  # a repeated subexpression is computed once
            instructions.append(instruction)
        return Result(instructions.index(instruction))

    def lower(node: ast.expr) -> Operand:
        match node:
            case ast.Constant(value=int() | float() as number):
                return float(number)
            case ast.Name():
                return node.id
            case ast.UnaryOp(op=ast.USub()):
                operand = lower(node.operand)
                return -operand if isinstance(operand, float) else emit("negative", operand)
            case ast.UnaryOp(op=ast.Invert()):
                return emit("invert", lower(node.operand))
            case ast.BinOp() if type(node.op) in _BINARY:
                left, right = lower(node.left), lower(node.right)
                return emit(_BINARY[type(node.op)], left, right)
            case ast.Compare(ops=[op]) if type(op) in _COMPARE:
                left, right = lower(node.left), lower(node.comparators[0])
                return emit(_COMPARE[type(op)], left, right)
            case ast.Call(func=ast.Name(id=function), keywords=[]) if function in FUNCTIONS:
                if len(node.args) != OPERANDS[function]:
                    raise GraphError(
                        f"expression {source!r}: {ast.unparse(node)!r} has {len(node.args)} "
                        f"operands; give {function} {OPERANDS[function]}"
                    )
                return emit(function, *(lower(argument) for argument in node.args))
        known = ", ".join(sorted(FUNCTIONS))
        raise GraphError(
            f"expression {source!r}: {ast.unparse(node)!r} is not in the grammar, which has + - "
            f"* / // % ** & | ^ ~ << >>, comparisons and the functions {known}"
        )

    value = lower(tree)
    return Expression(source, tuple(instructions), value)
