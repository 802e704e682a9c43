"""Comparison, selection and conversion, elementwise with NumPy broadcasting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from graphc.errors import DTypeError
from graphc.ir.attributes import Between, DTypeName
from graphc.ir.builder import apply, as_value
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Op, Recorder
from graphc.ir.operators import operator
from graphc.ir.types import Layout, TensorType, as_dtype, bool_, broadcast_shapes, number_of
from graphc.ops.elementwise import (
    Elementwise,
    FloatElementwise,
    Operand,
    operands,
    same_dtype,
    zero,
)
from graphc.ops.unary import Unary


class Comparison(Elementwise):
    """Base: operands of one dtype, a bool result. It has no gradient and overwrites no operand."""

    takes_bool = True
    inputs = ("a", "b")
    may_overwrite: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def infer(self, attributes: Any, *types: TensorType) -> TensorType:
        type: TensorType = super().infer(attributes, *types)
        return type.with_dtype(bool_)


class Equal(Comparison):
    """y = (a == b)."""

    name, expression = "equal", "a == b"


class Less(Comparison):
    """y = (a < b)."""

    name, expression = "less", "a < b"


class LessEqual(Comparison):
    """y = (a ≤ b)."""

    name, expression = "less_equal", "a <= b"


class Where(Elementwise):
    """y = a where the condition holds, else b."""

    name, inputs = "where", ("condition", "a", "b")
    expression = "where(condition, a, b)"
    may_overwrite: ClassVar[Mapping[str, tuple[str, ...]]] = {"y": ("a", "b")}

    def infer(self, attributes: Any, *types: TensorType) -> TensorType:
        condition, *branches = types
        if condition.dtype != bool_:
            raise DTypeError(
                f"the condition must be bool, got {condition.dtype}; compare it, as in x > 0"
            )
        same_dtype(*branches)
        shape = broadcast_shapes(self.name, *(type.shape for type in types))
        return TensorType(shape, branches[0].dtype)

    def gradient_a(self, node: Node, dy: Value, condition: Value) -> Value:
        return where(condition, dy, zero(dy))

    def gradient_b(self, node: Node, dy: Value, condition: Value) -> Value:
        return where(condition, zero(dy), dy)


class Maximum(Elementwise):
    """y = max(a, b). If both are equal the gradient goes to a alone."""

    name, inputs = "maximum", ("a", "b")
    expression = "maximum(a, b)"

    def gradient_a(self, node: Node, dy: Value, a: Value, b: Value) -> Value:
        return where(less_equal(b, a), dy, zero(dy))

    def gradient_b(self, node: Node, dy: Value, a: Value, b: Value) -> Value:
        return where(less(a, b), dy, zero(dy))


class Minimum(Elementwise):
    """y = min(a, b). If both are equal the gradient goes to a alone."""

    name, inputs = "minimum", ("a", "b")
    expression = "minimum(a, b)"

    def gradient_a(self, node: Node, dy: Value, a: Value, b: Value) -> Value:
        return where(less_equal(a, b), dy, zero(dy))

    def gradient_b(self, node: Node, dy: Value, a: Value, b: Value) -> Value:
        return where(less(b, a), dy, zero(dy))


@dataclass(frozen=True, slots=True)
class Bounds:
    """The lower and the upper bound; if `low` exceeds `high`, all results are `high`."""

    low: Annotated[float, Between()]
    high: Annotated[float, Between()]


class Clip(Unary):
    """y = min(max(x, low), high), of floats and of integers.

    The gradient is computed from the output.
    """

    name, expression = "clip", "minimum(maximum(x, low), high)"
    attributes = Bounds
    backward = "where(y > low, where(y < high, dy, 0), 0)"
    infer = Elementwise.infer


class Predicate(FloatElementwise):
    """Base: a float operand, a bool result. It has no gradient and overwrites no operand."""

    inputs = ("x",)
    may_overwrite: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def infer(self, attributes: Any, *types: TensorType) -> TensorType:
        return super().infer(attributes, *types).with_dtype(bool_)


class IsNan(Predicate):
    """y = (x is NaN)."""

    name, expression = "isnan", "isnan(x)"


class IsInf(Predicate):
    """y = (x is infinite), with either sign."""

    name, expression = "isinf", "isinf(x)"


@dataclass(frozen=True, slots=True)
class CastAttributes:
    """The name of the target dtype."""

    dtype: Annotated[str, DTypeName()]


class Cast(Op):
    """y = x in another dtype; floats are truncated to integers."""

    name, inputs = "cast", ("x",)
    attributes = CastAttributes
    native_16_bit = True
    any_strides = True

    def infer(self, attributes: CastAttributes, x: TensorType) -> TensorType:
        return x.with_dtype(as_dtype(attributes.dtype))

    def gradient(self, node: Node, dy: Value) -> Value:
        return cast(dy, node.inputs[0].type.dtype)

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array) -> None:
        record(_convert, y, x)


class BitCast(Op):
    """y = the bytes of x read as another dtype of the same width, without a gradient."""

    name, inputs = "bitcast", ("x",)
    attributes = CastAttributes
    views = "x"

    def infer(self, attributes: CastAttributes, x: TensorType) -> TensorType:
        dtype = as_dtype(attributes.dtype)
        if dtype.itemsize != x.dtype.itemsize:
            raise DTypeError(
                f"{x.dtype} has {x.dtype.itemsize} bytes per element, but {dtype} has "
                f"{dtype.itemsize}; choose a dtype of the same width, or convert numbers with "
                "graphc.cast"
            )
        if dtype == bool_ != x.dtype:
            raise DTypeError(
                f"the bytes of {x.dtype} cannot be read as bool, whose bytes must be 0 or 1; "
                "compare x with 0, or convert it with graphc.cast"
            )
        return x.with_dtype(dtype)

    def view(self, node: Node, source: Layout) -> tuple[Layout, ...]:
        return (source,)

    def numpy_views(self, node: Node, x: Array) -> tuple[Array, ...]:
        return (x.view(as_dtype(node.attributes.dtype).numpy),)

    def gradient(self, node: Node) -> None:
        return None


def _convert(y: Array, x: Array) -> None:
    np.copyto(y, x, casting="unsafe")


# --- functions ---


def equal(a: Operand, b: Operand) -> Value:
    """Return a == b, elementwise, as bool; one of them may be a number. It has no gradient."""
    return apply(Equal, *operands(a, b)).output


@operator("<")
def less(a: Operand, b: Operand) -> Value:
    """Return a < b, elementwise, as bool; one of them may be a number. It has no gradient."""
    return apply(Less, *operands(a, b)).output


@operator("<=")
def less_equal(a: Operand, b: Operand) -> Value:
    """Return a ≤ b, elementwise, as bool; one of them may be a number. It has no gradient."""
    return apply(LessEqual, *operands(a, b)).output


@operator(">")
def greater(a: Operand, b: Operand) -> Value:
    """Return a > b, elementwise, as bool; one of them may be a number. It has no gradient."""
    return less(b, a)


@operator(">=")
def greater_equal(a: Operand, b: Operand) -> Value:
    """Return a ≥ b, elementwise, as bool; one of them may be a number. It has no gradient."""
    return less_equal(b, a)


def where(condition: Value, a: Operand, b: Operand) -> Value:
    """Return a where the condition holds, else b; all three broadcast, and a or b may be a number.

    The gradient of each element goes to the operand that was chosen. Raises `DTypeError` unless the
    condition is bool and a and b have one dtype.
    """
    return apply(Where, condition, *operands(a, b)).output


def maximum(a: Operand, b: Operand) -> Value:
    """Return the larger of a and b, one of which may be a number.

    If they are equal, the gradient goes to a.
    """
    return apply(Maximum, *operands(a, b)).output


def minimum(a: Operand, b: Operand) -> Value:
    """Return the smaller of a and b, one of which may be a number.

    If they are equal, the gradient goes to a.
    """
    return apply(Minimum, *operands(a, b)).output


def clip(x: Value, low: Operand | None = None, high: Operand | None = None) -> Value:
    """Return min(max(x, low), high), of floats or integers.

    A bound is a number, a value, or None for no bound. The gradient of an element goes to x if x is
    between the bounds, and otherwise to the bound that x has reached, if that is a value. Raises
    `DTypeError` for a bound that x's dtype cannot represent.
    """
    dtype = as_value("clip", x).type.dtype
    given = [b if isinstance(b, Value | None) else number_of("clip", b, dtype) for b in (low, high)]
    numbers = [bound for bound in given if isinstance(bound, float) and math.isfinite(bound)]
    if len(numbers) == 2:
        return apply(Clip, x, attributes=Bounds(*numbers)).output
    least = x if given[0] is None else maximum(given[0], x)
    return least if given[1] is None else minimum(given[1], least)


def isnan(x: Value) -> Value:
    """Return whether float x is NaN, elementwise, as bool. It has no gradient."""
    return apply(IsNan, x).output


def isinf(x: Value) -> Value:
    """Return whether float x is infinite, elementwise, as bool.

    It has no gradient. Both signs count.
    """
    return apply(IsInf, x).output


@operator("cast")
def cast(x: Value, dtype: object) -> Value:
    """Convert x to another dtype, as NumPy does; returns x itself if it has that dtype.

    Floats are rounded to the precision and range of the dtype. Integers get no gradient. Raises
    `DTypeError` for an unknown dtype.
    """
    target = as_dtype(dtype)
    if as_value("cast", x).type.dtype == target:
        return x
    return apply(Cast, x, attributes=CastAttributes(target.name)).output


def bitcast(x: Value, dtype: object) -> Value:
    """Read the bytes of x as another dtype of the same width, as a view without a gradient.

    Dtypes of one width are float32 and int32, float64 and int64, float16 and bfloat16; bool can be
    read as uint8. Raises `DTypeError` for a dtype of another width, and if uint8 is read as bool.
    """
    return apply(BitCast, x, attributes=CastAttributes(as_dtype(dtype).name)).output
