"""Fused attention with dropout of the weights, and its gradient.

An element of the weights is dropped exactly if `dropout` would drop it in a tensor (batch, heads,
rows, columns) of all weights (Philox, Salmon et al., 2011). Fused and composed attention therefore
drop the same elements. The dropout mask of a tile is drawn in the forward pass and again for the
gradient. It is never saved.

With P = softmax(scale · q · kᵀ), M the mask times 1 / (1 - rate) and y = (P ∘ M) · v, the gradient
of the scores is P ∘ (M ∘ (dy · vᵀ) - Σ dy · y) · scale. The sum along a row is that of fused
attention without dropout (Dao et al., 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from graphc.devices.device import Device
from graphc.ir.attributes import Between, Whole
from graphc.ir.builder import SEED, STEP, apply
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Recorder
from graphc.ir.types import TensorType, bool_, int64
from graphc.ops.choice import cast
from graphc.ops.cpu.attention_tiles import Dropping, tile_shape
from graphc.ops.cpu.dropout_mask import ROUNDS, draw_dropped
from graphc.ops.fused_attention import (
    Attention,
    AttentionGradient,
    BackwardAttention,
    composed,
    mask_gradient,
)
from graphc.ops.random import LOW, RandomOp, check_counters, least_that_stays, next_stream
from graphc.ops.tiled_attention import AttentionAttributes, TiledAttention


@dataclass(frozen=True, slots=True)
class DroppedAttributes(AttentionAttributes):
    """The attributes of attention, the dropout rate of its weights, and the stream number."""

    rate: Annotated[float, Between(0.0, below=1.0)] = field(kw_only=True)
    stream: Annotated[int, Whole(0, LOW)] = field(kw_only=True)


class DroppingAttention(RandomOp, TiledAttention):
    """Base of attention with dropout: scratch for the random words of a tile of weights."""

    attributes = DroppedAttributes
    needs_contiguous = ("seed",)
    flops_per_pair = TiledAttention.flops_per_pair + RandomOp.flops_per_element

    def drawing_scratch(self, node: Node) -> tuple[TensorType, ...]:
        """Return scratch types: the keys of all rounds, and a tile's mask."""
        q, k, _ = self.operands(node)
        rows, columns = tile_shape(q.shape[2], k.shape[2])
        return TensorType((ROUNDS, 2), int64), TensorType((rows * columns,), bool_)

    def dropping(self, node: Node, seed: Array, step: Array, scratch: Sequence[Array]) -> Dropping:
        """Return the dropout of the node's weights in the current step."""
        q, k, _ = self.operands(node)
        keys, workspace = scratch
        rate, stream = node.attributes.rate, node.attributes.stream
        given = (stream, seed, step.reshape(1), least_that_stays(rate), keys)

        def draw(first: int, dropped: Array) -> None:
            draw_dropped(first, *given, dropped)

        return Dropping(draw, 1 / (1 - rate), (*q.shape[:3], k.shape[2]), workspace)


