"""Ops that create or rearrange tensors without arithmetic; results are views if strides allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from graphc.errors import ShapeError
from graphc.ir.attributes import DTypeName, Whole
from graphc.ir.builder import apply, as_value
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Op, Recorder
from graphc.ir.operators import operator
from graphc.ir.types import (
    DType,
    Layout,
    TensorType,
    as_dtype,
    as_shape,
    broadcast_shapes,
    normalize_axis,
    number_of,
)


@dataclass(frozen=True, slots=True)
class FullAttributes:
    """The shape and dtype of a tensor, and its fill value."""

    shape: Annotated[tuple[int, ...], Whole(1)]
    dtype: Annotated[str, DTypeName()]
    value: float


class Full(Op):
    """A tensor filled with one number."""

    name, inputs = "full", ()
    attributes = FullAttributes
    native_16_bit = True

    def infer(self, attributes: FullAttributes) -> TensorType:
        dtype = as_dtype(attributes.dtype)
        number_of("value", attributes.value, dtype)
        return TensorType(attributes.shape, dtype)

    def output_limit(self, node: Node) -> int | None:
        value: float = node.attributes.value
        return int(value) + 1 if node.output.type.dtype.kind == "int" and value >= 0 else None

    def kernel(self, record: Recorder, node: Node, *, y: Array) -> None:
        record(y.fill, node.attributes.value)


@dataclass(frozen=True, slots=True)
class ShapeAttributes:
    """The shape of the result."""

    shape: Annotated[tuple[int, ...], Whole(1)]


class Reshape(Op):
    """y = the elements of x in row-major order under another shape."""

    name, inputs = "reshape", ("x",)
    attributes = ShapeAttributes
    views = "x"
    native_16_bit = True

    def infer(self, attributes: ShapeAttributes, x: TensorType) -> TensorType:
        y = x.with_shape(attributes.shape)
        if y.elements != x.elements:
            raise ShapeError(
                f"shape {list(y.shape)} has {y.elements} elements, but the input has {x.elements}"
            )
        return y

    def view(self, node: Node, source: Layout) -> tuple[Layout, ...] | None:
        x = node.inputs[0].type
        element = np.empty(1, x.dtype.numpy)
        outline = np.lib.stride_tricks.as_strided(element, x.shape, source.strides)
        try:
            strides = np.reshape(outline, node.attributes.shape, copy=False).strides
        except ValueError:
            return None
        return (Layout(source.offset, strides),)

    def numpy_views(self, node: Node, x: Array) -> tuple[Array, ...]:
        return (np.reshape(x, node.attributes.shape, copy=False),)

    def gradient(self, node: Node, dy: Value) -> Value:
        return reshape(dy, node.inputs[0].shape)

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array) -> None:
        record(np.copyto, y.reshape(x.shape), x)


@dataclass(frozen=True, slots=True)
class TransposeAttributes:
    """Axis i of the output is axis `permutation[i]` of the input."""

    permutation: Annotated[tuple[int, ...], Whole()]


class Copy(Op):
    """y = a copy of x, which shares no bytes with x, for a state that is read before its update."""

    name, inputs = "copy", ("x",)
    native_16_bit = True
    any_strides = True

    def infer(self, attributes: Any, x: TensorType) -> TensorType:
        return x

    def gradient(self, node: Node, dy: Value) -> Value:
        return dy

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array) -> None:
        record(np.copyto, y, x)


class Transpose(Op):
    """y = x with its axes permuted; always a view."""

    name, inputs = "transpose", ("x",)
    attributes = TransposeAttributes
    views = "x"

    def infer(self, attributes: TransposeAttributes, x: TensorType) -> TensorType:
        if sorted(attributes.permutation) != list(range(x.rank)):
            raise ShapeError(
                f"the permutation must contain each of the {x.rank} axes once, got "
                f"{attributes.permutation}"
            )
        return x.with_shape([x.shape[axis] for axis in attributes.permutation])

    def view(self, node: Node, source: Layout) -> tuple[Layout, ...]:
        strides = tuple(source.strides[axis] for axis in node.attributes.permutation)
        return (Layout(source.offset, strides),)

    def numpy_views(self, node: Node, x: Array) -> tuple[Array, ...]:
        return (np.transpose(x, node.attributes.permutation),)

    def gradient(self, node: Node, dy: Value) -> Value:
        return transpose(dy, np.argsort(node.attributes.permutation).tolist())


class BroadcastTo(Op):
    """y = x repeated along new or unit axes; a view with stride 0."""

    name, inputs = "broadcast_to", ("x",)
    attributes = ShapeAttributes
    views = "x"

    def infer(self, attributes: ShapeAttributes, x: TensorType) -> TensorType:
        y = x.with_shape(attributes.shape)
        if broadcast_shapes(self.name, x.shape, y.shape) != y.shape:
            raise ShapeError(f"shape {list(x.shape)} does not broadcast to {attributes.shape}")
        return y

    def view(self, node: Node, source: Layout) -> tuple[Layout, ...]:
        shape, target = node.inputs[0].shape, node.attributes.shape
        kept = [0 if n == 1 else s for n, s in zip(shape, source.strides, strict=True)]
        return (Layout(source.offset, (0,) * (len(target) - len(shape)) + tuple(kept)),)

    def numpy_views(self, node: Node, x: Array) -> tuple[Array, ...]:
        return (np.broadcast_to(x, node.attributes.shape),)

    def gradient(self, node: Node, dy: Value) -> Value:
        return dy  # the gradient pass sums it to the input's shape


@dataclass(frozen=True, slots=True)
class SliceAttributes:
    """A start, stop and step per axis.

    All are resolved: 0 ≤ start < stop ≤ extent, and a step from 1 to the extent.
    """

    starts: Annotated[tuple[int, ...], Whole()]
    stops: Annotated[tuple[int, ...], Whole(1)]
    steps: Annotated[tuple[int, ...], Whole(1)]

    def index(self) -> tuple[slice, ...]:
        return tuple(map(slice, self.starts, self.stops, self.steps))


class Slice(Op):
    """y = a strided slice of x along each axis; always a view."""

    name, inputs = "slice", ("x",)
    attributes = SliceAttributes
    views = "x"

    def infer(self, attributes: SliceAttributes, x: TensorType) -> TensorType:
        a, extents = attributes, []
        if not len(a.starts) == len(a.stops) == len(a.steps) == x.rank:
            raise ShapeError(f"the number of slices must be the rank {x.rank}, got {len(a.starts)}")
        for start, stop, step, n in zip(a.starts, a.stops, a.steps, x.shape, strict=True):
            if not start < stop <= n or step > n:
                raise ShapeError(f"slice {start}:{stop}:{step} of an axis of {n} is empty")
            extents.append(len(range(start, stop, step)))
        return x.with_shape(extents)

    def view(self, node: Node, source: Layout) -> tuple[Layout, ...]:
        a = node.attributes
        offset = sum(start * stride for start, stride in zip(a.starts, source.strides, strict=True))
        strides = tuple(step * stride for step, stride in zip(a.steps, source.strides, strict=True))
        return (Layout(source.offset + offset, strides),)

    def numpy_views(self, node: Node, x: Array) -> tuple[Array, ...]:
        return (x[node.attributes.index()],)

    def gradient(self, node: Node, dy: Value) -> Value:
        a = node.attributes
        attributes = PadSliceAttributes(node.inputs[0].shape, a.starts, a.stops, a.steps)
        return apply(PadSlice, dy, attributes=attributes).output


def _fields(a: SliceAttributes | PadSliceAttributes) -> tuple[tuple[int, ...], ...]:
    return a.starts, a.stops, a.steps


@dataclass(frozen=True, slots=True)
class PadSliceAttributes:
    """The shape of the result, and the slice of it to fill."""

    shape: Annotated[tuple[int, ...], Whole(1)]
    starts: Annotated[tuple[int, ...], Whole()]
    stops: Annotated[tuple[int, ...], Whole(1)]
    steps: Annotated[tuple[int, ...], Whole(1)]
    value: float = 0.0


class PadSlice(Op):
    """y = x in one slice, and a constant elsewhere; with constant 0, the gradient of `slice`."""

    name, inputs = "pad_slice", ("x",)
    attributes = PadSliceAttributes
    native_16_bit = True
    any_strides = True

    def infer(self, attributes: PadSliceAttributes, x: TensorType) -> TensorType:
        y = x.with_shape(attributes.shape)
        number_of("value", attributes.value, x.dtype)
        part = SliceAttributes(attributes.starts, attributes.stops, attributes.steps)
        filled = Slice().infer(part, y)
        if filled != x:
            raise ShapeError(f"x must have the type of the slice, {filled}, got {x}")
        return y

    def gradient(self, node: Node, dy: Value) -> Value:
        return apply(Slice, dy, attributes=SliceAttributes(*_fields(node.attributes))).output

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array) -> None:
        record(y.fill, node.attributes.value)
        record(np.copyto, y[SliceAttributes(*_fields(node.attributes)).index()], x)


@dataclass(frozen=True, slots=True)
class AxisAttributes:
    """One axis, counted from the front."""

    axis: Annotated[int, Whole()]


# --- functions ---


def full(shape: Sequence[int], value: float, dtype: object = "float32") -> Value:
    """Return a tensor filled with one number; it is not an input and has no gradient.

    Raises `DTypeError` if the dtype cannot represent the number.
    """
    type = as_dtype(dtype)
    number = number_of("full", value, type)
    attributes = FullAttributes(as_shape("full", shape), type.name, number)
    return apply(Full, attributes=attributes).output


def copy(x: Value) -> Value:
    """Return a copy of x that shares no bytes with x."""
    return apply(Copy, x).output


def zeros_like(x: Value) -> Value:
    """Return a tensor of zeros with the shape and dtype of x."""
    dtype: DType = x.type.dtype
    return full(x.shape, 0.0, dtype)


@operator("reshape")
def reshape(x: Value, shape: Sequence[int]) -> Value:
    """Reshape x in row-major order to a shape with equally many elements: a view.

    One extent may be -1.

    Returns x itself if it has the shape. Raises `ShapeError` for another number of elements.
    """
    target = as_shape("reshape", shape)
    as_value("reshape", x)
    if target.count(-1) > 1:
        raise ShapeError(f"reshape: at most one extent may be -1, got {list(target)}")
    if -1 in target:
        known = -int(np.prod(target))
        if known == 0 or x.type.elements % known:
            raise ShapeError(f"reshape: {x.type} cannot be reshaped to {list(target)}")
        target = tuple(x.type.elements // known if n == -1 else n for n in target)
    if target == x.shape:
        return x
    return apply(Reshape, x, attributes=ShapeAttributes(target)).output


@operator("flatten")
def flatten(x: Value, start_axis: int = 1) -> Value:
    """Merge the axes from `start_axis` on into one: a view, (batch, elements) by default.

    Returns x itself if `start_axis` is its last axis. Raises `ShapeError` for an axis that x does
    not have. A scalar is treated as a tensor with one axis.
    """
    rank = as_value("flatten", x).type.rank
    axis = normalize_axis(start_axis, max(rank, 1), "flatten")
    return reshape(x, (*x.shape[:axis], math.prod(x.shape[axis:])))


@operator("transpose")
def transpose(x: Value, permutation: Sequence[int] | None = None) -> Value:
    """Permute axes to the order of `permutation`, by default reversed: a view.

    Returns x itself if nothing changes. Raises `ShapeError` unless each axis is named once.
    """
    as_value("transpose", x)
    axes = range(x.type.rank)[::-1] if permutation is None else permutation
    order = tuple(normalize_axis(axis, x.type.rank, "transpose") for axis in axes)
    if order == tuple(range(x.type.rank)):
        return x
    return apply(Transpose, x, attributes=TransposeAttributes(order)).output


def broadcast_to(x: Value, shape: Sequence[int]) -> Value:
    """Broadcast x to `shape` by NumPy's rule: new axes in front, extents of 1 repeated.

    Raises `ShapeError` for a shape that x cannot be broadcast to.
    """
    target = as_shape("broadcast_to", shape)
    if target == as_value("broadcast_to", x).shape:
        return x
    return apply(BroadcastTo, x, attributes=ShapeAttributes(target)).output
