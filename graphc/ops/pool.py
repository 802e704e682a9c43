"""Pooling ops on (batch, channels, height, width).

Public functions are in `graphc.ops.pool_axes`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from graphc.devices.device import Device
from graphc.errors import ShapeError
from graphc.ir.builder import apply
from graphc.ir.graph import Node, Value
from graphc.ir.op import ANY_AXES, Array, Cost, Op, Recorder
from graphc.ir.types import TensorType, bool_, int32, int64, uint8
from graphc.ops.cpu.numpy_expression import select
from graphc.ops.elementwise import float_dtype
from graphc.ops.geometry import Conv2dAttributes, Extent, Padding, Stride, window

TILE_BYTES = 4 * 2**20
"""The most bytes of one scratch tensor; the device may allow fewer."""


@dataclass(frozen=True, slots=True)
class Pool2dAttributes:
    """Window size, stride, padding and dilation, each as (rows, columns)."""

    window: Extent
    stride: Stride
    padding: Padding
    dilation: Stride = (1, 1)


@dataclass(frozen=True, slots=True)
class Pool2dGradientAttributes:
    """The attributes of a pooling op, and the (height, width) of its input."""

    window: Extent
    stride: Stride
    padding: Padding
    extent: Extent
    dilation: Stride = (1, 1)


PoolAttributes = Pool2dAttributes | Pool2dGradientAttributes


class Pooling(Op):
    """Base of ops over sliding windows."""

    def free_axes(self, node: Node, name: str) -> int:
        return ANY_AXES

    any_strides = True
    on_maps = True

    most_places: ClassVar[int] = 2**20
    """The most elements of a window, since a kernel visits each of them."""

    def pooled(self, attributes: PoolAttributes, x: TensorType) -> TensorType:
        """Return the type of pooled x: (batch, channels, window rows, window columns)."""
        float_dtype(x)
        if x.rank != 4:
            raise ShapeError(f"x must be (batch, channels, height, width), got {x}")
        window, dilation, padding = attributes.window, attributes.dilation, attributes.padding
        if window[0] * window[1] > self.most_places:
            raise ShapeError(
                f"a window must have at most {self.most_places} elements, got {list(window)}"
            )
        reach = [d * (w - 1) + 1 for d, w in zip(dilation, window, strict=True)]
        widest = map(max, padding[:2], padding[-2:])
        if any(p >= r for p, r in zip(widest, reach, strict=False)):
            raise ShapeError(
                f"padding {padding} must be smaller than the window {window} with dilation "
                f"{dilation}, so that no window covers only padding"
            )
        geometry = Conv2dAttributes(attributes.stride, padding, dilation)
        extents = geometry.output_extents(x, window)
        return x.with_shape((*x.shape[:2], *extents))

    def spread(self, attributes: Pool2dGradientAttributes, dy: TensorType) -> TensorType:
        """Return the type of the pooled x, where dy has the type of the output."""
        if dy.rank != 4:
            raise ShapeError(f"dy must be (batch, channels, rows, columns), got {dy}")
        x = dy.with_shape((*dy.shape[:2], *attributes.extent))
        if self.pooled(attributes, x) != dy:
            raise ShapeError(
                f"dy must have the type of the pooled {x}, {self.pooled(attributes, x)}, got {dy}"
            )
        return x

    def cost(self, node: Node) -> Cost:
        moved = super().cost(node)
        rows, columns = node.attributes.window
        elements = min(value.type.elements for value in (*node.inputs, *node.outputs))
        return Cost(elements * rows * columns, moved.bytes_read, moved.bytes_written)


def _positions(a: Any, x: Array, *outputs: Array) -> Iterator[tuple[int, Array, tuple[Array, ...]]]:
    """Yield, per offset in a window: its number, elements of x, and the windows' outputs."""
    rows, columns = a.window
    down, across = map(range, outputs[0].shape[2:])
    for i in range(rows):
        vertical = window(i, down, x.shape[2], a.stride[0], a.padding[0], a.dilation[0])
        for j in range(columns):
            horizontal = window(j, across, x.shape[3], a.stride[1], a.padding[1], a.dilation[1])
            part = x[:, :, vertical.inner(), horizontal.inner()]
            windows = vertical.outer(), horizontal.outer()
            yield i * columns + j, part, tuple(y[:, :, *windows] for y in outputs)


