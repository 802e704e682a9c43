"""The base of unary functions: one expression for the value, one for the gradient.

The op, the op of its gradient and gradients of every order are derived from these two expressions.
Each op has one kernel, which may overwrite its operand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from graphc.ir.builder import apply
from graphc.ir.expression import Expression, Result, parse
from graphc.ir.expression import Operand as Part
from graphc.ir.graph import Node, Value
from graphc.ir.op import REGISTRY, attribute_items, find_op
from graphc.ir.op_class import attribute_names, check_declared, expression_of, fail
from graphc.ops.elementwise import (
    FloatElementwise,
    Operand,
    add,
    div,
    mul,
    neg,
    sub,
)
from graphc.ops.shape import full


class Unary(FloatElementwise):
    """Base: y = `expression` of x and of the attributes, and dx = `backward`."""

    inputs = ("x",)
    backward: ClassVar[str]
    """The expression of dx, in terms of dy and either x or y; that one is saved."""
    bend: ClassVar[str] = ""
    """The derivative, by the saved x or y, of the factor that multiplies dy in `backward`.

    It is empty if this derivative is 0 wherever it exists.
    """
    derivative: ClassVar[type[Derivative]]
    """The class of the op that computes the gradient."""

    def __init_subclass__(cls) -> None:
        if "name" not in cls.__dict__:
            super().__init_subclass__()
            return
        kept = _saved(cls)
        cls.gradient = _by_x if kept == "x" else _by_y  # type: ignore[attr-defined]
        super().__init_subclass__()
        bases = {"x": OfOperand, "y": OfResult}
        members: dict[str, Any] = {
            "name": f"{cls.name}_gradient",
            "attributes": cls.attributes,
            "expression": cls.backward,
            "bend": cls.bend,
            "__doc__": f"dx = {cls.backward}.",
            "__module__": cls.__module__,
        }
        if not cls.bend:
            members[f"gradient_{kept}"] = _nothing
        cls.derivative = type(f"{cls.__name__}Gradient", (bases[kept],), members)


def _saved(cls: type[Unary]) -> str:
    """Return the name of the value that the gradient saves, x or y.

    Raises `GraphError`, with the fix, for a `backward` or `bend` that is not valid.
    """
    check_declared(cls)
    if not hasattr(cls, "backward"):
        fail(cls, 'it has no `backward`; write dx by dy and either x or y, such as "dy * y"')
    if (name := f"{cls.name}_gradient") in REGISTRY:
        fail(cls, f"the name of its gradient, {name!r}, is taken; give it another `name`")
    constants = attribute_names(cls)
    names = expression_of(cls, "backward", cls.backward, {"dy", "x", "y", *constants}).names
    written = f"backward = {cls.backward!r}"
    if "dy" not in names:
        fail(cls, f"{written} does not read dy; multiply dy by the derivative")
    if {"x", "y"} <= names:
        fail(cls, f"{written} reads x and y; write it by one of them, which is saved")
    if not names & {"x", "y"}:
        fail(cls, f"{written} reads neither x nor y; derive from Elementwise and write `gradient`")
    kept = "x" if "x" in names else "y"
    if cls.bend:
        expression_of(cls, "bend", cls.bend, {kept, *constants})
    return kept


def _by_x(self: Unary, node: Node, dy: Value, x: Value) -> Value:
    return apply(self.derivative, x, dy, attributes=node.attributes).output


def _by_y(self: Unary, node: Node, dy: Value, y: Value) -> Value:
    return apply(self.derivative, y, dy, attributes=node.attributes).output


def _nothing(self: Derivative, node: Node) -> None:
    return None


class Derivative(FloatElementwise):
    """Base of gradients of unary functions; a class is created with each subclass of `Unary`."""

    outputs = ("dx",)
    bend: ClassVar[str]

    def again(self, node: Node, kept: Value, ddx: Value) -> Value:
        """Return the gradient with respect to dy."""
        return apply(type(self), kept, ddx, attributes=node.attributes).output

    def bent(self, node: Node, ddx: Value, dy: Value, kept: Value) -> Value:
        """Return the gradient with respect to the saved value, computed by differentiable ops."""
        constants = {key: float(number) for key, number in attribute_items(node.attributes)}
        bend = parse(self.bend).specialize(constants)
        return mul(mul(ddx, dy), composed(bend, {self.inputs[0]: kept}))


class OfOperand(Derivative):
    """Base of gradients that use x."""

    inputs = ("x", "dy")

    def gradient_x(self, node: Node, ddx: Value, x: Value, dy: Value) -> Value | None:
        return self.bent(node, ddx, dy, x)

    def gradient_dy(self, node: Node, ddx: Value, x: Value) -> Value:
        return self.again(node, x, ddx)


class OfResult(Derivative):
    """Base of gradients that use y."""

    inputs = ("y", "dy")

    def gradient_y(self, node: Node, ddx: Value, y: Value, dy: Value) -> Value | None:
        return self.bent(node, ddx, dy, y)

    def gradient_dy(self, node: Node, ddx: Value, y: Value) -> Value:
        return self.again(node, y, ddx)


_ARITHMETIC: Mapping[str, Callable[..., Value]] = {
    "add": add, "subtract": sub, "multiply": mul, "divide": div, "negative": neg,
}  # fmt: skip


def composed(expression: Expression, known: Mapping[str, Value]) -> Operand:
    """Convert an expression to ops on the values `known`, one op per instruction."""
    like = next(iter(known.values())).type.dtype
    done: list[Value] = []

    def operand(part: Part) -> Operand:
        if isinstance(part, Result):
            return done[part.index]
        return known[part] if isinstance(part, str) else part

    for instruction in expression.instructions:
        given = [operand(part) for part in instruction.operands]
        if instruction.function in _ARITHMETIC:
            done.append(_ARITHMETIC[instruction.function](*given))
            continue
        values = [x if isinstance(x, Value) else full((), x, like) for x in given]
        done.append(apply(type(find_op(instruction.function)), *values).output)
    return operand(expression.value)
