"""Scaled dot-product attention (Vaswani et al., 2017), composed of other ops or as one.

Composed, it keeps the weights, (rows x columns) a head. Fused, it keeps one number a row and
computes the weights again for the gradient (Dao et al., 2022). Its arithmetic is in
attention_tiles.py.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Annotated

from graphc.errors import OptionError, ShapeError, choose, whole_number
from graphc.ir.attributes import Between
from graphc.ir.builder import apply, as_value, number_of
from graphc.ir.device import Device
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Cost, Op, Recorder
from graphc.ir.types import TensorType, compute_dtype
from graphc.ops.concat import split
from graphc.ops.cpu.attention_tiles import attend, attend_back, tile_shape
from graphc.ops.elementwise import float_dtype
from graphc.ops.elementwise import scale as scaled
from graphc.ops.matmul import matmul
from graphc.ops.norm import check_dtypes
from graphc.ops.random import dropout
from graphc.ops.shape import reshape, transpose
from graphc.ops.softmax import causal_softmax, softmax

ATTENTION_FORMS = ("composed", "fused")


@dataclass(frozen=True, slots=True)
class AttentionAttributes:
    """The factor of the scores, and whether a row sees no column that belongs to a later row."""

    scale: Annotated[float, Between()]
    causal: bool


def _check(attributes: AttentionAttributes, q: TensorType, k: TensorType, v: TensorType) -> None:
    fits = (
        q.rank == k.rank == v.rank == 4
        and q.shape[:2] == k.shape[:2] == v.shape[:2]
        and q.shape[3] == k.shape[3]
        and k.shape[2] == v.shape[2]
    )
    if not fits:
        raise ShapeError(
            "q is (batch, heads, rows, width), k (batch, heads, columns, width) and v (batch, "
            f"heads, columns, value width), got {q}, {k} and {v}"
        )
    number_of("scale", attributes.scale, compute_dtype(q.dtype))
    if attributes.causal and q.shape[2] > k.shape[2]:
        raise ShapeError(f"causal attention has no more rows than columns, got {q} and {k}")


class TiledAttention(Op):
    """Base: cost, by the pairs of a row and a column that it sees. Rows lie in one piece."""

    attributes = AttentionAttributes
    products: int
    """How many products of (rows x columns) elements a node computes."""

    def operands(self, node: Node) -> tuple[Value, Value, Value]:
        """The operands q, k and v."""
        raise NotImplementedError

    def cost(self, node: Node) -> Cost:
        q, k, v = self.operands(node)
        moved, (batch, heads, rows, width) = super().cost(node), q.shape
        columns = k.shape[2]
        pairs = rows * columns
        if node.attributes.causal:
            pairs -= rows * (rows - 1) // 2
        width = (width + v.shape[3]) // 2
        flops = batch * heads * pairs * (2 * width * self.products + 6)
        return Cost(flops, moved.bytes_read, moved.bytes_written)


class Attention(TiledAttention):
    """y = softmax(scale · q · kᵀ) · v, and as stats the logarithm of each row's sum."""

    name, inputs, outputs = "attention", ("q", "k", "v"), ("y", "stats")
    precision = "narrow"
    strided_axes = {"q": 3, "k": 3, "v": 3, "y": 3}
    products = 2

    def operands(self, node: Node) -> tuple[Value, Value, Value]:
        q, k, v = node.inputs
        return q, k, v

    def infer(
        self, attributes: AttentionAttributes, q: TensorType, k: TensorType, v: TensorType
    ) -> tuple[TensorType, TensorType]:
        dtype = float_dtype(q, k, v)
        _check(attributes, q, k, v)
        y = TensorType((*q.shape[:3], v.shape[3]), dtype)
        return y, TensorType(q.shape[:3], compute_dtype(dtype))

    def gradient_q(
        self, node: Node, dy: Value, q: Value, k: Value, v: Value, y: Value, stats: Value
    ) -> Value:
        return _gradient(node, dy, q, k, v, y, stats).outputs[0]

    def gradient_k(
        self, node: Node, dy: Value, q: Value, k: Value, v: Value, y: Value, stats: Value
    ) -> Value:
        return _gradient(node, dy, q, k, v, y, stats).outputs[1]

    def gradient_v(
        self, node: Node, dy: Value, q: Value, k: Value, v: Value, y: Value, stats: Value
    ) -> Value:
        return _gradient(node, dy, q, k, v, y, stats).outputs[2]

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """A tile of scores, and a number a row of it."""
        q, k, _ = node.inputs
        rows, columns = tile_shape(q.shape[2], k.shape[2])
        return q.type.with_shape((rows, columns)), q.type.with_shape((rows, 1))

    def kernel(
        self, record: Recorder, node: Node, q: Array, k: Array, v: Array, *, y: Array, stats: Array
    ) -> None:
        a = node.attributes
        record(functools.partial(attend, a.scale, a.causal, q, k, v, y, stats, *record.scratch))


def _gradient(node: Node, *operands: Value) -> Node:
    """One node for all three gradients: equal nodes are made one."""
    return apply(AttentionGradient, *operands, attributes=node.attributes)


