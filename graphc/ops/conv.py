"""Two-dimensional convolution on (batch, channels, height, width), and its two gradients.

All three are linear in both operands, so the other two compute the gradients of each. The CPU
arithmetic is in `graphc.ops.cpu.convolution`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

from graphc.devices.device import Device
from graphc.errors import ShapeError
from graphc.ir.builder import apply
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Cost, Op, Recorder, Strided
from graphc.ir.types import TensorType, compute_dtype, is_channels_last
from graphc.ops.accumulation import check_sum, start_sum
from graphc.ops.choice import cast
from graphc.ops.cpu.convolution import columns_shape, convolve, convolve_back, correlate
from graphc.ops.elementwise import float_dtype
from graphc.ops.geometry import (
    Conv2dAttributes,
    Extent,
    Geometry,
    Groups,
    Padding,
    Stride,
    geometry_of,
    plain_attributes,
)
from graphc.ops.reduce import sum


class Convolution(Op):
    """Base of convolution and its two gradients: cost, and scratch for a tile of unfolded input."""

    precision = "narrow"
    on_maps = True
    convolves = True

    def geometry(self, node: Node) -> Geometry:
        """Return the geometry of the convolution that this node computes or differentiates."""
        raise NotImplementedError

    def cost(self, node: Node) -> Cost:
        geometry, moved = self.geometry(node), super().cost(node)
        flops = 2 * math.prod(geometry.y) * geometry.depth
        return Cost(flops, moved.bytes_read, moved.bytes_written)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        geometry = self.geometry(node)
        if geometry.is_pointwise:
            return ()
        return (TensorType(columns_shape(geometry, device), node.output.type.dtype),)

    def straightened(self, node: Node, strided: Strided) -> tuple[Value, ...]:
        """Return the strided inputs to copy to contiguous memory.

        Channels-last maps are read in place.
        """
        named = ((self.input_name(i), value) for i, value in enumerate(node.inputs))
        maps = {value for name, value in named if name in ("x", "dy")}
        return tuple(
            value
            for value in super().straightened(node, strided)
            if value not in maps or not is_channels_last(value.type, strided[value])
        )


class Conv2d(Convolution):
    """y = x * w (+ bias), with x (n, c, h, w), w (k, c / groups, r, s), bias (k,)."""

    name, inputs = "conv2d", ("x", "w", "*bias")
    needs_contiguous = ("x", "w")
    strided_axes = {"x": 1, "y": 1}
    attributes = Conv2dAttributes

    def infer(
        self, attributes: Conv2dAttributes, x: TensorType, w: TensorType, *bias: TensorType
    ) -> TensorType:
        dtype = float_dtype(x, w, *bias)
        if x.rank != 4 or w.rank != 4 or x.shape[1] != w.shape[1] * attributes.groups:
            raise ShapeError(
                "x must be (batch, channels, height, width) and w (filters, channels / groups, "
                f"rows, columns), got {x}, {w} and groups={attributes.groups}"
            )
        if w.shape[0] % attributes.groups:
            raise ShapeError(
                f"filters must be a multiple of groups, got {w.shape[0]} filters and "
                f"{attributes.groups} groups"
            )
        if any(b.shape != w.shape[:1] for b in bias) or len(bias) > 1:
            raise ShapeError(f"the bias must have one number per filter, ({w.shape[0]},)")
        extents = attributes.output_extents(x, w.shape[2:])
        return TensorType((x.shape[0], w.shape[0], *extents), dtype)

    def geometry(self, node: Node) -> Geometry:
        x, w = node.inputs[:2]
        return geometry_of(node.attributes, x.type, w.type, node.output.type)

    def cost(self, node: Node) -> Cost:
        cost = super().cost(node)
        extra = node.output.type.elements * (len(node.inputs) - 2)
        return Cost(cost.flops + extra, cost.bytes_read, cost.bytes_written)

    def gradient_x(self, node: Node, dy: Value, w: Value) -> Value:
        attributes = _input_attributes(node.attributes, node.inputs[0].shape)
        return apply(Conv2dInputGradient, dy, w, attributes=attributes).output

    def gradient_w(self, node: Node, dy: Value, x: Value) -> Value:
        attributes = _weight_attributes(node.attributes, node.inputs[1].shape)
        return apply(Conv2dWeightGradient, dy, x, attributes=attributes).output

    def gradient_bias(self, node: Node, dy: Value) -> tuple[Value, ...]:
        return (sum(dy, (0, 2, 3)),) if len(node.inputs) == 3 else ()

    def kernel(
        self, record: Recorder, node: Node, x: Array, w: Array, *bias: Array, y: Array
    ) -> None:
        record(functools.partial(convolve, self.geometry(node), x, w, bias, y, record.scratch))


def _check_convolution(attributes: Any, x: TensorType, w: TensorType, y: TensorType) -> None:
    """Raise `ShapeError` unless y has the shape of a convolution of x by w."""
    found = Conv2d().infer(plain_attributes(attributes), x, w)
    if found.shape != y.shape:
        raise ShapeError(
            f"the convolution of {x} with {w} returns {found}, but dy is {y}; output_padding must "
            "be below the stride"
        )


@dataclass(frozen=True, slots=True)
class Conv2dInputAttributes:
    """The convolution's geometry, and the (height, width) of the input."""

    stride: Stride
    padding: Padding
    dilation: Stride
    groups: Groups
    extent: Extent


