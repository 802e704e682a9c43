"""Pooling and resampling of (batch, channels, height, width)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.errors import OptionError, ShapeError
from graphc.ir.builder import apply
from graphc.ir.device import Device
from graphc.ir.graph import Node, Value
from graphc.ir.numpy_expression import select
from graphc.ir.op import Array, Cost, Op, Recorder
from graphc.ir.ops.conv import Conv2dAttributes, Pair, pair, window
from graphc.ir.ops.elementwise import float_dtype
from graphc.ir.ops.reduce import mean
from graphc.ir.ops.shape import PadSlice, PadSliceAttributes
from graphc.ir.types import TensorType, bool_, int32, int64, uint8

TILE_BYTES = 4 * 2**20
"""Bytes of one scratch tensor, if the device allows as much."""


@dataclass(frozen=True, slots=True)
class Pool2dAttributes:
    """Window size and geometry, (rows, columns) each."""

    window: Pair
    stride: Pair
    padding: Pair


@dataclass(frozen=True, slots=True)
class Pool2dGradientAttributes:
    """The same, and the (height, width) of the pooled input."""

    window: Pair
    stride: Pair
    padding: Pair
    extent: Pair


class Pooling(Op):
    """Base of ops over sliding windows."""

    def pooled_shape(self, attributes: Pool2dAttributes, x: TensorType) -> tuple[int, ...]:
        """(batch, channels, windows down, windows across)."""
        float_dtype(x)
        if x.rank != 4:
            raise ShapeError(f"x is (batch, channels, height, width), got {x}")
        a = Conv2dAttributes(attributes.stride, attributes.padding)
        extents = [a.output_extent(i, x.shape[2 + i], attributes.window[i]) for i in (0, 1)]
        if min(extents) < 1:
            raise ShapeError(
                f"a window of {list(attributes.window)} does not fit into {list(x.shape[2:])} with "
                f"padding {attributes.padding}"
            )
        return (*x.shape[:2], *extents)

    def cost(self, node: Node) -> Cost:
        moved = super().cost(node)
        rows, columns = node.attributes.window
        elements = min(value.type.elements for value in (*node.inputs, *node.outputs))
        return Cost(elements * rows * columns, moved.bytes_read, moved.bytes_written)


def _positions(a: Any, x: Array, y: Array) -> Iterator[tuple[int, Array, Array]]:
    """For each place in a window: its number, what it reads of x, and where that goes in y."""
    rows, columns = a.window
    down, across = range(y.shape[2]), range(y.shape[3])
    for i in range(rows):
        vertical = window(i, down, x.shape[2], a.stride[0], a.padding[0], 1)
        for j in range(columns):
            horizontal = window(j, across, x.shape[3], a.stride[1], a.padding[1], 1)
            part = x[:, :, vertical.inner(), horizontal.inner()]
            target = y[:, :, vertical.outer(), horizontal.outer()]
            yield i * columns + j, part, target


def _images(shape: tuple[int, ...], itemsize: int, device: Device) -> int:
    """Images of a tile."""
    image = shape[1] * shape[2] * shape[3] * itemsize
    return max(1, min(shape[0], min(TILE_BYTES, device.workspace_limit_bytes) // image))


class MaxPool2d(Pooling):
    """y = the largest of each window; keeps its place in the window as one byte, not the input."""

    name, inputs, outputs = "max_pool2d", ("x",), ("y", "place")
    attributes = Pool2dAttributes

    def infer(self, attributes: Pool2dAttributes, x: TensorType) -> tuple[TensorType, TensorType]:
        if attributes.window[0] * attributes.window[1] > 256:
            raise ShapeError(f"a window of {list(attributes.window)} has more than 256 places")
        if any(2 * p > w for p, w in zip(attributes.padding, attributes.window, strict=True)):
            raise ShapeError(
                f"padding {attributes.padding} is more than half of the window {attributes.window}"
            )
        y = x.with_shape(self.pooled_shape(attributes, x))
        return y, y.with_dtype(uint8)

    def gradient(self, node: Node, dy: Value, place: Value) -> Value:
        attributes = _with_extent(node.attributes, node.inputs[0].shape)
        return apply(MaxPool2dGradient, dy, place, attributes=attributes).output

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Where a place beats the best so far, and its number there."""
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
        for (k, source, best), (_, _, places), (_, _, wins), (_, _, numbers) in zip(
            _positions(a, x[part], y[part]),
            _positions(a, x[part], place[part]),
            _positions(a, x[part], beats),
            _positions(a, x[part], number),
            strict=True,
        ):
            np.greater(source, best, out=wins)
            np.maximum(best, source, out=best)
            np.multiply(wins.view(np.uint8), np.uint8(k), out=numbers)
            np.maximum(places, numbers, out=places)  # k grows: the last to beat is the best


