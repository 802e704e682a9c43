"""Products of 8-bit floats with delayed scaling (Micikevicius et al., 2022, "FP8 Formats for Deep
Learning").

A tensor is stored as 8-bit floats after multiplication by a scale, so that its largest magnitude is
about the largest number of the format. The scale is known before the tensor: it follows from the
largest magnitudes of the last `HISTORY` steps (delayed scaling, as in NVIDIA's Transformer Engine).
Each operand of a product has two float32 states, `scale` and `history`. The first has two numbers:
the inverse of the scale, by which products multiply, and the scale.

`graphc.passes.float8` creates these nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from graphc.errors import DTypeError, GradientError, ShapeError
from graphc.ir.attributes import OneOf
from graphc.ir.builder import apply
from graphc.ir.device import Device
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Cost, Op, Recorder
from graphc.ir.types import (
    FLOAT8,
    LARGEST,
    DType,
    TensorType,
    bfloat16,
    float8_e4m3,
    float8_e5m2,
    float32,
    inner_dtype,
)
from graphc.ops.choice import cast
from graphc.ops.reduce import BLOCK_ELEMENTS

HISTORY = 16
"""The number of steps whose largest magnitudes determine a scale."""

SCALE, LAST = TensorType((2,), float32), TensorType((HISTORY,), float32)
"""The types of the states of an operand: (inverse of the scale, scale), and magnitudes."""

MOST_SCALE = 2.0**126
"""The largest scale; its inverse is a normal float32."""

MULTIPLE = 16
"""All extents of 8-bit products on tensor cores are multiples of this number."""

Name = Annotated[str, OneOf(tuple(dtype.name for dtype in FLOAT8))]


@dataclass(frozen=True, slots=True)
class QuantizeAttributes:
    """The name of the 8-bit dtype."""

    dtype: Name

    @property
    def stored(self) -> DType:
        return inner_dtype(self.dtype)


class Quantize(Op):
    """y = scale · x, rounded to an 8-bit float, and the maxima of |x| over blocks of x.

    A block has `BLOCK_ELEMENTS` consecutive elements, the last one perhaps fewer.

    Numbers are rounded to nearest even. Numbers beyond the largest finite one, and infinity, become
    that one. NaN stays NaN. The gradient is that of y = x: products divide by the scale.
    """

    name, inputs = "quantize", ("x", "scale")
    outputs = ("y", "maxima")
    attributes = QuantizeAttributes
    native_16_bit = True
    precision = "wide"  # saved by the policy `cheap`: y is smaller than x
    needs_contiguous = ("x", "scale")
    any_strides: ClassVar[bool] = False

    def infer(
        self, attributes: QuantizeAttributes, x: TensorType, scale: TensorType
    ) -> tuple[TensorType, TensorType]:
        if x.dtype not in (float32, bfloat16):
            raise DTypeError(f"x must be float32 or bfloat16, got {x}")
        _check_scales(scale)
        blocks = -(-x.elements // BLOCK_ELEMENTS)
        return x.with_dtype(attributes.stored), TensorType((blocks,), float32)

    def cost(self, node: Node) -> Cost:
        moved = super().cost(node)
        return Cost(4 * node.inputs[0].type.elements, moved.bytes_read, moved.bytes_written)

    def gradient_x(self, node: Node, dy: Value) -> Value:
        return cast(dy, node.inputs[0].type.dtype)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types: a block of x, and the least number of each block."""
        x, maxima = node.inputs[0].type, node.outputs[1].type
        return TensorType((min(x.elements, BLOCK_ELEMENTS),), float32), maxima

    def kernel(
        self, record: Recorder, node: Node, x: Array, scale: Array, *, y: Array, maxima: Array
    ) -> None:
        whole, minima = record.scratch
        limit = np.float32(LARGEST[node.attributes.stored])
        source, target = x.reshape(-1), y.reshape(-1)
        for number in range(maxima.size):
            own = slice(number, number + 1)
            part = slice(number * BLOCK_ELEMENTS, (number + 1) * BLOCK_ELEMENTS)
            block = whole[: source[part].size]
            record(np.copyto, block, source[part])
            record(np.maximum.reduce, block, 0, None, maxima[own].reshape(()))
            record(np.minimum.reduce, block, 0, None, minima[own].reshape(()))
            record(np.multiply, block, scale[1:], out=block)
            record(np.minimum, block, limit, out=block)
            record(np.maximum, block, -limit, out=block)
            record(np.copyto, target[part], block, casting="unsafe")
        record(np.negative, minima, out=minima)
        record(np.maximum, maxima, minima, out=maxima)