def _input_attributes(a: Any, shape: tuple[int, ...]) -> Conv2dInputAttributes:
    return Conv2dInputAttributes(a.stride, a.padding, a.dilation, a.groups, (shape[2], shape[3]))


class Conv2dInputGradient(Convolution):
    """dx from dy and w; used as a layer, it is the transposed convolution."""

    name, inputs, outputs = "conv2d_input_gradient", ("dy", "w"), ("dx",)
    needs_contiguous = ("dy", "w")
    strided_axes = {"dy": 1, "dx": 1}
    attributes = Conv2dInputAttributes

    def infer(self, attributes: Conv2dInputAttributes, dy: TensorType, w: TensorType) -> TensorType:
        dtype = float_dtype(dy, w)
        if dy.rank != 4 or w.rank != 4 or dy.shape[1] != w.shape[0]:
            raise ShapeError(
                "dy must be (batch, filters, height, width) and w (filters, channels, rows, "
                f"columns), got {dy} and {w}"
            )
        dx = TensorType((dy.shape[0], w.shape[1] * attributes.groups, *attributes.extent), dtype)
        _check_convolution(attributes, dx, w, dy)
        return dx

    def geometry(self, node: Node) -> Geometry:
        dy, w = node.inputs
        return geometry_of(node.attributes, node.output.type, w.type, dy.type)

    def gradient_dy(self, node: Node, ddx: Value, w: Value) -> Value:
        return apply(Conv2d, ddx, w, attributes=self.geometry(node).attributes).output

    def gradient_w(self, node: Node, ddx: Value, dy: Value) -> Value:
        attributes = _weight_attributes(node.attributes, node.inputs[1].shape)
        return apply(Conv2dWeightGradient, dy, ddx, attributes=attributes).output

    def kernel(self, record: Recorder, node: Node, dy: Array, w: Array, *, dx: Array) -> None:
        geometry = self.geometry(node)
        record(functools.partial(convolve_back, geometry, dy, w, dx, record.scratch))


@dataclass(frozen=True, slots=True)
class Conv2dWeightAttributes:
    """The convolution's geometry, and the (rows, columns) of a filter."""

    stride: Stride
    padding: Padding
    dilation: Stride
    groups: Groups
    window: Extent
    wide: bool = False
    """True if 16-bit operands give a float32 product."""
    accumulate: bool = False
    """True if the product is added to a running sum."""


def _weight_attributes(a: Any, shape: tuple[int, ...]) -> Conv2dWeightAttributes:
    return Conv2dWeightAttributes(a.stride, a.padding, a.dilation, a.groups, (shape[2], shape[3]))


class Conv2dWeightGradient(Convolution):
    """dw from dy and x, or sum + dw with `accumulate`."""

    name, inputs, outputs = "conv2d_weight_gradient", ("dy", "x", "*sum"), ("dw",)
    may_overwrite = {"dw": ("sum",)}
    needs_contiguous = ("dy", "x")
    strided_axes = {"dy": 1, "x": 1}
    attributes = Conv2dWeightAttributes

    def infer(
        self,
        attributes: Conv2dWeightAttributes,
        dy: TensorType,
        x: TensorType,
        *sum: TensorType,
    ) -> TensorType:
        dtype = float_dtype(dy, x)
        if dy.rank != 4 or x.rank != 4:
            raise ShapeError(f"dy and x must be (batch, channels, height, width), got {dy} and {x}")
        shape = (dy.shape[1], max(1, x.shape[1] // attributes.groups), *attributes.window)
        _check_convolution(attributes, x, x.with_shape(shape), dy)
        dw = TensorType(shape, compute_dtype(dtype) if attributes.wide else dtype)
        check_sum(attributes.accumulate, sum, dw)
        return dw

    def geometry(self, node: Node) -> Geometry:
        dy, x = node.inputs[:2]
        return geometry_of(node.attributes, x.type, node.output.type, dy.type)

    def gradient_dy(self, node: Node, ddw: Value, x: Value) -> Value:
        ddw = cast(ddw, x.type.dtype)
        return apply(Conv2d, x, ddw, attributes=self.geometry(node).attributes).output

    def gradient_x(self, node: Node, ddw: Value, dy: Value) -> Value:
        attributes = _input_attributes(node.attributes, node.inputs[1].shape)
        ddw = cast(ddw, dy.type.dtype)
        return apply(Conv2dInputGradient, dy, ddw, attributes=attributes).output

    def gradient_sum(self, node: Node, ddw: Value) -> tuple[Value, ...]:
        return (ddw,) if node.attributes.accumulate else ()

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types: a tile of unfolded input, and the product of one image."""
        geometry = self.geometry(node)
        groups, k = geometry.attributes.groups, geometry.w[0]
        product = TensorType((groups, k // groups, geometry.depth), node.output.type.dtype)
        return (*super().scratch(node, device), product)

    def kernel(
        self, record: Recorder, node: Node, dy: Array, x: Array, *sum: Array, dw: Array
    ) -> None:
        geometry = self.geometry(node)
        start_sum(record, sum, dw)
        record(functools.partial(correlate, geometry, dy, x, dw, record.scratch))
