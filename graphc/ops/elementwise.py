"""Elementwise arithmetic with NumPy broadcasting, and the base of elementwise ops.

Each op is given by one scalar expression. A gradient may have the output's shape: the gradient pass
sums it over the axes along which an input was broadcast.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from graphc.devices.device import Device
from graphc.errors import DTypeError, GraphError, OptionError, quoted
from graphc.ir.attributes import Between
from graphc.ir.builder import apply, as_value
from graphc.ir.expression import Expression, ScalarProgram
from graphc.ir.graph import Node, Value
from graphc.ir.op import ANY_AXES, Array, Cost, Op, Recorder, attribute_items
from graphc.ir.op_class import attribute_names, check_declared, expression_of, fail
from graphc.ir.operators import operator
from graphc.ir.types import DType, TensorType, bool_, broadcast_shapes, compute_dtype, number_of
from graphc.ops.cpu.numpy_expression import Lowering, evaluate, lower, registers_type
from graphc.ops.shape import full

Operand = Value | float


class Elementwise(Op):
    """Base: types, buffer relations, cost and kernel follow from the expression.

    An op with one output sets `expression`. An op with several sets `expressions`, by output; an
    expression may read earlier outputs by name. It must not read an input that an earlier output
    overwrites.
    """

    expression: ClassVar[str]
    expressions: ClassVar[Mapping[str, str]]
    parsed: ClassVar[Mapping[str, Expression]]
    takes_bool: ClassVar[bool] = False
    native_16_bit = True
    any_strides = True

    def __init_subclass__(cls) -> None:
        if "expression" in cls.__dict__:
            cls.expressions = {cls.outputs[0]: cls.expression}
        if "name" in cls.__dict__:
            check_declared(cls)
            cls.parsed = parsed_expressions(cls)
            if cls.may_overwrite is Op.may_overwrite and not cls.must_overwrite:
                cls.may_overwrite = {cls.outputs[0]: cls.inputs}
            cls._check_order()
        super().__init_subclass__()

    @classmethod
    def _check_order(cls) -> None:
        overwritten: set[str] = set()
        for output, expression in cls.parsed.items():
            if stale := overwritten & expression.names:
                raise GraphError(
                    f"op {cls.name!r}: the expression of {output} reads {sorted(stale)}, which an "
                    "earlier output overwrites; reorder the expressions"
                )
            overwritten |= {cls.must_overwrite.get(output, "")}

    def infer(self, attributes: Any, *types: TensorType) -> Any:
        """Return the output type: shapes broadcast, and all dtypes are equal."""
        for key, number in attribute_items(attributes):
            number_of(key, number, compute_dtype(types[0].dtype))
        if same_dtype(*types) == bool_ and not self.takes_bool:
            raise DTypeError("bool has no arithmetic; convert with graphc.cast")
        shape = broadcast_shapes(self.name, *(type.shape for type in types))
        return TensorType(shape, types[-1].dtype)

    def free_axes(self, node: Node, name: str) -> int:
        return ANY_AXES

    def cost(self, node: Node) -> Cost:
        flops = sum(expression.flops for expression in self.parsed.values())
        moved = super().cost(node)
        elements = max(value.type.elements for value in node.outputs)
        return Cost(flops * elements, moved.bytes_read, moved.bytes_written)

    def expressions_for(self, attributes: Any, operands: int) -> Mapping[str, Expression]:
        """Return the parsed expressions for these attributes and this number of operands."""
        return self.parsed

    def scalar_program(self, attributes: Any, dtypes: tuple[DType, ...]) -> ScalarProgram:
        """Return the arithmetic per element, with these attributes, on inputs of these dtypes."""
        constants = {key: float(number) for key, number in attribute_items(attributes)}
        expressions = self.expressions_for(attributes, len(dtypes)).items()
        return ScalarProgram(
            tuple(self.input_name(index) for index in range(len(dtypes))),
            self.outputs,
            {output: expression.specialize(constants) for output, expression in expressions},
        )

    def lowering(self, node: Node) -> Lowering:
        """Return the expressions with this node's attributes and dtypes, as calls of NumPy
        functions."""
        inputs = tuple(value.type.dtype for value in node.inputs)
        outputs = tuple(value.type.dtype for value in node.outputs)
        return lowering_of(self, node.attributes, inputs, outputs)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        return registers_type(self.lowering(node), node.outputs[0].type)

    def kernel(self, record: Recorder, node: Node, *inputs: Array, **outputs: Array) -> None:
        arrays = list(outputs.values())
        record(evaluate(self.lowering(node), inputs, arrays, record.scratch))


def parsed_expressions(cls: type[Elementwise]) -> dict[str, Expression]:
    """Return output → parsed expression of a class; raises `GraphError` for an unknown name."""
    if not hasattr(cls, "expressions"):
        fail(cls, 'it has no `expression`; write one of its inputs, such as "exp(x)"')
    known = {name.lstrip("*") for name in cls.inputs} | attribute_names(cls)
    parsed = {}
    for output, source in cls.expressions.items():
        parsed[output] = expression_of(cls, output, source, known)
        known.add(output)
    return parsed


@functools.lru_cache(maxsize=4096)
def lowering_of(
    op: Elementwise, attributes: Any, inputs: tuple[DType, ...], outputs: tuple[DType, ...]
) -> Lowering:
    """Return an op's expressions on operands of these dtypes, as calls of NumPy functions."""
    program = op.scalar_program(attributes, inputs)
    return lower(
        program.expressions,
        dict(zip(program.inputs, inputs, strict=True)),
        dict(zip(program.outputs, outputs, strict=True)),
        program.locals,
    )


