"""Convolution layers along one, two and three axes, and their transposes."""

from __future__ import annotations

import math
from typing import NamedTuple

from graphc.errors import OptionError, ShapeError, whole_number
from graphc.ir.builder import as_value, layer_scope
from graphc.ir.graph import Value
from graphc.ops.conv_axes import (
    AxisWindows,
    Numbers,
    Padding,
    convolve,
    convolve_transposed,
    windows_of,
)
from graphc.ops.geometry import Pair, Sides, axis_numbers
from graphc.ops.weights import agree, bias_of, given_weight, he_weight, not_given

EXTENTS = {1: "length", 2: "height, width", 3: "depth, height, width"}
"""Number of axes → the names of a map's axes after its channels."""

WINDOWS = {1: "columns", 2: "rows, columns", 3: "depth, rows, columns"}
"""Number of axes → the names of the axes of a window."""


class _Layer(NamedTuple):
    """The arguments of a convolution layer, for any number of axes."""

    where: str
    axes: int
    filters: int | None
    window: Numbers | None
    stride: Numbers
    padding: Padding
    dilation: Numbers
    groups: int
    bias: Value | bool
    trainable: bool
    name: str | None
    weight: Value | None

    def forward(self, x: Value) -> Value:
        with layer_scope(self.where, self.name):
            windows = self.windows(x)
            weight, bias = self.operands(x, False)
            return convolve(x, weight, bias, windows, self.groups)

    def transposed(self, x: Value, output_padding: Numbers) -> Value:
        with layer_scope(self.where, self.name):
            windows = self.windows(x)
            extra = axis_numbers(f"{self.where}: output_padding", output_padding, self.axes, 0)
            limits = (max(a.stride, a.dilation) for a in windows)
            if any(more >= limit for more, limit in zip(extra, limits, strict=True)):
                raise OptionError(
                    f"{self.where}: output_padding must be below the stride or dilation, got "
                    f"{output_padding!r}"
                )
            weight, bias = self.operands(x, True)
            return convolve_transposed(x, weight, bias, windows, self.groups, extra)

    def windows(self, x: Value) -> tuple[AxisWindows, ...]:
        """Return the windows along each axis.

        Raises `ShapeError` if x has another number of axes.
        """
        where, axes = self.where, self.axes
        groups = whole_number(f"{where}: groups", self.groups)
        if as_value(where, x).type.rank != axes + 2 or x.shape[1] % groups:
            divided = f" with channels divisible by the {groups} groups" if groups > 1 else ""
            raise ShapeError(
                f"{where}: x must be (batch, channels, {EXTENTS[axes]}){divided}, got {x.type}"
            )
        return windows_of(axes, self.stride, self.padding, self.dilation)

    def operands(self, x: Value, transposed: bool) -> tuple[Value, Value | None]:
        """Return the filters and the bias, given or created in the current scope."""
        where, groups, size = self.where, self.groups, None
        if self.window is not None:
            size = axis_numbers(f"{where}: window", self.window, self.axes, 1)
        if self.weight is None:
            weight = self._made(x, size, transposed)
        else:
            form = "channels, filters / groups" if transposed else "filters, channels / groups"
            form = f"({form}, {WINDOWS[self.axes]})"
            weight = given_weight(where, self.weight, form, self.trainable)
        filters = weight.shape[1] * groups if transposed else weight.shape[0]
        channels = weight.shape[0] if transposed else weight.shape[1] * groups
        agree(
            where, weight,
            {
                "filters": (self.filters, filters), "window": (size, weight.shape[2:]),
                "x's channels": (x.shape[1], channels),
            },
        )  # fmt: skip
        is_made = self.weight is None
        bias = bias_of(where, self.bias, filters, x.type.dtype, self.trainable, is_made)
        return weight, bias

    def _made(self, x: Value, size: tuple[int, ...] | None, transposed: bool) -> Value:
        if self.filters is None or size is None:
            raise not_given(self.where, filters=self.filters, window=size)
        filters = whole_number(f"{self.where}: filters", self.filters)
        groups, channels = self.groups, x.shape[1]
        if filters % groups:
            raise ShapeError(
                f"{self.where}: filters must be divisible by the {groups} groups, got {filters}"
            )
        ends = (channels, filters // groups) if transposed else (filters, channels // groups)
        fan_in = channels // groups * math.prod(size)
        return he_weight(self.where, x, (*ends, *size), fan_in, self.trainable)


def conv1d(
    x: Value,
    filters: int | None = None,
    window: Numbers | None = None,
    stride: Numbers = 1,
    padding: Padding = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    bias: Value | bool = True,
    trainable: bool = True,
    name: str | None = None,
    weight: Value | None = None,
) -> Value:
    """Convolve float x (batch, channels, length) with `filters` windows along its length.

    The result is (batch, filters, ⌊(length + before + after - dilation · (window - 1) - 1) /
    stride⌋ + 1). `padding` (zeros) is one number, or ((before, after),). Creates ``weight``
    (filters, channels / groups, window) and ``bias`` (filters,) as `conv2d` does, unless a `weight`
    is given. In that case `bias` must be a value (filters,); without it, no bias is added. The
    layer is a `conv2d` over one row. Raises the errors of `conv2d`.
    """
    layer = _Layer(
        "conv1d", 1, filters, window, stride, padding, dilation, groups, bias, trainable, name,
        weight,
    )  # fmt: skip
    return layer.forward(x)


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
    Padding may also be ((top, bottom), (left, right)); the sum of both sides then replaces 2 ·
    padding. With `groups`, each group of filters uses its own group of channels.

    Creates ``weight`` (filters, channels / groups, rows, columns) and ``bias`` (filters,) in the
    current scope, or in ``name`` inside it. The weight is initialized by He's rule: uniform within
    ±√(6 / fan_in), where fan_in is the number of elements of a filter. The bias is initialized with
    zeros. A given `weight` determines the sizes, and nothing is created. In that case `bias` must
    be a value; without it, no bias is added.

    Raises `ShapeError` if groups do not divide the channels or filters, no window fits, or a given
    size differs from that of the weight. Raises `OptionError` for other invalid numbers.
    """
    layer = _Layer(
        "conv2d", 2, filters, window, stride, padding, dilation, groups, bias, trainable, name,
        weight,
    )  # fmt: skip
    return layer.forward(x)


def conv3d(
    x: Value,
    filters: int | None = None,
    window: Numbers | None = None,
    stride: Numbers = 1,
    padding: Padding = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    bias: Value | bool = True,
    trainable: bool = True,
    name: str | None = None,
    weight: Value | None = None,
) -> Value:
    """Convolve float x (batch, channels, depth, height, width) with `filters` windows.

    `window`, `stride` and `dilation` are one number or one per axis. `padding` (zeros) may also be
    (before, after) per axis. The extents of the result follow the formula of `conv1d` along each
    axis. Creates ``weight`` (filters, channels / groups, *window) and ``bias`` (filters,) as
    `conv2d` does, unless a `weight` is given. In that case `bias` must be a value (filters,);
    without it, no bias is added. The layer is a sum of `conv2d` over the window's depth. Raises the
    errors of `conv2d`.
    """
    layer = _Layer(
        "conv3d", 3, filters, window, stride, padding, dilation, groups, bias, trainable, name,
        weight,
    )  # fmt: skip
    return layer.forward(x)


def conv_transpose1d(
    x: Value,
    filters: int | None = None,
    window: Numbers | None = None,
    stride: Numbers = 1,
    padding: Padding = 0,
    output_padding: Numbers = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    bias: Value | bool = True,
    trainable: bool = True,
    name: str | None = None,
    weight: Value | None = None,
) -> Value:
    """Apply the transpose of `conv1d`: each element of x adds a window to the output.

    x is float (batch, channels, length). The result is (batch, filters, (length - 1) · stride -
    before - after + dilation · (window - 1) + 1 + output_padding). Creates ``weight`` (channels,
    filters / groups, window) and ``bias`` (filters,), or takes them, as `conv1d` does. Raises the
    errors of `conv1d`.
    """
    layer = _Layer(
        "conv_transpose1d", 1, filters, window, stride, padding, dilation, groups, bias, trainable,
        name, weight,
    )  # fmt: skip
    return layer.transposed(x, output_padding)


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
    layer = _Layer(
        "conv_transpose2d", 2, filters, window, stride, padding, dilation, groups, bias, trainable,
        name, weight,
    )  # fmt: skip
    return layer.transposed(x, output_padding)


def conv_transpose3d(
    x: Value,
    filters: int | None = None,
    window: Numbers | None = None,
    stride: Numbers = 1,
    padding: Padding = 0,
    output_padding: Numbers = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    bias: Value | bool = True,
    trainable: bool = True,
    name: str | None = None,
    weight: Value | None = None,
) -> Value:
    """Apply the transpose of `conv3d`: each element of x adds a window to the output.

    x is float (batch, channels, depth, height, width). Each extent of the result follows the
    formula of `conv_transpose1d`. Creates ``weight`` (channels, filters / groups, *window) and
    ``bias`` (filters,), or takes them, as `conv3d` does. Raises the errors of `conv3d`.
    """
    layer = _Layer(
        "conv_transpose3d", 3, filters, window, stride, padding, dilation, groups, bias, trainable,
        name, weight,
    )  # fmt: skip
    return layer.transposed(x, output_padding)