class AttentionGradient(TiledAttention):
    """dq, dk and dv; the weights are computed again from stats."""

    name, inputs = "attention_gradient", ("dy", "q", "k", "v", "y", "stats")
    outputs = ("dq", "dk", "dv")
    strided_axes = dict.fromkeys(("dy", "q", "k", "v", "y", "dq", "dk", "dv"), 3)
    products = 5

    def operands(self, node: Node) -> tuple[Value, Value, Value]:
        _, q, k, v, _, _ = node.inputs
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
    ) -> tuple[TensorType, TensorType, TensorType]:
        float_dtype(dy, q, k, v, y)
        _check(attributes, q, k, v)
        if dy != y or y.shape != (*q.shape[:3], v.shape[3]):
            raise ShapeError(f"dy and y are (batch, heads, rows, value width), got {dy} and {y}")
        if stats.shape != q.shape[:3]:
            raise ShapeError(f"stats has a number a row of {q}, got {stats}")
        check_dtypes(q, stats)
        return q, k, v

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Two tiles, what they give for each column, and products and their sum for each row."""
        q, k, v = self.operands(node)
        rows, columns = tile_shape(q.shape[2], k.shape[2])
        widths = q.shape[3], v.shape[3]
        shapes = (
            (rows, columns), (rows, columns), (columns, max(widths)), (rows, widths[1]), (rows, 1)
        )  # fmt: skip
        return tuple(map(q.type.with_shape, shapes))

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
        *,
        dq: Array,
        dk: Array,
        dv: Array,
    ) -> None:
        a = node.attributes
        weights, slopes, product, *along = record.scratch
        arrays = (dy, q, k, v, y, stats, dq, dk, dv)
        call = functools.partial(attend_back, a.scale, a.causal, *arrays)
        record(call, (weights, slopes), product, tuple(along))


# --- functions ---


def attention(
    q: Value,
    k: Value,
    v: Value,
    causal: bool = False,
    drop: float = 0.0,
    scale: float | None = None,
    form: str = "composed",
) -> Value:
    """softmax(scale · q · kᵀ) · v for q (..., rows, d), k (..., columns, d), v (..., columns, e).

    The result is (..., rows, e); leading axes, such as batch and heads, broadcast. `scale` is 1 /
    √d unless given (Vaswani et al., 2017). With `causal`, a row sees no column that belongs to a
    later row; no mask is stored. `drop` is the dropout rate of the weights. The form "fused" never
    holds the weights: its memory grows with the number of positions, not with its square (Dao et
    al., 2022); it takes equal leading axes and no dropout. Raises `ShapeError` where the operands
    do not fit, and `OptionError` for another form, or a rate together with "fused".
    """
    for name, value in (("q", q), ("k", k), ("v", v)):
        if as_value("attention", value).type.rank < 2:
            raise ShapeError(f"attention: {name} is (..., positions, channels), got {value.type}")
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else _factor(scale)
    if choose("attention: form", form, ATTENTION_FORMS) == "fused":
        if drop:
            raise OptionError(
                "fused attention has no dropout of its weights; set drop=0, or use the form "
                '"composed"'
            )
        return _fused(q, k, v, AttentionAttributes(factor, bool(causal)))
    scores = scaled(matmul(q, k, transpose_b=True), factor)
    weights = causal_softmax(scores) if causal else softmax(scores)
    return matmul(dropout(weights, drop), v)


def _factor(given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise OptionError(f"attention: scale is a finite number, got {given!r}")
    return float(given)


def _fused(q: Value, k: Value, v: Value, attributes: AttentionAttributes) -> Value:
    """Attention on four axes: axes of extent 1 are put in front, or the first ones made one."""
    leading = q.shape[:-2]
    if not leading == k.shape[:-2] == v.shape[:-2]:
        raise ShapeError(
            f"fused attention takes equal leading axes, got {q.type}, {k.type} and {v.type}"
        )
    *outer, heads = (1, *leading)
    q, k, v = (reshape(x, (math.prod(outer), heads, *x.shape[-2:])) for x in (q, k, v))
    y = apply(Attention, q, k, v, attributes=attributes).outputs[0]
    return reshape(y, (*leading, *y.shape[-2:]))


def multi_head_attention(
    qkv: Value, heads: int, causal: bool = False, drop: float = 0.0, form: str = "composed"
) -> Value:
    """Attention in `heads` parts of the width: qkv (batch, positions, 3 · width) to one width.

    The result is (batch, positions, width). The last axis of `qkv` holds queries, keys and values,
    each head by head; `causal`, `drop` and `form` are those of `attention`. Raises `ShapeError`
    where the heads do not divide the width.
    """
    heads = whole_number("multi_head_attention: heads", heads)
    if as_value("multi_head_attention", qkv).type.rank != 3 or qkv.shape[2] % (3 * heads):
        raise ShapeError(
            "multi_head_attention: qkv is (batch, positions, 3 · width) with a width that "
            f"{heads} heads divide, got {qkv.type}"
        )
    batch, positions, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    q, k, v = (
        transpose(reshape(part, (batch, positions, heads, width // heads)), (0, 2, 1, 3))
        for part in split(qkv, 3, axis=2)
    )
    mixed = attention(q, k, v, causal, drop, form=form)
    return reshape(transpose(mixed, (0, 2, 1, 3)), (batch, positions, width))