def same_dtype(*types: TensorType) -> DType:
    """Return the common dtype of `types`; raises `DTypeError` if they differ."""
    first = types[0].dtype
    for type in types[1:]:
        if type.dtype != first:
            raise DTypeError(
                f"operands must have equal dtypes, got {first} and {type.dtype}; convert one with "
                "graphc.cast"
            )
    return first


def float_dtype(*types: TensorType) -> DType:
    """Return the common dtype of `types`; raises `DTypeError` unless it is a float."""
    dtype = same_dtype(*types)
    if dtype.kind != "float":
        raise DTypeError(f"needs a float dtype, got {dtype}; convert with graphc.cast")
    return dtype


class FloatElementwise(Elementwise):
    """Base of elementwise ops on floats only."""

    only_floats = True

    def infer(self, attributes: Any, *types: TensorType) -> TensorType:
        float_dtype(*types)
        type: TensorType = super().infer(attributes, *types)
        return type


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number that is an attribute of the op, not an operand."""

    value: Annotated[float, Between()]


# --- arithmetic ---


class Add(Elementwise):
    """y = a + b."""

    name, inputs = "add", ("a", "b")
    expression = "a + b"

    def gradient_a(self, node: Node, dy: Value) -> Value:
        return dy

    def gradient_b(self, node: Node, dy: Value) -> Value:
        return dy


class Sub(Elementwise):
    """y = a - b."""

    name, inputs = "sub", ("a", "b")
    expression = "a - b"

    def gradient_a(self, node: Node, dy: Value) -> Value:
        return dy

    def gradient_b(self, node: Node, dy: Value) -> Value:
        return neg(dy)


class Mul(Elementwise):
    """y = a · b."""

    name, inputs = "mul", ("a", "b")
    expression = "a * b"

    def gradient_a(self, node: Node, dy: Value, b: Value) -> Value:
        return mul(dy, b)

    def gradient_b(self, node: Node, dy: Value, a: Value) -> Value:
        return mul(dy, a)


class Div(FloatElementwise):
    """y = a / b."""

    name, inputs = "div", ("a", "b")
    expression = "a / b"

    def gradient_a(self, node: Node, dy: Value, b: Value) -> Value:
        return div(dy, b)

    def gradient_b(self, node: Node, dy: Value, y: Value, b: Value) -> Value:
        return neg(div(mul(dy, y), b))


class Neg(Elementwise):
    """y = -x."""

    name, inputs = "neg", ("x",)
    expression = "-x"

    def gradient(self, node: Node, dy: Value) -> Value:
        return neg(dy)


class Scale(Elementwise):
    """y = value · x."""

    name, inputs = "scale", ("x",)
    attributes = Scalar
    expression = "x * value"

    def gradient(self, node: Node, dy: Value) -> Value:
        return scale(dy, node.attributes.value)


class Shift(Elementwise):
    """y = x + value."""

    name, inputs = "shift", ("x",)
    attributes = Scalar
    expression = "x + value"

    def gradient(self, node: Node, dy: Value) -> Value:
        return dy


class Exp(FloatElementwise):
    """y = exp(x)."""

    name, inputs = "exp", ("x",)
    precision = "wide"
    expression = "exp(x)"

    def gradient(self, node: Node, dy: Value, y: Value) -> Value:
        return mul(y, dy)


class Log(FloatElementwise):
    """y = log(x), natural."""

    name, inputs = "log", ("x",)
    precision = "wide"
    expression = "log(x)"

    def gradient(self, node: Node, dy: Value, x: Value) -> Value:
        return div(dy, x)


class Sqrt(FloatElementwise):
    """y = the square root of x."""

    name, inputs = "sqrt", ("x",)
    expression = "sqrt(x)"

    def gradient(self, node: Node, dy: Value, y: Value) -> Value:
        return scale(div(dy, y), 0.5)


# --- functions ---


def zero(like: Value) -> Value:
    """Return a scalar 0 of the dtype of `like`, which broadcasts."""
    return full((), 0.0, like.type.dtype)


def _lift(number: Operand, like: Value) -> Value:
    if isinstance(number, Value):
        return number
    return full((), number_of("operand", number, like.type.dtype), like.type.dtype)


def operands(a: Operand, b: Operand) -> tuple[Value, Value]:
    """Return both operands as values.

    A number becomes a scalar of the dtype of the other operand.
    """
    if isinstance(a, Value):
        return a, _lift(b, a)
    return _lift(a, _value(b)), _value(b)


def _value(operand: Operand) -> Value:
    if not isinstance(operand, Value):
        raise OptionError(
            f"at least one operand must be a graphc value, got {quoted(operand)} and another number"
        )
    return operand


@operator("+")
def add(a: Operand, b: Operand) -> Value:
    """Return a + b of one dtype. They broadcast, and either may be a number."""
    if not isinstance(b, Value):
        return shift(_value(a), b)
    return apply(Add, a, b).output if isinstance(a, Value) else shift(b, a)


@operator("-")
def sub(a: Operand, b: Operand) -> Value:
    """Return a - b of one dtype. They broadcast, and either may be a number."""
    if not isinstance(b, Value):
        return shift(_value(a), -number_of("sub", b, _value(a).type.dtype))
    return apply(Sub, a, b).output if isinstance(a, Value) else shift(neg(b), a)


@operator("*")
def mul(a: Operand, b: Operand) -> Value:
    """Return a · b of one dtype. They broadcast, and either may be a number."""
    if not isinstance(b, Value):
        return scale(_value(a), b)
    return apply(Mul, a, b).output if isinstance(a, Value) else scale(b, a)


@operator("/")
def div(a: Operand, b: Operand) -> Value:
    """Return a / b of one float dtype. They broadcast, and either may be a number."""
    return apply(Div, *operands(a, b)).output


@operator("neg")
def neg(x: Value) -> Value:
    """Return -x; keeps shape and dtype."""
    return apply(Neg, x).output


def scale(x: Value, value: float) -> Value:
    """Return x times the number `value`, an attribute of the op; a constant if not finite."""
    if _is_not_finite(value):
        return mul(x, _lift(value, x))
    return apply(Scale, x, attributes=scalar("operand", x, value)).output


def shift(x: Value, value: float) -> Value:
    """Return x plus the number `value`, an attribute of the op; a constant if not finite."""
    if _is_not_finite(value):
        return add(x, _lift(value, x))
    return apply(Shift, x, attributes=scalar("operand", x, value)).output


def _is_not_finite(number: object) -> bool:
    return isinstance(number, float | np.floating) and not math.isfinite(number)


def scalar(where: str, x: Value, number: object) -> Scalar:
    """Return `number` as an attribute of an op.

    Raises an error unless the dtype of x can hold it.
    """
    return Scalar(number_of(where, number, as_value(where, x).type.dtype))


def exp(x: Value) -> Value:
    """Return e to the power x, for float x; keeps shape and dtype."""
    return apply(Exp, x).output


def log(x: Value) -> Value:
    """Return the natural logarithm of float x: NaN below 0, -inf at 0; keeps shape and dtype."""
    return apply(Log, x).output


def sqrt(x: Value) -> Value:
    """Return the square root of float x: NaN below 0, and an infinite gradient at 0.

    It keeps shape and dtype.
    """
    return apply(Sqrt, x).output
