"""Attention as one op that stores no weights, and its gradient (Dao et al., 2022)."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.devices.device import Device
from graphc.ir.builder import apply
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Recorder
from graphc.ir.types import TensorType, bool_, compute_dtype
from graphc.ops.choice import cast
from graphc.ops.composed_attention import ComposedAttention
from graphc.ops.random import DropoutAttributes
from graphc.ops.tiled_attention import AttentionAttributes, TiledAttention

Operands = tuple[Value, Value, Value]
"""q, k and v, or the gradients of dq, dk and dv."""


def composed(
    node: Node, operands: Operands, mask: Sequence[Value], counters: tuple[Value, ...] = ()
) -> ComposedAttention:
    """Return a node's attention as separate ops, for derivatives that are composed of them.

    `counters` are the seed and the step of a node with dropout. 16-bit operands are computed in
    float32, as the node does.
    """
    a, dtype = node.attributes, compute_dtype(operands[0].type.dtype)
    q, k, v = (cast(each, dtype) for each in operands)
    masks = [each if each.type.dtype == bool_ else cast(each, dtype) for each in mask]
    return ComposedAttention(
        q, k, v, masks, a.scale, a.causal, a.from_first,
        shared=q.shape[1] // k.shape[1],
        dropout=DropoutAttributes(a.rate, a.stream) if counters else None,
        counters=counters,
    )  # fmt: skip


def mask_gradient(slopes: Value | None, mask: Sequence[Value]) -> tuple[Value | None, ...]:
    """Return the gradients of float masks, from the gradient of the scores."""
    floats = [each.type.dtype for each in mask if each.type.dtype != bool_]
    return tuple(None if slopes is None else cast(slopes, dtype) for dtype in floats)


class Attention(TiledAttention):
    """y = softmax(scale · q · kᵀ + mask) · v, and stats = the log-sum-exp of each row.

    A bool mask is true at the columns that a row attends to. If a row attends to none, y and stats
    are 0.
    """

    name, inputs, outputs = "attention", ("q", "k", "v", "*mask"), ("y", "stats")
    precision = "narrow"
    strided_axes = {"q": 3, "k": 3, "v": 3, "y": 3}
    products = 2

    def operands(self, node: Node) -> tuple[Value, Value, Value]:
        q, k, v, *_ = node.inputs
        return q, k, v

    def infer(
        self,
        attributes: AttentionAttributes,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        *mask: TensorType,
    ) -> tuple[TensorType, TensorType]:
        return self.forward_types(attributes, q, k, v, mask)

    def gradient_q(
        self, node: Node, dy: Value, q: Value, k: Value, v: Value, y: Value, stats: Value,
        mask: tuple[Value, ...],
    ) -> Value:  # fmt: skip
        return _gradient(node, dy, q, k, v, y, stats, *mask).outputs[0]

    def gradient_k(
        self, node: Node, dy: Value, q: Value, k: Value, v: Value, y: Value, stats: Value,
        mask: tuple[Value, ...],
    ) -> Value:  # fmt: skip
        return _gradient(node, dy, q, k, v, y, stats, *mask).outputs[1]

    def gradient_v(
        self, node: Node, dy: Value, q: Value, k: Value, v: Value, y: Value, stats: Value,
        mask: tuple[Value, ...],
    ) -> Value:  # fmt: skip
        return _gradient(node, dy, q, k, v, y, stats, *mask).outputs[2]

    def gradient_mask(
        self, node: Node, dy: Value, q: Value, k: Value, v: Value, mask: tuple[Value, ...]
    ) -> tuple[Value | None, ...]:
        parts = composed(node, (q, k, v), mask)
        return mask_gradient(parts.slopes(cast(dy, parts.q.type.dtype)), mask)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        return self.forward_scratch(node)

    def kernel(
        self,
        record: Recorder,
        node: Node,
        q: Array,
        k: Array,
        v: Array,
        *mask: Array,
        y: Array,
        stats: Array,
    ) -> None:
        self.record_forward(record, node, (q, k, v, y, stats), mask, record.scratch)


def _gradient(node: Node, *operands: Value) -> Node:
    """Return a node that computes dq, dk and dv.

    A pass merges the equal nodes of all three rules.
    """
    return apply(AttentionGradient, *operands, attributes=node.attributes)


class BackwardAttention(TiledAttention):
    """Base of gradients of attention, whose own gradients are composed of other ops.

    Those with respect to y and stats are None: both are functions of q, k and v, whose gradients
    include them.
    """

    def _second(self, node: Node, name: str, *gradients: Value | None) -> Value | None:
        counters = node.inputs[6 : self.inputs.index("*mask")]
        parts = composed(node, self.operands(node), self._masks(node), counters)
        dtype = parts.q.type.dtype
        wide = (None if each is None else cast(each, dtype) for each in gradients)
        found = parts.second_gradients(cast(node.inputs[0], dtype), *wide).get(name)
        if found is None or name == "scores":
            return found
        return cast(found, node.inputs[0].type.dtype)

    def _masks(self, node: Node) -> tuple[Value, ...]:
        return node.inputs[self.inputs.index("*mask") :]

    def gradient_dy(self, node: Node, ddq: Value, ddk: Value, ddv: Value) -> Value | None:
        return self._second(node, "dy", ddq, ddk, ddv)

    def gradient_q(self, node: Node, ddq: Value, ddk: Value, ddv: Value) -> Value | None:
        return self._second(node, "q", ddq, ddk, ddv)

    def gradient_k(self, node: Node, ddq: Value, ddk: Value, ddv: Value) -> Value | None:
        return self._second(node, "k", ddq, ddk, ddv)

    def gradient_v(self, node: Node, ddq: Value, ddk: Value, ddv: Value) -> Value | None:
        return self._second(node, "v", ddq, ddk, ddv)

    def gradient_mask(
        self, node: Node, ddq: Value, ddk: Value, ddv: Value
    ) -> tuple[Value | None, ...]:
        slopes = self._second(node, "scores", ddq, ddk, ddv)
        return mask_gradient(slopes, self._masks(node))

    def gradient_y(self, node: Node) -> None:
        return None

    def gradient_stats(self, node: Node) -> None:
        return None


class AttentionGradient(BackwardAttention):
    """dq, dk and dv of attention, with the weights recomputed from stats."""

    name, inputs = "attention_gradient", ("dy", "q", "k", "v", "y", "stats", "*mask")
    outputs = ("dq", "dk", "dv")
    strided_axes = dict.fromkeys(("dy", "q", "k", "v", "y", "dq", "dk", "dv"), 3)
    products = 5

    def operands(self, node: Node) -> tuple[Value, Value, Value]:
        _, q, k, v, *_ = node.inputs
        return q, k, v

    def infer(
        self,
        attributes: AttentionAttributes,
        dy: TensorType,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        y: TensorType,
        stats: TensorType,
        *mask: TensorType,
    ) -> tuple[TensorType, TensorType, TensorType]:
        return self.backward_types(attributes, (dy, q, k, v, y, stats), mask)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        return self.backward_scratch(node)

    def kernel(
        self,
        record: Recorder,
        node: Node,
        dy: Array,
        q: Array,
        k: Array,
        v: Array,
        y: Array,
        stats: Array,
        *mask: Array,
        dq: Array,
        dk: Array,
        dv: Array,
    ) -> None:
        operands = (dy, q, k, v, y, stats, dq, dk, dv)
        self.record_backward(record, node, operands, mask, record.scratch)