class MaxPool2dGradient(Pooling):
    """dx = dy where the largest of a window stood, summed over windows."""

    name, inputs, outputs = "max_pool2d_gradient", ("dy", "place"), ("dx",)
    attributes = Pool2dGradientAttributes

    def infer(
        self, attributes: Pool2dGradientAttributes, dy: TensorType, place: TensorType
    ) -> TensorType:
        return dy.with_shape((*dy.shape[:2], *attributes.extent))

    def gradient_dy(self, node: Node, ddx: Value, place: Value) -> Value:
        a = node.attributes
        attributes = Pool2dAttributes(a.window, a.stride, a.padding)
        return apply(MaxPool2dSelect, ddx, place, attributes=attributes).output

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Where a place was the largest; bit masks for choosing; what is chosen."""
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
        for k, target, source in _positions(a, dx[part], chosen):
            np.equal(place[part], np.uint8(k), out=hit)
            select(hit, dy[part], 0.0, mask, flip, chosen)
            np.add(target, source, out=target)


class MaxPool2dSelect(Pooling):
    """y = what x holds where the largest of each window stood: the gradient's gradient."""

    name, inputs = "max_pool2d_select", ("x", "place")
    attributes = Pool2dAttributes

    def infer(self, attributes: Pool2dAttributes, x: TensorType, place: TensorType) -> TensorType:
        return x.with_shape(place.shape)

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
        for k, source, target in _positions(a, x[part], chosen):
            chosen.fill(0)
            np.copyto(target, source)
            np.equal(place[part], np.uint8(k), out=hit)
            select(hit, chosen, 0.0, mask, flip, chosen)
            np.add(y[part], chosen, out=y[part])


def _with_extent(a: Pool2dAttributes, shape: tuple[int, ...]) -> Pool2dGradientAttributes:
    return Pool2dGradientAttributes(a.window, a.stride, a.padding, (shape[2], shape[3]))


class AveragePool2d(Pooling):
    """y = the mean of each window, padding counted as zeros."""

    name, inputs = "average_pool2d", ("x",)
    attributes = Pool2dAttributes

    def infer(self, attributes: Pool2dAttributes, x: TensorType) -> TensorType:
        return x.with_shape(self.pooled_shape(attributes, x))

    def gradient(self, node: Node, dy: Value) -> Value:
        attributes = _with_extent(node.attributes, node.inputs[0].shape)
        return apply(AveragePool2dGradient, dy, attributes=attributes).output

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array) -> None:
        a = node.attributes
        record(y.fill, 0)
        for _, source, target in _positions(a, x, y):
            record(np.add, target, source, out=target)
        record(np.divide, y, float(a.window[0] * a.window[1]), out=y)


class AveragePool2dGradient(Pooling):
    """dx = dy spread evenly over each window."""

    name, inputs, outputs = "average_pool2d_gradient", ("dy",), ("dx",)
    attributes = Pool2dGradientAttributes

    def infer(self, attributes: Pool2dGradientAttributes, dy: TensorType) -> TensorType:
        return dy.with_shape((*dy.shape[:2], *attributes.extent))

    def gradient(self, node: Node, ddx: Value) -> Value:
        a = node.attributes
        attributes = Pool2dAttributes(a.window, a.stride, a.padding)
        return apply(AveragePool2d, ddx, attributes=attributes).output

    def kernel(self, record: Recorder, node: Node, dy: Array, *, dx: Array) -> None:
        a = node.attributes
        record(dx.fill, 0)
        for _, target, source in _positions(a, dx, dy):
            record(np.add, target, source, out=target)
        record(np.divide, dx, float(a.window[0] * a.window[1]), out=dx)


@dataclass(frozen=True, slots=True)
class ExtentAttributes:
    """The (height, width) to make."""

    extent: Pair


