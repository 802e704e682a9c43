"""Sums, means, maxima and minima over axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from graphc.devices.device import Device
from graphc.errors import DTypeError, ShapeError, truth
from graphc.ir.attributes import Whole
from graphc.ir.builder import apply, as_value
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Cost, Op, Recorder
from graphc.ir.operators import operator
from graphc.ir.types import TensorType, bool_, compute_dtype, normalize_axis
from graphc.keywords import also_called
from graphc.ops.choice import cast, equal
from graphc.ops.elementwise import div, float_dtype, mul, scale
from graphc.ops.shape import broadcast_to, reshape

BLOCK_ROWS = 1024
"""Number of rows of a long first axis that one partial sum adds."""


BLOCK_ELEMENTS = 16384
"""Number of elements that one partial sum of squares adds."""


@dataclass(frozen=True, slots=True)
class ReduceAttributes:
    """Reduced axes, ascending from the front; `keepdims` leaves them with extent 1."""

    axes: Annotated[tuple[int, ...], Whole()]
    keepdims: bool


class Reduction(Op):
    """Base: shapes, cost, and the broadcast of a gradient over the reduced axes."""

    inputs = ("x",)
    attributes = ReduceAttributes
    any_strides = True

    def infer(self, attributes: ReduceAttributes, x: TensorType) -> TensorType:
        axes = attributes.axes
        if [normalize_axis(a, x.rank, "axes") for a in axes] != sorted(set(axes)):
            raise ShapeError(f"axes must be ascending integers from 0 to {x.rank - 1}, got {axes}")
        return x.with_shape(kept_shape(x.shape, axes, attributes.keepdims))

    def cost(self, node: Node) -> Cost:
        moved = super().cost(node)
        return Cost(node.inputs[0].type.elements, moved.bytes_read, moved.bytes_written)

    def spread(self, node: Node, value: Value) -> Value:
        """Broadcast a value of the output's shape to the input's shape."""
        shape, axes = node.inputs[0].shape, node.attributes.axes
        kept = [1 if axis in axes else n for axis, n in enumerate(shape)]
        return broadcast_to(reshape(value, kept), shape)


class Sum(Reduction):
    """y = sum of x over axes. Integers keep their dtype, so their sums wrap around."""

    name = "sum"
    precision = "wide"

    def infer(self, attributes: ReduceAttributes, x: TensorType) -> TensorType:
        if x.dtype == bool_:
            raise DTypeError("bool cannot be summed; convert with graphc.cast")
        return super().infer(attributes, x)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        return partial_sums(node.inputs[0].type, node.attributes.axes)

    def gradient(self, node: Node, dy: Value) -> Value:
        return self.spread(node, dy)

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array) -> None:
        record_sum(record, x, y, node.attributes.axes, node.attributes.keepdims)


class Mean(Reduction):
    """y = mean of x over axes."""

    name = "mean"
    precision = "wide"

    def infer(self, attributes: ReduceAttributes, x: TensorType) -> TensorType:
        float_dtype(x)
        return super().infer(attributes, x)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        return partial_sums(node.inputs[0].type, node.attributes.axes)

    def count(self, node: Node) -> int:
        return math.prod(node.inputs[0].shape[axis] for axis in node.attributes.axes)

    def gradient(self, node: Node, dy: Value) -> Value:
        return self.spread(node, scale(dy, 1 / self.count(node)))

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array) -> None:
        record_sum(record, x, y, node.attributes.axes, node.attributes.keepdims)
        record(np.divide, y, float(self.count(node)), out=y)


def partial_sums(x: TensorType, axes: tuple[int, ...]) -> tuple[TensorType, ...]:
    """Return the scratch type of partial sums over blocks of the first axis, if that axis is long.

    NumPy adds the rows of that axis one by one. The error of a float sum grows with the number of
    terms added to one total.
    """
    if 0 not in axes or x.rank < 2 or x.shape[0] <= 2 * BLOCK_ROWS:
        return ()
    kept = [1 if i in axes else n for i, n in enumerate(x.shape)]
    return (x.with_shape([-(-x.shape[0] // BLOCK_ROWS), *kept[1:]]),)


def record_sum(record: Recorder, x: Array, y: Array, axes: tuple[int, ...], keepdims: bool) -> None:
    """Record the sum of x over axes, with the scratch of `partial_sums` if there is one."""
    if not record.scratch:
        record(np.add.reduce, x, axes, y.dtype, y, keepdims)
        return
    (partial,) = record.scratch
    for number in range(partial.shape[0]):
        block = x[number * BLOCK_ROWS : (number + 1) * BLOCK_ROWS]
        record(np.add.reduce, block, axes, y.dtype, partial[number : number + 1], True)
    total = y if keepdims else np.expand_dims(y, axes)
    record(np.add.reduce, partial, 0, y.dtype, total[0])


class SquareSum(Op):
    """y = sum of x² over all elements, block by block."""

    name, inputs = "square_sum", ("x",)
    precision = "wide"
    needs_contiguous = ("x",)
    flops_per_element = 0
    any_strides = True

    def infer(self, attributes: Any, x: TensorType) -> TensorType:
        return TensorType((), compute_dtype(float_dtype(x)))

    def cost(self, node: Node) -> Cost:
        moved = super().cost(node)
        return Cost(2 * node.inputs[0].type.elements, moved.bytes_read, moved.bytes_written)

    def gradient(self, node: Node, dy: Value, x: Value) -> Value:
        return mul(x, cast(scale(dy, 2.0), x.type.dtype))

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch type: one sum per block."""
        x = node.inputs[0].type
        return (x.with_shape((-(-x.elements // BLOCK_ELEMENTS),)),)

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array) -> None:
        (partial,) = record.scratch
        flat = x.reshape(-1)
        for number in range(partial.size):
            block = flat[number * BLOCK_ELEMENTS : (number + 1) * BLOCK_ELEMENTS]
            record(np.dot, block, block, out=partial[number : number + 1].reshape(()))
        record(np.add.reduce, partial, 0, None, y)


class Extreme(Reduction):
    """Base: the largest or smallest element over axes. Equal extremes share the gradient evenly."""

    ufunc: ClassVar[np.ufunc]

    def gradient(self, node: Node, dy: Value, x: Value, y: Value) -> Value:
        hit = cast(equal(x, self.spread(node, y)), x.type.dtype)
        share = div(dy, sum(hit, node.attributes.axes, node.attributes.keepdims))
        return mul(hit, self.spread(node, share))

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array) -> None:
        record(self.ufunc.reduce, x, node.attributes.axes, None, y, node.attributes.keepdims)


class Max(Extreme):
    """y = max of x over axes; for bool, true if any element is."""

    name = "max"
    ufunc = np.maximum


class Min(Extreme):
    """y = min of x over axes; for bool, true if all elements are."""

    name = "min"
    ufunc = np.minimum


def reduced_axes(where: str, x: Value, axes: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the axes of a reduction, by default all, ascending from the front."""
    rank = as_value(where, x).type.rank
    if axes is None:
        return tuple(range(rank))
    listed: Iterable[int] = axes if isinstance(axes, Iterable) else (axes,)
    return tuple(sorted({normalize_axis(axis, rank, where) for axis in listed}))


def kept_shape(shape: tuple[int, ...], axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    """Return the shape of the result of a reduction over `axes`."""
    stays = truth("keepdims", keepdims)
    return tuple(
        1 if axis in axes else extent
        for axis, extent in enumerate(shape)
        if stays or axis not in axes
    )


def _attributes(
    where: str, x: Value, axes: int | Sequence[int] | None, keepdims: bool
) -> ReduceAttributes:
    return ReduceAttributes(reduced_axes(where, x, axes), truth(f"{where}: keepdims", keepdims))


@operator("sum")
@also_called("axes", "axis")
def sum(x: Value, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Sum over `axes`, by default all; they are dropped, or get extent 1 with `keepdims`.

    Raises `DTypeError` for bool, and `ShapeError` for an axis that x does not have.
    """
    return apply(Sum, x, attributes=_attributes("sum", x, axes, keepdims)).output


def square_sum(x: Value) -> Value:
    """Return the sum of x², a scalar."""
    return apply(SquareSum, x).output


@operator("mean")
@also_called("axes", "axis")
def mean(x: Value, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Average float x over `axes`, by default all.

    They are dropped, or get extent 1 with `keepdims`.

    Raises `DTypeError` for other dtypes, and `ShapeError` for an axis that x does not have.
    """
    return apply(Mean, x, attributes=_attributes("mean", x, axes, keepdims)).output


@operator("max")
@also_called("axes", "axis")
def max(x: Value, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Return the maximum over `axes`, by default all.

    The axes are dropped, or get extent 1 with `keepdims`. Equal largest elements share the gradient
    evenly. Raises `ShapeError` for an axis that x does not have.
    """
    return apply(Max, x, attributes=_attributes("max", x, axes, keepdims)).output


@operator("min")
@also_called("axes", "axis")
def min(x: Value, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Return the minimum over `axes`, by default all.

    The axes are dropped, or get extent 1 with `keepdims`. Equal smallest elements share the
    gradient evenly. Raises `ShapeError` for an axis that x does not have.
    """
    return apply(Min, x, attributes=_attributes("min", x, axes, keepdims)).output


@also_called("axes", "axis")
def any(x: Value, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Return whether any element of bool x along `axes`, by default all, is true; no gradient.

    Raises `DTypeError` for other dtypes, and `ShapeError` for an axis that x does not have.
    """
    return max(_truths("any", x), axes, keepdims)


@also_called("axes", "axis")
def all(x: Value, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Return whether all elements of bool x along `axes`, by default all, are true; no gradient.

    Raises `DTypeError` for other dtypes, and `ShapeError` for an axis that x does not have.
    """
    return min(_truths("all", x), axes, keepdims)


def _truths(where: str, x: Value) -> Value:
    if as_value(where, x).type.dtype != bool_:
        raise DTypeError(f"{where}: x must be bool, got {x.type}; compare it, as in x > 0")
    return x


def sum_to(x: Value, shape: tuple[int, ...]) -> Value:
    """Sum x to `shape`, over the axes along which `shape` broadcasts to the shape of x."""
    extra = x.type.rank - len(shape)
    unit = [extra + i for i, n in enumerate(shape) if n == 1 and x.shape[extra + i] != 1]
    axes = [*range(extra), *unit]
    return reshape(sum(x, axes), shape) if axes else x
