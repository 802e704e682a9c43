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

import itertools
import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from graphc.devices.device import Device
from graphc.errors import DTypeError, GradientError, ShapeError
from graphc.ir.attributes import OneOf
from graphc.ir.builder import apply
from graphc.ir.graph import Node, State, Value
from graphc.ir.op import Array, Cost, NoAttributes, Op, Recorder, is_16_bit
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
from graphc.ops.choice import Cast, cast
from graphc.ops.shape import transpose

HISTORY = 16
"""The number of steps whose largest magnitudes determine a scale."""

SCALE, LAST = TensorType((2,), float32), TensorType((HISTORY,), float32)
"""The types of the states of an operand: (inverse of the scale, scale), and magnitudes."""

MOST_SCALE = 2.0**126
"""The largest scale; its inverse is a normal float32."""

MULTIPLE = 16
"""All extents of 8-bit products on tensor cores are multiples of this number."""

TILE = 128
"""Rows and columns of the tiles in which operands are stored."""

Name = Annotated[str, OneOf(tuple(dtype.name for dtype in FLOAT8))]


@dataclass(frozen=True, slots=True)
class QuantizeAttributes:
    """The name of the 8-bit dtype."""

    dtype: Name

    @property
    def stored(self) -> DType:
        return inner_dtype(self.dtype)