def _share(index: int, parts: int, extent: int) -> slice:
    """The input elements that part `index` of `parts` averages: they may overlap by one."""
    return slice(index * extent // parts, -(-(index + 1) * extent // parts))


def _cells(x: Array, y: Array) -> Iterator[tuple[Array, Array, int]]:
    """For each output element: what it averages, itself, and how many that are."""
    for i in range(y.shape[2]):
        rows = _share(i, y.shape[2], x.shape[2])
        for j in range(y.shape[3]):
            columns = _share(j, y.shape[3], x.shape[3])
            source = x[:, :, rows, columns]
            yield source, y[:, :, i, j], source.shape[2] * source.shape[3]


class AdaptiveAveragePool2d(Op):
    """y of a given extent: each element the mean of its share of the input."""

    name, inputs = "adaptive_average_pool2d", ("x",)
    attributes = ExtentAttributes

    def infer(self, attributes: ExtentAttributes, x: TensorType) -> TensorType:
        float_dtype(x)
        if x.rank != 4:
            raise ShapeError(f"x is (batch, channels, height, width), got {x}")
        return x.with_shape((*x.shape[:2], *attributes.extent))

    def gradient(self, node: Node, dy: Value) -> Value:
        _, _, height, width = node.inputs[0].shape
        attributes = ExtentAttributes((height, width))
        return apply(AdaptiveAveragePool2dGradient, dy, attributes=attributes).output

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array) -> None:
        for source, target, count in _cells(x, y):
            record(np.add.reduce, source, (2, 3), None, target)
            record(np.divide, target, float(count), out=target)


class AdaptiveAveragePool2dGradient(Op):
    """dx = dy spread evenly over each element's share."""

    name, inputs, outputs = "adaptive_average_pool2d_gradient", ("dy",), ("dx",)
    attributes = ExtentAttributes

    def infer(self, attributes: ExtentAttributes, dy: TensorType) -> TensorType:
        return dy.with_shape((*dy.shape[:2], *attributes.extent))

    def gradient(self, node: Node, ddx: Value) -> Value:
        _, _, height, width = node.inputs[0].shape
        attributes = ExtentAttributes((height, width))
        return apply(AdaptiveAveragePool2d, ddx, attributes=attributes).output

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """One number an image and channel."""
        return (node.output.type.with_shape(node.output.shape[:2]),)

    def kernel(self, record: Recorder, node: Node, dy: Array, *, dx: Array) -> None:
        (share,) = record.scratch
        record(dx.fill, 0)
        for target, source, count in _cells(dx, dy):
            record(np.divide, source, float(count), out=share)
            record(np.add, target, share[:, :, None, None], out=target)


@dataclass(frozen=True, slots=True)
class UpsampleAttributes:
    """A whole factor for both axes."""

    factor: int


class UpsampleNearest2d(Op):
    """Each element repeated factor by factor times."""

    name, inputs = "upsample_nearest2d", ("x",)
    attributes = UpsampleAttributes
    native_16_bit = True

    def infer(self, attributes: UpsampleAttributes, x: TensorType) -> TensorType:
        return x.with_shape(_upsampled(attributes, x))

    def gradient(self, node: Node, dy: Value) -> Value:
        factor = node.attributes.factor
        attributes = Pool2dAttributes((factor, factor), (factor, factor), (0, 0))
        return apply(AveragePool2d, dy, attributes=attributes).output * float(factor * factor)

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array) -> None:
        factor = node.attributes.factor
        for i in range(factor):
            for j in range(factor):
                record(np.copyto, y[:, :, i::factor, j::factor], x)


def _upsampled(attributes: UpsampleAttributes, x: TensorType) -> tuple[int, ...]:
    float_dtype(x)
    if x.rank != 4:
        raise ShapeError(f"x is (batch, channels, height, width), got {x}")
    return (*x.shape[:2], x.shape[2] * attributes.factor, x.shape[3] * attributes.factor)


def _neighbours(index: int, factor: int, extent: int) -> tuple[tuple[int, float], ...]:
    """The two input elements between which an output element's centre lies, with their weights."""
    centre = min(max((index + 0.5) / factor - 0.5, 0.0), extent - 1.0)
    low = int(centre)
    part = centre - low
    if part == 0.0:
        return ((low, 1.0),)
    return (low, 1.0 - part), (low + 1, part)


class UpsampleBilinear2d(Op):
    """Linear interpolation between elements' centres, repeated at the edge."""

    name, inputs = "upsample_bilinear2d", ("x",)
    attributes = UpsampleAttributes
    flops_per_element = 6

    def infer(self, attributes: UpsampleAttributes, x: TensorType) -> TensorType:
        return x.with_shape(_upsampled(attributes, x))

    def gradient(self, node: Node, dy: Value) -> Value:
        attributes = node.attributes
        return apply(UpsampleBilinear2dGradient, dy, attributes=attributes).output

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """The input with its columns interpolated, and one line."""
        n, c, height, width = node.inputs[0].shape
        type, factor = node.output.type, node.attributes.factor
        line = max(height, width * factor)
        return type.with_shape((n, c, height, width * factor)), type.with_shape((n, c, line))

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array) -> None:
        factor, (wide, line) = node.attributes.factor, record.scratch
        for source, target in ((x, wide), (wide.swapaxes(2, 3), y.swapaxes(2, 3))):
            room = line[:, :, : target.shape[2]]
            for j in range(target.shape[3]):
                (first, weight), *rest = _neighbours(j, factor, source.shape[3])
                record(np.multiply, source[:, :, :, first], weight, out=target[:, :, :, j])
                for other, weight in rest:
                    record(np.multiply, source[:, :, :, other], weight, out=room)
                    record(np.add, target[:, :, :, j], room, out=target[:, :, :, j])