def _images(shape: tuple[int, ...], itemsize: int, device: Device) -> int:
    """Return the number of images in a tile."""
    image = shape[1] * shape[2] * shape[3] * itemsize
    return max(1, min(shape[0], min(TILE_BYTES, device.workspace_limit_bytes) // image))


class MaxPooling(Pooling):
    """Base of ops that use the argmax within each window, stored as a byte."""

    most_places = 256

    def check_places(self, place: TensorType, y: TensorType) -> None:
        """Raise `ShapeError` unless `place` has one byte per window, that is, per element of y."""
        if place != y.with_dtype(uint8):
            raise ShapeError(
                f"the operand `place` must be {y.with_dtype(uint8)}, one byte per window, "
                f"got {place}"
            )


class MaxPool2d(MaxPooling):
    """y = the maximum of each window.

    The gradient saves the index of the maximum in its window, one byte, instead of x.
    """

    name, inputs, outputs = "max_pool2d", ("x",), ("y", "place")
    attributes = Pool2dAttributes

    def infer(self, attributes: Pool2dAttributes, x: TensorType) -> tuple[TensorType, TensorType]:
        y = self.pooled(attributes, x)
        return y, y.with_dtype(uint8)

    def gradient(self, node: Node, dy: Value, place: Value) -> Value:
        attributes = _with_extent(node.attributes, node.inputs[0].shape)
        return apply(MaxPool2dGradient, dy, place, attributes=attributes).output

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types: a mask of elements above the maximum so far, and indices."""
        y = node.outputs[0].type
        tile = y.with_shape((_images(y.shape, 1, device), *y.shape[1:]))
        return tile.with_dtype(bool_), tile.with_dtype(uint8)

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array, place: Array) -> None:
        record(functools.partial(_max_pool, node.attributes, x, y, place, record.scratch))


def _max_pool(
    a: Pool2dAttributes, x: Array, y: Array, place: Array, scratch: tuple[Array, ...]
) -> None:
    y.fill(-np.inf)
    place.fill(0)
    tile = scratch[0].shape[0]
    for start in range(0, x.shape[0], tile):
        part = slice(start, min(start + tile, x.shape[0]))
        beats, number = (s[: part.stop - part.start] for s in scratch)
        for k, source, (best, places, wins, numbers) in _positions(
            a, x[part], y[part], place[part], beats, number
        ):
            np.greater(source, best, out=wins)
            np.maximum(best, source, out=best)
            np.multiply(wins.view(np.uint8), np.uint8(k), out=numbers)
            np.maximum(places, numbers, out=places)  # k increases, so this is the last


class MaxPool2dGradient(MaxPooling):
    """dx = dy at the argmax of each window, summed over windows."""

    name, inputs, outputs = "max_pool2d_gradient", ("dy", "place"), ("dx",)
    attributes = Pool2dGradientAttributes

    def infer(
        self, attributes: Pool2dGradientAttributes, dy: TensorType, place: TensorType
    ) -> TensorType:
        self.check_places(place, dy)
        return self.spread(attributes, dy)

    def gradient_dy(self, node: Node, ddx: Value, place: Value) -> Value:
        a = node.attributes
        attributes = Pool2dAttributes(a.window, a.stride, a.padding, a.dilation)
        return apply(MaxPool2dSelect, ddx, place, attributes=attributes).output

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types: a mask of maxima, bit masks, and the selected elements."""
        return _choosing_scratch(node.inputs[0].type, device)

    def kernel(self, record: Recorder, node: Node, dy: Array, place: Array, *, dx: Array) -> None:
        record(functools.partial(_max_pool_back, node.attributes, dy, place, dx, record.scratch))


def _choosing_scratch(y: TensorType, device: Device) -> tuple[TensorType, ...]:
    tile = y.with_shape((_images(y.shape, max(4, y.dtype.itemsize), device), *y.shape[1:]))
    bits = tile.with_dtype(int64 if y.dtype.itemsize == 8 else int32)
    return tile.with_dtype(bool_), bits, bits, tile


def _max_pool_back(
    a: Pool2dGradientAttributes, dy: Array, place: Array, dx: Array, scratch: tuple[Array, ...]
) -> None:
    dx.fill(0)
    tile = scratch[0].shape[0]
    for start in range(0, dy.shape[0], tile):
        part = slice(start, min(start + tile, dy.shape[0]))
        hit, mask, flip, chosen = (s[: part.stop - part.start] for s in scratch)
        for k, target, (source,) in _positions(a, dx[part], chosen):
            np.equal(place[part], np.uint8(k), out=hit)
            select(hit, dy[part], 0.0, mask, flip, chosen)
            np.add(target, source, out=target)


class MaxPool2dSelect(MaxPooling):
    """y = the elements of x at the argmax of each window.

    Second derivatives of max pooling use it.
    """

    name, inputs = "max_pool2d_select", ("x", "place")
    attributes = Pool2dAttributes

    def infer(self, attributes: Pool2dAttributes, x: TensorType, place: TensorType) -> TensorType:
        y = self.pooled(attributes, x)
        self.check_places(place, y)
        return y

    def gradient_x(self, node: Node, dy: Value, place: Value) -> Value:
        attributes = _with_extent(node.attributes, node.inputs[0].shape)
        return apply(MaxPool2dGradient, dy, place, attributes=attributes).output

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        return _choosing_scratch(node.output.type, device)

    def kernel(self, record: Recorder, node: Node, x: Array, place: Array, *, y: Array) -> None:
        record(functools.partial(_max_select, node.attributes, x, place, y, record.scratch))


def _max_select(
    a: Pool2dAttributes, x: Array, place: Array, y: Array, scratch: tuple[Array, ...]
) -> None:
    y.fill(0)
    tile = scratch[0].shape[0]
    for start in range(0, x.shape[0], tile):
        part = slice(start, min(start + tile, x.shape[0]))
        hit, mask, flip, chosen = (s[: part.stop - part.start] for s in scratch)
        for k, source, (target,) in _positions(a, x[part], chosen):
            chosen.fill(0)
            np.copyto(target, source)
            np.equal(place[part], np.uint8(k), out=hit)
            select(hit, chosen, 0.0, mask, flip, chosen)
            np.add(y[part], chosen, out=y[part])


def _with_extent(a: Pool2dAttributes, shape: tuple[int, ...]) -> Pool2dGradientAttributes:
    extent = (shape[2], shape[3])
    return Pool2dGradientAttributes(a.window, a.stride, a.padding, extent, a.dilation)


class AveragePool2d(Pooling):
    """y = the mean of each window, with padding counted as zeros."""

    name, inputs = "average_pool2d", ("x",)
    attributes = Pool2dAttributes

    def infer(self, attributes: Pool2dAttributes, x: TensorType) -> TensorType:
        return self.pooled(attributes, x)

    def gradient(self, node: Node, dy: Value) -> Value:
        attributes = _with_extent(node.attributes, node.inputs[0].shape)
        return apply(AveragePool2dGradient, dy, attributes=attributes).output

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array) -> None:
        a = node.attributes
        record(y.fill, 0)
        for _, source, (target,) in _positions(a, x, y):
            record(np.add, target, source, out=target)
        record(np.divide, y, float(a.window[0] * a.window[1]), out=y)


class AveragePool2dGradient(Pooling):
    """dx = dy spread evenly over each window."""

    name, inputs, outputs = "average_pool2d_gradient", ("dy",), ("dx",)
    attributes = Pool2dGradientAttributes

    def infer(self, attributes: Pool2dGradientAttributes, dy: TensorType) -> TensorType:
        return self.spread(attributes, dy)

    def gradient(self, node: Node, ddx: Value) -> Value:
        a = node.attributes
        attributes = Pool2dAttributes(a.window, a.stride, a.padding, a.dilation)
        return apply(AveragePool2d, ddx, attributes=attributes).output

    def kernel(self, record: Recorder, node: Node, dy: Array, *, dx: Array) -> None:
        a = node.attributes
        record(dx.fill, 0)
        for _, target, (source,) in _positions(a, dx, dy):
            record(np.add, target, source, out=target)
        record(np.divide, dx, float(a.window[0] * a.window[1]), out=dx)