@dataclass(frozen=True, slots=True)
class Float8ProductAttributes:
    """Flags that transpose the operands, and the dtype of the result."""

    transpose_a: bool = False
    transpose_b: bool = False
    wide: bool = False
    """True if the result is float32 instead of bfloat16."""


class Float8Product(Op):
    """y = op(a) · op(b) for 8-bit matrices, divided by their scales, in bfloat16 or float32.

    Products of 8-bit floats are exact in float32, and so are sums of a few. Sums are float32.
    """

    name, inputs = "float8_product", ("a", "b", "scale_a", "scale_b")
    multiplies = True
    precision = "narrow"
    attributes = Float8ProductAttributes
    needs_contiguous = ("a", "b", "scale_a", "scale_b")

    def infer(
        self,
        attributes: Float8ProductAttributes,
        a: TensorType,
        b: TensorType,
        scale_a: TensorType,
        scale_b: TensorType,
    ) -> TensorType:
        _check_scales(scale_a, scale_b)
        if a.dtype not in FLOAT8 or b.dtype not in FLOAT8 or a.dtype == b.dtype == float8_e5m2:
            raise DTypeError(
                f"operands must be 8-bit floats, at most one of them float8_e5m2, got {a} and {b}"
            )
        if a.rank != 2 or b.rank != 2:
            raise ShapeError(f"operands must be matrices, got {a} and {b}")
        rows, inner = a.shape[:: -1 if attributes.transpose_a else 1]
        inner_b, columns = b.shape[:: -1 if attributes.transpose_b else 1]
        if inner != inner_b:
            raise ShapeError(f"the inner extents differ: {inner} from {a} and {inner_b} from {b}")
        if any(extent % MULTIPLE for extent in (rows, inner, columns)):
            raise ShapeError(f"extents must be multiples of {MULTIPLE}, got {a} and {b}")
        return TensorType((rows, columns), float32 if attributes.wide else bfloat16)

    def cost(self, node: Node) -> Cost:
        a, moved = node.inputs[0].shape, super().cost(node)
        inner = a[0] if node.attributes.transpose_a else a[1]
        flops = 2 * node.output.type.elements * inner
        return Cost(flops, moved.bytes_read, moved.bytes_written)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types: both operands in float32."""
        return tuple(value.type.with_dtype(float32) for value in node.inputs[:2])

    def kernel(
        self,
        record: Recorder,
        node: Node,
        a: Array,
        b: Array,
        scale_a: Array,
        scale_b: Array,
        *,
        y: Array,
    ) -> None:
        left, right = record.scratch
        record(np.copyto, left, a, casting="unsafe")
        record(np.copyto, right, b, casting="unsafe")
        flags: Float8ProductAttributes = node.attributes
        operands = left.T if flags.transpose_a else left, right.T if flags.transpose_b else right
        record(np.matmul, *operands, out=y)
        record(np.multiply, y, scale_a[:1], out=y)
        record(np.multiply, y, scale_b[:1], out=y)


class Float8Linear(Float8Product):
    """The product of a linear layer, with an optional bias: a has its rows, b is its weight.

    `scale_dy` is the scale of the gradient of y, which is stored as float8_e5m2.
    """

    name, inputs = "float8_linear", ("a", "b", "scale_a", "scale_b", "scale_dy", "*bias")

    def infer(  # type: ignore[override]
        self,
        attributes: Float8ProductAttributes,
        a: TensorType,
        b: TensorType,
        scale_a: TensorType,
        scale_b: TensorType,
        scale_dy: TensorType,
        *bias: TensorType,
    ) -> TensorType:
        y = super().infer(attributes, a, b, scale_a, scale_b)
        _check_scales(scale_dy)
        if a.dtype != float8_e4m3 or b.dtype != float8_e4m3:
            raise DTypeError(f"operands must be float8_e4m3, got {a} and {b}")
        if len(bias) > 1 or any(each != y.with_shape(y.shape[1:]) for each in bias):
            raise ShapeError(f"the bias must be one number of {y.dtype} per column, got {bias}")
        return y

    def gradient_a(
        self, node: Node, dy: Value, b: Value, scale_b: Value, scale_dy: Value
    ) -> Value:
        slope = self.slope(node, dy, scale_dy)
        flags = Float8ProductAttributes(False, not node.attributes.transpose_b)
        return apply(Float8Product, slope, b, scale_dy, scale_b, attributes=flags).output

    def gradient_b(
        self, node: Node, dy: Value, a: Value, scale_a: Value, scale_dy: Value
    ) -> Value:
        slope, flags = self.slope(node, dy, scale_dy), Float8ProductAttributes(transpose_a=True)
        operands = (slope, a, scale_dy, scale_a)
        if not node.attributes.transpose_b:
            operands = (a, slope, scale_a, scale_dy)
        return apply(Float8Product, *operands, attributes=flags).output

    def slope(self, node: Node, dy: Value, scale: Value) -> Value:
        """Return the 8-bit gradient of y. Both gradients read it; equal nodes run once."""
        if node.attributes.transpose_a:
            raise GradientError(f"{node.label} has no gradient for transposed rows")
        return quantize(dy, scale, float8_e5m2)

    def gradient_bias(self, node: Node, dy: Value) -> tuple[Value, ...]:
        return (dy,) * (len(node.inputs) - 5)

    def kernel(  # type: ignore[override]
        self,
        record: Recorder,
        node: Node,
        a: Array,
        b: Array,
        scale_a: Array,
        scale_b: Array,
        scale_dy: Array,
        *bias: Array,
        y: Array,
    ) -> None:
        super().kernel(record, node, a, b, scale_a, scale_b, y=y)
        for each in bias:
            record(np.add, y, each, out=y)


class ScaleUpdate(Op):
    """The scale of an operand for the next step, from its largest magnitude in this one.

    `history` gets the largest of `maxima` as its first number and loses its last one. The scale
    becomes the largest number of the dtype, divided by the largest number in `history`. It stays if
    that is 0. A magnitude that is not finite counts as 0.
    """

    name, inputs = "scale_update", ("scale", "history", "maxima")
    outputs = ("scale_new", "history_new")
    attributes = QuantizeAttributes
    must_overwrite = {"scale_new": "scale", "history_new": "history"}
    needs_contiguous = ("scale", "history", "maxima")

    def infer(
        self,
        attributes: QuantizeAttributes,
        scale: TensorType,
        history: TensorType,
        maxima: TensorType,
    ) -> tuple[TensorType, TensorType]:
        _check_scales(scale)
        if history != LAST or maxima.rank != 1 or maxima.dtype != float32:
            raise ShapeError(f"history must be {LAST} and maxima f32[n], got {history}, {maxima}")
        return scale, history

    def kernel(
        self,
        record: Recorder,
        node: Node,
        scale: Array,
        history: Array,
        maxima: Array,
        *,
        scale_new: Array,
        history_new: Array,
    ) -> None:
        limit = np.float32(LARGEST[node.attributes.stored])
        record(_update, limit, scale, history, maxima, scale_new, history_new)


def _update(
    limit: np.float32,
    scale: Array,
    history: Array,
    maxima: Array,
    scale_new: Array,
    history_new: Array,
) -> None:
    for slot in range(HISTORY - 1, 0, -1):  # the old history may have the same bytes
        history_new[slot] = history[slot - 1]
    magnitude = maxima.max()
    history_new[0] = magnitude if np.isfinite(magnitude) else 0
    most = history_new.max()
    scale_new[:] = scale
    if most > 0:
        scale_new[1] = min(limit / most, np.float32(MOST_SCALE))
        scale_new[0] = np.float32(1) / scale_new[1]


def quantize(x: Value, scale: Value, dtype: DType) -> Value:
    """Return x times its scale in an 8-bit dtype; `Quantize` says how it is rounded."""
    return apply(Quantize, x, scale, attributes=QuantizeAttributes(dtype.name)).outputs[0]


def _check_scales(*scales: TensorType) -> None:
    if any(each != SCALE for each in scales):
        raise ShapeError(f"scales must be {SCALE}, the inverse of a scale and the scale, got "
                         f"{', '.join(map(str, scales))}")