class UpsampleBilinear2dGradient(Op):
    """The transpose of the interpolation."""

    name, inputs, outputs = "upsample_bilinear2d_gradient", ("dy",), ("dx",)
    attributes = UpsampleAttributes
    flops_per_element = 6

    def infer(self, attributes: UpsampleAttributes, dy: TensorType) -> TensorType:
        n, c, height, width = dy.shape
        return dy.with_shape((n, c, height // attributes.factor, width // attributes.factor))

    def gradient(self, node: Node, ddx: Value) -> Value:
        return apply(UpsampleBilinear2d, ddx, attributes=node.attributes).output

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        n, c, height, width = node.inputs[0].shape
        type = node.output.type
        low = height // node.attributes.factor
        return type.with_shape((n, c, low, width)), type.with_shape((n, c, max(low, width)))

    def kernel(self, record: Recorder, node: Node, dy: Array, *, dx: Array) -> None:
        factor, (wide, line) = node.attributes.factor, record.scratch
        for source, target in ((dy.swapaxes(2, 3), wide.swapaxes(2, 3)), (wide, dx)):
            room = line[:, :, : target.shape[2]]
            record(target.fill, 0)
            for j in range(source.shape[3]):
                for other, weight in _neighbours(j, factor, target.shape[3]):
                    record(np.multiply, source[:, :, :, j], weight, out=room)
                    record(np.add, target[:, :, :, other], room, out=target[:, :, :, other])


# --- functions ---


def max_pool2d(
    x: Value, window: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0
) -> Value:
    """The largest element of each window; the stride is the window's size by default."""
    return apply(MaxPool2d, x, attributes=_pool(window, stride, padding)).outputs[0]


def average_pool2d(
    x: Value, window: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0
) -> Value:
    """The mean of each window, padding counted as zeros."""
    return apply(AveragePool2d, x, attributes=_pool(window, stride, padding)).output


def _pool(window: int | Pair, stride: int | Pair | None, padding: int | Pair) -> Pool2dAttributes:
    size = pair("window", window, 1)
    step = size if stride is None else pair("stride", stride, 1)
    return Pool2dAttributes(size, step, pair("padding", padding, 0))


def global_average_pool2d(x: Value) -> Value:
    """The mean over height and width: (batch, channels)."""
    return mean(x, (2, 3))


def adaptive_average_pool2d(x: Value, extent: int | Pair) -> Value:
    """Means over as even shares as `extent` allows."""
    attributes = ExtentAttributes(pair("extent", extent, 1))
    return apply(AdaptiveAveragePool2d, x, attributes=attributes).output


def upsample2d(x: Value, factor: int, form: str = "nearest") -> Value:
    """Height and width times a whole factor; form "nearest" or "bilinear"."""
    ops = {"nearest": UpsampleNearest2d, "bilinear": UpsampleBilinear2d}
    if form not in ops or not isinstance(factor, int) or factor < 1:
        raise OptionError(
            f"upsample2d: the form is one of {', '.join(ops)} and the factor a whole number from 1 "
            f"up, got {form!r} and {factor!r}"
        )
    return apply(ops[form], x, attributes=UpsampleAttributes(factor)).output


def pad(x: Value, widths: tuple[Pair, ...]) -> Value:
    """Zeros around x: (before, after) for each axis."""
    if len(widths) != x.type.rank or any(min(width) < 0 for width in widths):
        raise ShapeError(f"pad: one (before, after) from 0 up for each of {x.type.rank} axes")
    starts = tuple(before for before, _ in widths)
    stops = tuple(before + n for before, n in zip(starts, x.shape, strict=True))
    shape = tuple(stop + after for stop, (_, after) in zip(stops, widths, strict=True))
    attributes = PadSliceAttributes(shape, starts, stops, (1,) * x.type.rank)
    return apply(PadSlice, x, attributes=attributes).output
