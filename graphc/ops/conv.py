"""Two-dimensional convolution on (batch, channels, height, width), and its two gradients.

All three are linear in both operands, so each is differentiated by the other two. The CPU
arithmetic is in `graphc.ops.cpu.convolution`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

from graphc.errors import OptionError, ShapeError, whole_number
from graphc.ir.builder import apply, as_value, scope
from graphc.ir.device import Device
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Cost, Op, Recorder, Strided
from graphc.ir.types import TensorType, compute_dtype, is_channels_last
from graphc.ops.accumulation import check_sum, start_sum
from graphc.ops.choice import cast
from graphc.ops.cpu.convolution import columns_shape, convolve, convolve_back, correlate
from graphc.ops.elementwise import add, float_dtype
from graphc.ops.geometry import (
    Conv2dAttributes,
    Extent,
    Geometry,
    Groups,
    Padding,
    Pair,
    Sides,
    Stride,
    geometry_of,
    pair,
    plain_attributes,
    sides,
)
from graphc.ops.reduce import sum
from graphc.ops.shape import reshape
from graphc.ops.weights import agree, bias_of, given_weight, he_weight, not_given


class Convolution(Op):
    """Base of the three products: cost, and scratch for one tile of unfolded input."""

    precision = "narrow"
    on_maps = True
    convolves = True

    def geometry(self, node: Node) -> Geometry:
        """Return the convolution that this node belongs to."""
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
        """Return the inputs to copy to contiguous memory; channels-last maps are read in place."""
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
                f"x is (batch, channels, height, width) and w (filters, channels / groups, rows, "
                f"columns), got {x}, {w} and groups={attributes.groups}"
            )
        if w.shape[0] % attributes.groups:
            raise ShapeError(f"{w.shape[0]} filters do not divide into {attributes.groups} groups")
        if any(b.shape != w.shape[:1] for b in bias) or len(bias) > 1:
            raise ShapeError(f"the bias has one number a filter, ({w.shape[0]},)")
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
            f"a convolution of {x} by {w} is {found}, and dy is {y}; output_padding stays below "
            "the stride"
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
    """dx from dy and w; as a separate layer, the transposed convolution."""

    name, inputs, outputs = "conv2d_input_gradient", ("dy", "w"), ("dx",)
    needs_contiguous = ("dy", "w")
    strided_axes = {"dy": 1, "dx": 1}
    attributes = Conv2dInputAttributes

    def infer(self, attributes: Conv2dInputAttributes, dy: TensorType, w: TensorType) -> TensorType:
        dtype = float_dtype(dy, w)
        if dy.rank != 4 or w.rank != 4 or dy.shape[1] != w.shape[0]:
            raise ShapeError(
                f"dy is (batch, filters, height, width) and w (filters, channels, rows, columns), "
                f"got {dy} and {w}"
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
    """dw from dy and x, or sum + dw."""

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
            raise ShapeError(f"dy and x are (batch, channels, height, width), got {dy} and {x}")
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
        """Return a tile of unfolded input, and the product of one image."""
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


# --- functions ---


def conv2d(
    x: Value,
    filters: int | None = None,
    window: int | Pair | None = None,
    stride: int | Pair = 1,
    padding: Sides = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
    bias: Value | bool = True,
    trainable: bool = True,
    name: str | None = None,
    weight: Value | None = None,
) -> Value:
    """Convolve float x (batch, channels, height, width) with `filters` windows.

    The result is (batch, filters, ⌊(height + 2 · padding - dilation · (window - 1) - 1) / stride⌋ +
    1, ...). `window`, `stride`, `padding` (zeros) and `dilation` are one number or (rows, columns).
    Padding may also be ((top, bottom), (left, right)), whose sum replaces 2 · padding. With
    `groups`, each group of filters uses its own group of channels.

    Creates ``weight`` (filters, channels / groups, rows, columns) and ``bias`` (filters,) in the
    current scope, or in ``name`` inside it. The weight is initialized by He's rule (uniform within
    √(6 / inputs of a filter)), the bias with zeros. A given `weight` determines the sizes, and
    nothing is created; then `bias` is a value, or there is none.

    Raises `ShapeError` if groups do not divide the channels or filters, no window fits, or a given
    size is not the weight's. Raises `OptionError` for other invalid numbers.
    """
    if name is not None:
        with scope(name):
            return conv2d(
                x, filters, window, stride, padding, dilation, groups, bias, trainable,
                weight=weight,
            )  # fmt: skip
    attributes = _attributes(stride, padding, dilation, groups)
    if as_value("conv2d", x).type.rank != 4 or x.shape[1] % groups:
        raise ShapeError(
            f"conv2d: x is (batch, channels, height, width) with channels in {groups} groups, got "
            f"{x.type}"
        )
    channels = x.shape[1] // groups
    if weight is None:
        if filters is None or window is None:
            raise not_given("conv2d", filters=filters, window=window)
        size = pair("conv2d: window", window, 1)
        shape = (whole_number("conv2d: filters", filters), channels, *size)
        w = he_weight(x, shape, channels * math.prod(size), trainable)
    else:
        w = given_weight("conv2d", weight, FILTERS_FORM, trainable)
        agree("conv2d", w, {"filters": (filters, w.shape[0]), **_window("conv2d", window, w)})
    b = bias_of("conv2d", bias, w.shape[0], x.type.dtype, trainable, weight is None)
    return apply(Conv2d, x, w, *(() if b is None else (b,)), attributes=attributes).output


FILTERS_FORM = "(filters, channels / groups, rows, columns)"
TRANSPOSED_FORM = "(channels, filters / groups, rows, columns)"


def _window(
    where: str, window: int | Pair | None, weight: Value
) -> dict[str, tuple[Pair | None, tuple[int, ...]]]:
    """Return the given window, and that of a given weight."""
    stated = None if window is None else pair(f"{where}: window", window, 1)
    return {"window": (stated, weight.shape[2:])}


def _attributes(
    stride: int | Pair, padding: Sides, dilation: int | Pair, groups: int
) -> Conv2dAttributes:
    if not isinstance(groups, int) or groups < 1:
        raise OptionError(f"groups is a whole number from 1 up, got {groups!r}")
    return Conv2dAttributes(
        pair("stride", stride, 1),
        sides("padding", padding),
        pair("dilation", dilation, 1),
        groups,
    )


def conv_transpose2d(
    x: Value,
    filters: int | None = None,
    window: int | Pair | None = None,
    stride: int | Pair = 1,
    padding: Sides = 0,
    output_padding: int | Pair = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
    bias: Value | bool = True,
    trainable: bool = True,
    name: str | None = None,
    weight: Value | None = None,
) -> Value:
    """Apply a transposed convolution: each element of x adds a window to the output.

    x is float (batch, channels, height, width). The result is (batch, filters, (height - 1) ·
    stride - 2 · padding + dilation · (window - 1) + 1 + output_padding, ...). Creates ``weight``
    (channels, filters / groups, rows, columns), initialized as in `conv2d`, and ``bias``
    (filters,), zero, in the current scope, or in ``name`` inside it. A `weight` and a `bias` may be
    given as for `conv2d`. Raises the errors of `conv2d`.
    """
    if name is not None:
        with scope(name):
            return conv_transpose2d(
                x, filters, window, stride, padding, output_padding, dilation, groups, bias,
                trainable, weight=weight,
            )  # fmt: skip
    where = "conv_transpose2d"
    a = _attributes(stride, padding, dilation, groups)
    if as_value(where, x).type.rank != 4 or x.shape[1] % groups:
        raise ShapeError(
            f"{where}: x is (batch, channels, height, width) with channels in {groups} groups, got "
            f"{x.type}"
        )
    if weight is None:
        if filters is None or window is None:
            raise not_given(where, filters=filters, window=window)
        kernel, filters = pair("window", window, 1), whole_number(f"{where}: filters", filters)
        if filters % groups:
            raise ShapeError(f"{where}: filters divide into {groups} groups, got {filters}")
        fan_in = x.shape[1] // groups * math.prod(kernel)
        w = he_weight(x, (x.shape[1], filters // groups, *kernel), fan_in, trainable)
    else:
        w = given_weight(where, weight, TRANSPOSED_FORM, trainable)
        sizes = {"x's channels": (x.shape[1], w.shape[0]), **_window(where, window, w)}
        agree(where, w, {"filters": (filters, w.shape[1] * groups), **sizes})
    extra, size = pair("output_padding", output_padding, 0), w.shape[2:]
    extent = [
        (x.shape[2 + i] - 1) * a.stride[i] - before - behind + a.dilation[i] * (size[i] - 1)
        + extra[i] + 1
        for i, (before, behind) in enumerate(zip(a.padding[:2], a.padding[-2:], strict=True))
    ]  # fmt: skip
    attributes = _input_attributes(a, (0, 0, *extent))
    y = apply(Conv2dInputGradient, x, w, attributes=attributes).output
    b = bias_of(where, bias, y.shape[1], x.type.dtype, trainable, weight is None)
    return y if b is None else add(y, reshape(b, (y.shape[1], 1, 1)))
