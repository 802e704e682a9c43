"""A view of a value through which no gradient flows."""

from __future__ import annotations

from typing import Any

from graphc.ir.builder import apply
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Op
from graphc.ir.types import Layout, TensorType


class StopGradient(Op):
    """y = x, a view of x, without a gradient."""

    name, inputs = "stop_gradient", ("x",)
    views = "x"

    def infer(self, attributes: Any, x: TensorType) -> TensorType:
        return x

    def view(self, node: Node, source: Layout) -> tuple[Layout, ...]:
        return (source,)

    def numpy_views(self, node: Node, x: Array) -> tuple[Array, ...]:
        return (x,)

    def gradient(self, node: Node) -> None:
        return None


def stop_gradient(x: Value) -> Value:
    """Return a view of x, of any dtype, that is a constant for gradients.

    The view needs no bytes and no time.
    """
    return apply(StopGradient, x).output
