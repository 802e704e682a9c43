"""Resampling of height and width: adaptive average pooling and upsampling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from graphc.devices.device import Device
from graphc.errors import ShapeError, choose, whole_number
from graphc.ir.attributes import Whole
from graphc.ir.builder import apply
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Op, Recorder
from graphc.ir.types import TensorType
from graphc.ops.elementwise import float_dtype
from graphc.ops.geometry import COUNTED, Extent, Pair, pair
from graphc.ops.pool import AveragePool2d, Pool2dAttributes


@dataclass(frozen=True, slots=True)
class ExtentAttributes:
    """The (height, width) of the result."""

    extent: Extent


def _check_maps(x: TensorType) -> None:
    """Raise `ShapeError` or `DTypeError` unless x is a batch of float maps."""
    float_dtype(x)
    if x.rank != 4:
        raise ShapeError(f"maps must be (batch, channels, height, width), got {x}")


def _share(index: int, parts: int, extent: int) -> slice:
    """Return the input elements that part `index` of `parts` averages.

    Adjacent parts may share one element.
    """
    return slice(index * extent // parts, -(-(index + 1) * extent // parts))


def _cells(x: Array, y: Array) -> Iterator[tuple[Array, Array, int]]:
    """Yield for each output element: its input elements, the output element, and their number."""
    for i in range(y.shape[2]):
        rows = _share(i, y.shape[2], x.shape[2])
        for j in range(y.shape[3]):
            columns = _share(j, y.shape[3], x.shape[3])
            source = x[:, :, rows, columns]
            yield source, y[:, :, i, j], source.shape[2] * source.shape[3]


class AdaptiveAveragePool2d(Op):
    """y = the means of the parts into which a given output extent divides height and width."""

    name, inputs = "adaptive_average_pool2d", ("x",)
    attributes = ExtentAttributes
    any_strides = True
    on_maps = True

    def infer(self, attributes: ExtentAttributes, x: TensorType) -> TensorType:
        _check_maps(x)
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
    """dx = each element of dy divided evenly among the input elements that it averages."""

    name, inputs, outputs = "adaptive_average_pool2d_gradient", ("dy",), ("dx",)
    attributes = ExtentAttributes
    any_strides = True
    on_maps = True

    def infer(self, attributes: ExtentAttributes, dy: TensorType) -> TensorType:
        _check_maps(dy)
        return dy.with_shape((*dy.shape[:2], *attributes.extent))

    def gradient(self, node: Node, ddx: Value) -> Value:
        _, _, height, width = node.inputs[0].shape
        attributes = ExtentAttributes((height, width))
        return apply(AdaptiveAveragePool2d, ddx, attributes=attributes).output

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch type: one number per image and channel."""
        return (node.output.type.with_shape(node.output.shape[:2]),)

    def kernel(self, record: Recorder, node: Node, dy: Array, *, dx: Array) -> None:
        (share,) = record.scratch
        record(dx.fill, 0)
        for target, source, count in _cells(dx, dy):
            record(np.divide, source, float(count), out=share)
            record(np.add, target, share[:, :, None, None], out=target)


@dataclass(frozen=True, slots=True)
class UpsampleAttributes:
    """An integer factor for both axes."""

    factor: Annotated[int, Whole(1, COUNTED)]


class UpsampleNearest2d(Op):
    """y = x with each element repeated `factor` times along height and width."""

    name, inputs = "upsample_nearest2d", ("x",)
    attributes = UpsampleAttributes
    native_16_bit = True
    any_strides = True
    on_maps = True

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
    _check_maps(x)
    return (*x.shape[:2], x.shape[2] * attributes.factor, x.shape[3] * attributes.factor)


def _neighbours(index: int, factor: int, extent: int) -> tuple[tuple[int, float], ...]:
    """Return the one or two input elements around an output element's center, with weights."""
    centre = min(max((index + 0.5) / factor - 0.5, 0.0), extent - 1.0)
    low = int(centre)
    part = centre - low
    if part == 0.0:
        return ((low, 1.0),)
    return (low, 1.0 - part), (low + 1, part)


