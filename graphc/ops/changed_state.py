"""A value with state changes attached for a training step.

Norms update their running statistics themselves. Any other state that a network changes at each
call, such as a moving average, is attached to an output together with its new value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from graphc.errors import OptionError, ShapeError
from graphc.ir.builder import apply
from graphc.ir.graph import Node, State, Value
from graphc.ir.op import Array, Op
from graphc.ir.types import Layout, TensorType
from graphc.ops.update import Update


class Replacement(Update):
    """state ← value."""

    name, inputs, outputs = "replacement", ("state", "value"), ("state_new",)
    must_overwrite = {"state_new": "state"}
    expressions = {"state_new": "value"}

    def infer(self, attributes: Any, *types: TensorType) -> tuple[TensorType, ...]:
        state, value, *_ = types
        if state != value:
            raise ShapeError(f"the new value of a state must have its type {state}, got {value}")
        return (state,)


class Carrier(Op):
    """Base: y = x, a view of x, with information for building a training step.

    Building the step removes the node.
    """

    views = "x"

    def view(self, node: Node, source: Layout) -> tuple[Layout, ...]:
        return (source,)

    def numpy_views(self, node: Node, x: Array) -> tuple[Array, ...]:
        return (x,)

    def gradient_x(self, node: Node, dy: Value) -> Value:
        return dy


class WithChange(Carrier):
    """y = x, with a state that a training step replaces by a value."""

    name, inputs = "with_change", ("x", "state", "value")

    def infer(
        self, attributes: Any, x: TensorType, state: TensorType, value: TensorType
    ) -> TensorType:
        if state != value:
            raise ShapeError(f"the new value of a state must have its type {state}, got {value}")
        return x

    def effects(self, copies: Sequence[Node]) -> tuple[Node, ...]:
        """Return the update that replaces the state by the value of the last micro-batch."""
        return (apply(Replacement, *copies[-1].inputs[1:]),)

    def gradient_state(self, node: Node) -> None:
        return None

    def gradient_value(self, node: Node) -> None:
        return None


def with_changes(x: Value, changes: Iterable[tuple[State, Value]]) -> Value:
    """Return x with attached changes: a training step replaces each state by its paired value.

    Raises `OptionError` if a state is trainable.
    """
    for state, value in changes:
        if state.trainable:
            raise OptionError(
                f"{state.name} is trainable, so a call cannot change it; create it with "
                "trainable=False"
            )
        x = apply(WithChange, x, state, value).output
    return x