class DroppedAttention(DroppingAttention):
    """y = dropout(softmax(scale · q · kᵀ + mask)) · v, and stats as in `attention`.

    `stats` is the log-sum-exp of each row.
    """

    name, outputs = "dropped_attention", ("y", "stats")
    inputs = ("q", "k", "v", "seed", "step", "*mask")
    precision = "narrow"
    strided_axes = Attention.strided_axes
    products = Attention.products

    def operands(self, node: Node) -> tuple[Value, Value, Value]:
        q, k, v, *_ = node.inputs
        return q, k, v

    def infer(
        self,
        attributes: DroppedAttributes,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        seed: TensorType,
        step: TensorType,
        *mask: TensorType,
    ) -> tuple[TensorType, TensorType]:
        check_counters(seed, step)
        return self.forward_types(attributes, q, k, v, mask)

    def gradient_q(
        self, node: Node, dy: Value, q: Value, k: Value, v: Value, y: Value, stats: Value,
        seed: Value, step: Value, mask: tuple[Value, ...],
    ) -> Value:  # fmt: skip
        return _gradient(node, dy, q, k, v, y, stats, seed, step, *mask).outputs[0]

    def gradient_k(
        self, node: Node, dy: Value, q: Value, k: Value, v: Value, y: Value, stats: Value,
        seed: Value, step: Value, mask: tuple[Value, ...],
    ) -> Value:  # fmt: skip
        return _gradient(node, dy, q, k, v, y, stats, seed, step, *mask).outputs[1]

    def gradient_v(
        self, node: Node, dy: Value, q: Value, k: Value, v: Value, y: Value, stats: Value,
        seed: Value, step: Value, mask: tuple[Value, ...],
    ) -> Value:  # fmt: skip
        return _gradient(node, dy, q, k, v, y, stats, seed, step, *mask).outputs[2]

    def gradient_mask(
        self, node: Node, dy: Value, q: Value, k: Value, v: Value, seed: Value, step: Value,
        mask: tuple[Value, ...],
    ) -> tuple[Value | None, ...]:  # fmt: skip
        parts = composed(node, (q, k, v), mask, (seed, step))
        return mask_gradient(parts.slopes(cast(dy, parts.q.type.dtype)), mask)

    def inference(self, node: Node) -> Value:
        q, k, v, _, _, *mask = node.inputs
        a = node.attributes
        kept = AttentionAttributes(a.scale, a.causal, a.from_first)
        return apply(Attention, q, k, v, *mask, attributes=kept).outputs[0]

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        return *self.drawing_scratch(node), *self.forward_scratch(node)

    def kernel(
        self,
        record: Recorder,
        node: Node,
        q: Array,
        k: Array,
        v: Array,
        seed: Array,
        step: Array,
        *mask: Array,
        y: Array,
        stats: Array,
    ) -> None:
        dropping = self.dropping(node, seed, step, record.scratch[:2])
        operands = (q, k, v, y, stats)
        self.record_forward(record, node, operands, mask, record.scratch[2:], dropping)


def _gradient(node: Node, *operands: Value) -> Node:
    """Return a node that computes dq, dk and dv.

    A pass merges the equal nodes of all three rules.
    """
    return apply(DroppedAttentionGradient, *operands, attributes=node.attributes)


class DroppedAttentionGradient(DroppingAttention, BackwardAttention):
    """dq, dk and dv of attention with dropout; the weights are recomputed from stats."""

    name, outputs = "dropped_attention_gradient", ("dq", "dk", "dv")
    inputs = ("dy", "q", "k", "v", "y", "stats", "seed", "step", "*mask")
    strided_axes = AttentionGradient.strided_axes
    products = AttentionGradient.products

    def operands(self, node: Node) -> tuple[Value, Value, Value]:
        _, q, k, v, *_ = node.inputs
        return q, k, v

    def infer(
        self,
        attributes: DroppedAttributes,
        dy: TensorType,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        y: TensorType,
        stats: TensorType,
        seed: TensorType,
        step: TensorType,
        *mask: TensorType,
    ) -> tuple[TensorType, TensorType, TensorType]:
        check_counters(seed, step)
        return self.backward_types(attributes, (dy, q, k, v, y, stats), mask)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        return *self.drawing_scratch(node), *self.backward_scratch(node)

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
        seed: Array,
        step: Array,
        *mask: Array,
        dq: Array,
        dk: Array,
        dv: Array,
    ) -> None:
        dropping = self.dropping(node, seed, step, record.scratch[:2])
        operands = (dy, q, k, v, y, stats, dq, dk, dv)
        self.record_backward(record, node, operands, mask, record.scratch[2:], dropping)


def dropped_attention(
    q: Value, k: Value, v: Value, masks: Sequence[Value], attributes: AttentionAttributes,
    rate: float,
) -> Value:  # fmt: skip
    """Return attention with dropout of operands with four axes; each call draws its own mask."""
    a = attributes
    own = DroppedAttributes(a.scale, a.causal, a.from_first, rate=rate, stream=next_stream())
    return apply(DroppedAttention, q, k, v, SEED, STEP, *masks, attributes=own).outputs[0]