class Quantization(Op):
    """Base: scale · x for a matrix x, rounded to an 8-bit float, and the maxima of |x| over tiles.

    Numbers are rounded to nearest even. Numbers beyond the largest finite one, and infinity, become
    that one. NaN stays NaN. There is one maximum for each tile of `TILE` by `TILE` elements. The
    gradient is that of y = x, since products divide by the scale.
    """

    inputs = ("x", "scale")
    attributes = QuantizeAttributes
    native_16_bit = True
    precision = "wide"  # saved by the policy `cheap`: y is smaller than x
    needs_contiguous = ("x", "scale")

    def infer(
        self, attributes: QuantizeAttributes, x: TensorType, scale: TensorType
    ) -> tuple[TensorType, ...]:
        _check_scales(scale)
        if x.dtype not in (float32, bfloat16):
            raise DTypeError(f"x must be float32 or bfloat16, got {x}")
        if x.rank != 2 or any(extent % MULTIPLE for extent in x.shape):
            raise ShapeError(f"x must be a matrix with extents that {MULTIPLE} divides, got {x}")
        maxima = TensorType((math.prod(-(-extent // TILE) for extent in x.shape),), float32)
        y, turned = (TensorType(s, attributes.stored) for s in (x.shape, x.shape[::-1]))
        found = {"y": y, "turned": turned, "maxima": maxima}
        return tuple(found[name] for name in self.outputs)

    def cost(self, node: Node) -> Cost:
        moved = super().cost(node)
        return Cost(4 * node.inputs[0].type.elements, moved.bytes_read, moved.bytes_written)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types: a tile of x, and the least number of each tile."""
        tile = (min(extent, TILE) for extent in node.inputs[0].shape)
        return TensorType(tuple(tile), float32), node.outputs[-1].type

    def store(
        self,
        record: Recorder,
        node: Node,
        x: Array,
        scale: Array,
        targets: tuple[Array, ...],
        maxima: Array,
    ) -> None:
        """Record the calls that store each tile of x in `targets`, which have the shape of x."""
        whole, minima = record.scratch
        limit = np.float32(LARGEST[node.attributes.stored])
        starts = itertools.product(*(range(0, extent, TILE) for extent in x.shape))
        for number, (row, column) in enumerate(starts):
            part = slice(row, row + TILE), slice(column, column + TILE)
            rows, columns = x[part].shape
            tile, own = whole[:rows, :columns], slice(number, number + 1)
            record(np.copyto, tile, x[part])
            record(np.maximum.reduce, tile, (0, 1), None, maxima[own].reshape(()))
            record(np.minimum.reduce, tile, (0, 1), None, minima[own].reshape(()))
            record(np.multiply, tile, scale[1:], out=tile)
            record(np.minimum, tile, limit, out=tile)
            record(np.maximum, tile, -limit, out=tile)
            for target in targets:
                record(np.copyto, target[part], tile, casting="unsafe")
        record(np.negative, minima, out=minima)
        record(np.maximum, maxima, minima, out=maxima)


class Quantize(Quantization):
    """y = scale · x in 8 bits, for sums over the columns of x."""

    name, outputs = "quantize", ("y", "maxima")

    def gradient_x(self, node: Node, dy: Value) -> Value:
        return cast(dy, node.inputs[0].type.dtype)

    def kernel(
        self, record: Recorder, node: Node, x: Array, scale: Array, *, y: Array, maxima: Array
    ) -> None:
        self.store(record, node, x, scale, (y,), maxima)


class QuantizeTurned(Quantization):
    """turned = (scale · x)ᵀ in 8 bits, for sums over the rows of x."""

    name, outputs = "quantize_turned", ("turned", "maxima")

    def gradient_x(self, node: Node, dturned: Value) -> Value:
        return transpose(cast(dturned, node.inputs[0].type.dtype))

    def kernel(
        self, record: Recorder, node: Node, x: Array, scale: Array, *, turned: Array, maxima: Array
    ) -> None:
        self.store(record, node, x, scale, (turned.T,), maxima)


class QuantizeBoth(Quantization):
    """Both y = scale · x and its transpose in 8 bits. `graphc.passes.float8` makes such nodes."""

    name, outputs = "quantize_both", ("y", "turned", "maxima")
    instead_of_gradient = {"x": "differentiate the nodes from which graphc made this op"}

    def kernel(
        self,
        record: Recorder,
        node: Node,
        x: Array,
        scale: Array,
        *,
        y: Array,
        turned: Array,
        maxima: Array,
    ) -> None:
        self.store(record, node, x, scale, (y, turned.T), maxima)


@dataclass(frozen=True, slots=True)
class Float8ProductAttributes:
    """The dtype of the result."""

    wide: bool = False
    """True if the result is float32 instead of bfloat16."""


class Float8Product(Op):
    """y = a · bᵀ for 8-bit matrices, divided by their scales, in bfloat16 or float32.

    Tensor cores read 8-bit operands only along the axis of the sums, so both have it last. Products
    of 8-bit floats are exact in float32. Sums are float32.
    """

    name: ClassVar[str] = "float8_product"
    inputs: ClassVar[tuple[str, ...]] = ("a", "b", "scale_a", "scale_b")
    multiplies = True
    precision = "narrow"
    attributes: ClassVar[type[Any]] = Float8ProductAttributes
    needs_contiguous = ("a", "b", "scale_a", "scale_b")

    def infer(
        self,
        attributes: Any,
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
        if a.rank != 2 or b.rank != 2 or a.shape[1] != b.shape[1]:
            raise ShapeError(f"operands must be matrices with equal last axes, got {a} and {b}")
        if any(extent % MULTIPLE for extent in a.shape + b.shape):
            raise ShapeError(f"extents must be multiples of {MULTIPLE}, got {a} and {b}")
        is_wide = getattr(attributes, "wide", False)
        return TensorType((a.shape[0], b.shape[0]), float32 if is_wide else bfloat16)

    def cost(self, node: Node) -> Cost:
        moved = super().cost(node)
        flops = 2 * node.output.type.elements * node.inputs[0].shape[1]
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
        record(np.matmul, left, right.T, out=y)
        record(np.multiply, y, scale_a[:1], out=y)
        record(np.multiply, y, scale_b[:1], out=y)


class Float8Linear(Float8Product):
    """The product of a linear layer, with an optional bias: a has its rows, b is its weight.

    `scale_dy` is the scale of the gradient of y, which is stored as float8_e5m2. As in `Linear`,
    y and the bias have one dtype.
    """

    attributes = NoAttributes
    name, inputs = "float8_linear", ("a", "b", "scale_a", "scale_b", "scale_dy", "*bias")

    def infer(  # type: ignore[override]
        self,
        attributes: Any,
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

    def gradient_a(self, node: Node, dy: Value, b: Value, scale_b: Value, scale_dy: Value) -> Value:
        slope = quantize(dy, scale_dy, float8_e5m2)
        return apply(Float8Product, slope, turned(b), scale_dy, scale_b).output

    def gradient_b(self, node: Node, dy: Value, a: Value, scale_a: Value, scale_dy: Value) -> Value:
        slope = turned(quantize(dy, scale_dy, float8_e5m2))
        return apply(Float8Product, slope, turned(a), scale_dy, scale_a).output

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


def turned(stored: Value) -> Value:
    """Return the transpose of a result of `Quantize` or `QuantizeTurned`.

    It is stored again from the same operand, which a pass merges with the first time
    (`graphc.passes.float8.merge_orientations`). Raises `GradientError` for any other value.
    """
    node = stored.node
    if node is None or type(node.op) not in (Quantize, QuantizeTurned):
        raise GradientError(f"{stored!r} is not the result of quantize, so it cannot be transposed")
    other = QuantizeTurned if type(node.op) is Quantize else Quantize
    return apply(other, *node.inputs, attributes=node.attributes).outputs[0]


def _check_scales(*scales: TensorType) -> None:
    if any(each != SCALE for each in scales):
        raise ShapeError(
            f"scales must be {SCALE}, the inverse of a scale and the scale, got "
            f"{', '.join(map(str, scales))}"
        )


def casts_a_parameter(node: Node) -> bool:
    """Return whether a node casts a parameter, or a part of one, to 16 or 8 bits.

    The narrow copy is recomputed for the gradient, which costs a pass over the parameter. Saving it
    from the forward to the backward pass would take a half or a quarter of the parameter's bytes.
    """
    if not isinstance(node.op, Quantization) and not (
        isinstance(node.op, Cast) and is_16_bit(node.output)
    ):
        return False
    return isinstance(node.inputs[0].root, State)