class UpsampleBilinear2d(Op):
    """y = linear interpolation between elements' centers, with edge elements repeated."""

    name, inputs = "upsample_bilinear2d", ("x",)
    attributes = UpsampleAttributes
    flops_per_element = 6
    any_strides = True
    on_maps = True

    def infer(self, attributes: UpsampleAttributes, x: TensorType) -> TensorType:
        return x.with_shape(_upsampled(attributes, x))

    def gradient(self, node: Node, dy: Value) -> Value:
        attributes = node.attributes
        return apply(UpsampleBilinear2dGradient, dy, attributes=attributes).output

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types: the input with its columns interpolated, and one line."""
        n, c, height, width = node.inputs[0].shape
        type, factor = node.output.type, node.attributes.factor
        line = max(height, width * factor)
        return type.with_shape((n, c, height, width * factor)), type.with_shape((n, c, line))

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array) -> None:
        factor, (wide, line) = node.attributes.factor, record.scratch
        for source, target in ((x, wide), (wide.swapaxes(2, 3), y.swapaxes(2, 3))):
            workspace = line[:, :, : target.shape[2]]
            for j in range(target.shape[3]):
                (first, weight), *rest = _neighbours(j, factor, source.shape[3])
                record(np.multiply, source[:, :, :, first], weight, out=target[:, :, :, j])
                for other, weight in rest:
                    record(np.multiply, source[:, :, :, other], weight, out=workspace)
                    record(np.add, target[:, :, :, j], workspace, out=target[:, :, :, j])


class UpsampleBilinear2dGradient(Op):
    """dx = the transpose of bilinear upsampling applied to dy."""

    name, inputs, outputs = "upsample_bilinear2d_gradient", ("dy",), ("dx",)
    attributes = UpsampleAttributes
    flops_per_element = 6
    any_strides = True
    on_maps = True

    def infer(self, attributes: UpsampleAttributes, dy: TensorType) -> TensorType:
        _check_maps(dy)
        (n, c, height, width), factor = dy.shape, attributes.factor
        if height % factor or width % factor:
            raise ShapeError(f"height and width must be multiples of the factor {factor}, got {dy}")
        return dy.with_shape((n, c, height // factor, width // factor))

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
            workspace = line[:, :, : target.shape[2]]
            record(target.fill, 0)
            for j in range(source.shape[3]):
                for other, weight in _neighbours(j, factor, target.shape[3]):
                    record(np.multiply, source[:, :, :, j], weight, out=workspace)
                    record(np.add, target[:, :, :, other], workspace, out=target[:, :, :, other])


# --- functions ---


def adaptive_average_pool2d(x: Value, extent: int | Pair) -> Value:
    """Average x (batch, channels, height, width) to (batch, channels, *extent).

    Element i of n averages the elements from ⌊i · height / n⌋ to below ⌈(i + 1) · height / n⌉.
    `extent` is one number or (height, width). Raises `ShapeError` for another number of axes.
    """
    attributes = ExtentAttributes(pair("extent", extent, 1))
    return apply(AdaptiveAveragePool2d, x, attributes=attributes).output


def upsample2d(x: Value, factor: int, form: str = "nearest") -> Value:
    """Scale height and width of x (batch, channels, height, width) by an integer factor.

    The form "nearest" repeats elements. "bilinear" takes the weighted mean of the four elements
    with the nearest centers, as PyTorch does with ``align_corners=False``. Raises `OptionError` for
    another form or factor, and `ShapeError` for another number of axes.
    """
    ops = {"nearest": UpsampleNearest2d, "bilinear": UpsampleBilinear2d}
    choose("upsample2d: form", form, tuple(ops))
    factor = whole_number("upsample2d: factor", factor)
    return apply(ops[form], x, attributes=UpsampleAttributes(factor)).output
