"""Convolution layers along one and three axes, and their transposes."""

from __future__ import annotations

import math
from typing import NamedTuple

from graphc.errors import OptionError, ShapeError, whole_number
from graphc.ir.builder import as_value, scope
from graphc.ir.graph import Value
from graphc.ops.conv_axes import (
    AxisWindows,
    Numbers,
    Padding,
    convolve,
    convolve_transposed,
    windows_of,
)
from graphc.ops.geometry import axis_numbers
from graphc.ops.weights import agree, bias_of, given_weight, he_weight, not_given


class _Layer(NamedTuple):
    """The arguments of a convolution layer, for any number of axes."""

    where: str
    filters: int | None
    window: Numbers | None
    stride: Numbers
    padding: Padding
    dilation: Numbers
    groups: int
    bias: Value | bool
    trainable: bool
    weight: Value | None

    def windows(self, x: Value, axes: int) -> tuple[AxisWindows, ...]:
        """Return the windows along each axis; raises `ShapeError` if x has other axes."""
        whole_number(f"{self.where}: groups", self.groups)
        rank = as_value(self.where, x).type.rank
        if rank != axes + 2 or x.shape[1] % self.groups:
            raise ShapeError(
                f"{self.where}: x is (batch, channels, and {axes} more) with channels in "
                f"{self.groups} groups, got {x.type}"
            )
        return windows_of(axes, self.stride, self.padding, self.dilation)

    def operands(self, x: Value, axes: int, transposed: bool) -> tuple[Value, Value | None]:
        """Return the filters and the bias, given or created in the current scope."""
        where, groups, size = self.where, self.groups, None
        if self.window is not None:
            size = axis_numbers(f"{where}: window", self.window, axes, 1)
        if self.weight is None:
            weight = self._made(x, size, transposed)
        else:
            form = "(channels, filters / groups" if transposed else "(filters, channels / groups"
            weight = given_weight(where, self.weight, f"{form}{', extent' * axes})", self.trainable)
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
            raise ShapeError(f"{self.where}: filters divide into {groups} groups, got {filters}")
        ends = (channels, filters // groups) if transposed else (filters, channels // groups)
        fan_in = channels // groups * math.prod(size)
        return he_weight(x, (*ends, *size), fan_in, self.trainable)

    def forward(self, x: Value, axes: int, name: str | None) -> Value:
        if name is not None:
            with scope(name):
                return self.forward(x, axes, None)
        windows = self.windows(x, axes)
        weight, bias = self.operands(x, axes, False)
        return convolve(x, weight, bias, windows, self.groups)

    def transposed(self, x: Value, axes: int, output_padding: Numbers, name: str | None) -> Value:
        if name is not None:
            with scope(name):
                return self.transposed(x, axes, output_padding, None)
        windows = self.windows(x, axes)
        extra = axis_numbers("output_padding", output_padding, axes, 0)
        if any(more >= max(a.stride, a.dilation) for more, a in zip(extra, windows, strict=True)):
            raise OptionError(
                f"{self.where}: output_padding stays below the stride or dilation, got "
                f"{output_padding!r}"
            )
        weight, bias = self.operands(x, axes, True)
        return convolve_transposed(x, weight, bias, windows, self.groups, extra)


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

    The result is (batch, filters, ⌊(length + before + behind - dilation · (window - 1) - 1) /
    stride⌋ + 1). `padding` (zeros) is one number, or ((before, behind),). Creates ``weight``
    (filters, channels / groups, window) and ``bias`` (filters,) as `conv2d` does, unless a `weight`
    is given. Then `bias` is a value of that shape, or there is none. The layer is a `conv2d` over
    one row. Raises the errors of `conv2d`.
    """
    layer = _Layer(
        "conv1d", filters, window, stride, padding, dilation, groups, bias, trainable, weight
    )
    return layer.forward(x, 1, name)


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
    (before, behind) per axis. Extents are those of `conv1d` along each axis. Creates ``weight``
    (filters, channels / groups, *window) and ``bias`` (filters,) as `conv2d` does, unless a
    `weight` is given. Then `bias` is a value of that shape, or there is none. The layer is a sum of
    `conv2d` over the window's depth. Raises the errors of `conv2d`.
    """
    layer = _Layer(
        "conv3d", filters, window, stride, padding, dilation, groups, bias, trainable, weight
    )
    return layer.forward(x, 3, name)


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
    before - behind + dilation · (window - 1) + 1 + output_padding). Creates ``weight`` (channels,
    filters / groups, window) and ``bias`` (filters,), or takes them, as `conv1d` does. Raises the
    errors of `conv1d`.
    """
    layer = _Layer(
        "conv_transpose1d", filters, window, stride, padding, dilation, groups, bias, trainable,
        weight,
    )  # fmt: skip
    return layer.transposed(x, 1, output_padding, name)


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

    x is float (batch, channels, depth, height, width). Each extent of the result is that of
    `conv_transpose1d`. Creates ``weight`` (channels, filters / groups, *window) and ``bias``
    (filters,), or takes them, as `conv3d` does. Raises the errors of `conv3d`.
    """
    layer = _Layer(
        "conv_transpose3d", filters, window, stride, padding, dilation, groups, bias, trainable,
        weight,
    )  # fmt: skip
    return layer.transposed(x, 3, output_padding, name)
