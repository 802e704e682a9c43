"""Convolutions along one and three axes, by those along two.

One axis is a row: reshapes around it are views. Of three, the first is taken apart: it is brought to
the front, where the images that one tap of the filters reads lie in one piece, and the products of
all taps are summed. So a volume is copied once, and nothing is unfolded along its depth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from graphc.errors import OptionError, ShapeError
from graphc.ir.builder import apply, as_value, parameter, scope
from graphc.ir.graph import Initial, Value
from graphc.ops.conv import (
    Conv2d,
    Conv2dInputAttributes,
    Conv2dInputGradient,
    axis_numbers,
    axis_sides,
    padding_of,
)
from graphc.ops.elementwise import add
from graphc.ops.geometry import Conv2dAttributes, Pair
from graphc.ops.shape import (
    PadSlice,
    PadSliceAttributes,
    Slice,
    SliceAttributes,
    reshape,
    transpose,
)

Numbers = int | Sequence[int]
"""One number for all axes, or one an axis."""

Padding = int | Sequence[int] | Sequence[Pair]
"""One number for all sides, one an axis, or (before, behind) an axis."""


class AxisWindows(NamedTuple):
    """How windows lie along one axis."""

    stride: int = 1
    before: int = 0
    behind: int = 0
    dilation: int = 1

    def output(self, extent: int, taps: int) -> int:
        """How many windows there are; raises `ShapeError` where none fits."""
        room = extent + self.before + self.behind - self.dilation * (taps - 1) - 1
        if room < 0:
            raise ShapeError(
                f"a window of {taps} with dilation {self.dilation} does not fit into {extent} with "
                f"padding ({self.before}, {self.behind})"
            )
        return room // self.stride + 1

    def input(self, windows: int, taps: int, extra: int) -> int:
        """The extent that a transposed convolution makes of so many windows."""
        reach = (windows - 1) * self.stride + self.dilation * (taps - 1) + 1
        if reach + extra <= self.before + self.behind:
            raise ShapeError(
                f"padding ({self.before}, {self.behind}) leaves nothing of a transposed "
                f"convolution over {reach + extra}"
            )
        return reach + extra - self.before - self.behind


def windows_of(
    axes: int, stride: Numbers, padding: Padding, dilation: Numbers
) -> tuple[AxisWindows, ...]:
    """The windows along each axis; raises `OptionError` for other numbers."""
    steps = axis_numbers("stride", stride, axes, 1)
    sides = axis_sides("padding", padding, axes)
    spread = axis_numbers("dilation", dilation, axes, 1)
    return tuple(AxisWindows(s, *side, d) for s, side, d in zip(steps, sides, spread, strict=True))


def _attributes(rows: AxisWindows, columns: AxisWindows, groups: int) -> Conv2dAttributes:
    return Conv2dAttributes(
        (rows.stride, columns.stride),
        padding_of(((rows.before, rows.behind), (columns.before, columns.behind))),
        (rows.dilation, columns.dilation),
        groups,
    )


# --- forward ---


def convolve(
    x: Value, w: Value, bias: Value | None, windows: Sequence[AxisWindows], groups: int
) -> Value:
    """Convolution of x (batch, channels, *extents) by w (filters, channels / groups, *window)."""
    bias_operand = () if bias is None else (bias,)
    if len(windows) == 2:
        return apply(Conv2d, x, w, *bias_operand, attributes=_attributes(*windows, groups)).output
    if len(windows) == 1:
        attributes = _attributes(AxisWindows(), *windows, groups)
        y = apply(Conv2d, _row(x), _row(w), *bias_operand, attributes=attributes).output
        return reshape(y, (*y.shape[:2], y.shape[3]))
    depth, taps = windows[0], w.shape[2]
    batch, count = x.shape[0], depth.output(x.shape[2], taps)
    frames = _padded(transpose(x, (2, 0, 1, 3, 4)), depth)
    attributes, total = _attributes(*windows[1:], groups), None
    for tap in range(taps):
        start = tap * depth.dilation
        part = _part(frames, 0, start, start + (count - 1) * depth.stride + 1, depth.stride)
        images = reshape(part, (count * batch, *x.shape[1:2], *x.shape[3:]))
        added = bias_operand if total is None else ()
        y = apply(Conv2d, images, _tap(w, tap), *added, attributes=attributes).output
        total = y if total is None else add(total, y)
    assert total is not None
    return transpose(reshape(total, (count, batch, *total.shape[1:])), (1, 2, 0, 3, 4))


def _row(x: Value) -> Value:
    """One axis as the columns of one row."""
    return reshape(x, (*x.shape[:2], 1, x.shape[2]))


def _tap(w: Value, tap: int) -> Value:
    """The filters' (rows, columns) at one place of their depth."""
    return reshape(_part(w, 2, tap, tap + 1, 1), (*w.shape[:2], *w.shape[3:]))


def _part(x: Value, axis: int, start: int, stop: int, step: int) -> Value:
    """A regular part of one axis, a view; x itself where that is all of it."""
    if (start, stop, step) == (0, x.shape[axis], 1):
        return x
    starts, stops, steps = [0] * x.type.rank, list(x.shape), [1] * x.type.rank
    starts[axis], stops[axis], steps[axis] = start, stop, min(step, x.shape[axis])
    attributes = SliceAttributes(tuple(starts), tuple(stops), tuple(steps))
    return apply(Slice, x, attributes=attributes).output


def _spread(x: Value, extent: int, start: int, step: int) -> Value:
    """x along the first axis of zeros: its images `step` apart from `start` on."""
    count, rest = x.shape[0], x.shape[1:]
    stop = start + (count - 1) * step + 1
    zeros = (0,) * len(rest)
    attributes = PadSliceAttributes(
        (extent, *rest), (start, *zeros), (stop, *rest), (min(step, extent), *(1 for _ in rest))
    )
    return apply(PadSlice, x, attributes=attributes).output


def _padded(frames: Value, depth: AxisWindows) -> Value:
    if not depth.before and not depth.behind:
        return frames
    return _spread(frames, depth.before + frames.shape[0] + depth.behind, depth.before, 1)


# --- transposed ---


def convolve_transposed(
    x: Value,
    w: Value,
    bias: Value | None,
    windows: Sequence[AxisWindows],
    groups: int,
    extra: Sequence[int],
) -> Value:
    """The transpose of `convolve` by w (channels, filters / groups, *window); `extra` is added
    behind each axis."""
    extents = [
        axis.input(n, taps, more)
        for axis, n, taps, more in zip(windows, x.shape[2:], w.shape[2:], extra, strict=True)
    ]
    if len(windows) == 1:
        one_row = (AxisWindows(), *windows)
        y = _transposed_maps(_row(x), _row(w), one_row, groups, (1, *extents))
        y = reshape(y, (*y.shape[:2], *extents))
    elif len(windows) == 2:
        y = _transposed_maps(x, w, windows, groups, extents)
    else:
        y = _transposed_volume(x, w, windows, groups, extents)
    return y if bias is None else add(y, reshape(bias, (-1, *(1 for _ in windows))))


def _transposed_maps(
    x: Value, w: Value, windows: Sequence[AxisWindows], groups: int, extent: Sequence[int]
) -> Value:
    a, (rows, columns) = _attributes(*windows, groups), extent
    attributes = Conv2dInputAttributes(a.stride, a.padding, a.dilation, groups, (rows, columns))
    return apply(Conv2dInputGradient, x, w, attributes=attributes).output


def _transposed_volume(
    x: Value, w: Value, windows: Sequence[AxisWindows], groups: int, extents: Sequence[int]
) -> Value:
    """Each tap's maps spread along the depth, summed, and what is padding cut off."""
    depth, (batch, channels, count) = windows[0], x.shape[:3]
    images = reshape(transpose(x, (2, 0, 1, 3, 4)), (count * batch, channels, *x.shape[3:]))
    last = (count - 1) * depth.stride + 1
    whole = max(last + depth.dilation * (w.shape[2] - 1), depth.before + extents[0])
    total = None
    for tap in range(w.shape[2]):
        y = _transposed_maps(images, _tap(w, tap), windows[1:], groups, extents[1:])
        frames = reshape(y, (count, batch, *y.shape[1:]))
        spread = _spread(frames, whole, tap * depth.dilation, depth.stride)
        total = spread if total is None else add(total, spread)
    assert total is not None
    inner = _part(total, 0, depth.before, depth.before + extents[0], 1)
    return transpose(inner, (1, 2, 0, 3, 4))


# --- layers ---


class _Layer(NamedTuple):
    """What a convolution layer was given, the same for all numbers of axes."""

    where: str
    filters: int | None
    window: Numbers | None
    stride: Numbers
    padding: Padding
    dilation: Numbers
    groups: int
    bias: bool | Value
    trainable: bool
    weight: Value | None

    def windows(self, x: Value, axes: int) -> tuple[AxisWindows, ...]:
        """The windows along each axis; raises `ShapeError` for an x that has other axes."""
        if not isinstance(self.groups, int) or self.groups < 1:
            raise OptionError(
                f"{self.where}: groups is a whole number from 1 up, got {self.groups!r}"
            )
        rank = as_value(self.where, x).type.rank
        if rank != axes + 2 or x.shape[1] % self.groups:
            raise ShapeError(
                f"{self.where}: x is (batch, channels, and {axes} more) with channels in "
                f"{self.groups} groups, got {x.type}"
            )
        return windows_of(axes, self.stride, self.padding, self.dilation)

    def operands(self, x: Value, axes: int, transposed: bool) -> tuple[Value, Value | None]:
        """The filters and the bias: those given, or parameters made in the current scope."""
        weight = self.weight
        if weight is None:
            weight = self._filters(x, axes, transposed)
        elif as_value(self.where, weight).type.rank != axes + 2:
            raise ShapeError(f"{self.where}: a weight has {axes + 2} axes, got {weight.type}")
        if isinstance(self.bias, Value):
            return weight, self.bias
        if not self.bias or self.weight is not None:
            return weight, None
        filters = self.filters
        assert filters is not None
        return weight, parameter("bias", (filters,), x.type.dtype, trainable=self.trainable)

    def _filters(self, x: Value, axes: int, transposed: bool) -> Value:
        filters, groups, channels = self.filters, self.groups, x.shape[1]
        if filters is None or self.window is None:
            raise OptionError(f"{self.where}: give filters and window, or a weight")
        size = axis_numbers(f"{self.where}: window", self.window, axes, 1)
        if not isinstance(filters, int) or filters < 1 or filters % groups:
            raise ShapeError(f"{self.where}: filters divide into {groups} groups, got {filters!r}")
        bound = Initial("uniform", math.sqrt(6 / (channels // groups * math.prod(size))))
        ends = (channels, filters // groups) if transposed else (filters, channels // groups)
        return parameter("weight", (*ends, *size), x.type.dtype, bound, self.trainable)

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
    bias: bool | Value = True,
    trainable: bool = True,
    name: str | None = None,
    weight: Value | None = None,
) -> Value:
    """Convolution of float x (batch, channels, length) with `filters` windows along its length.

    The result is (batch, filters, ⌊(length + before + behind - dilation · (window - 1) - 1) /
    stride⌋ + 1). `padding` (zeros) is one number, or ((before, behind),). Makes ``weight``
    (filters, channels / groups, window) and ``bias`` (filters,) as `conv2d` does, unless a `weight`
    is given; then `bias` is a value of that shape, or there is none. It is `conv2d` over one row.
    Raises what `conv2d` does.
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
    bias: bool | Value = True,
    trainable: bool = True,
    name: str | None = None,
    weight: Value | None = None,
) -> Value:
    """Convolution of float x (batch, channels, depth, height, width) with `filters` windows.

    `window`, `stride` and `dilation` are one number or one an axis, `padding` (zeros) also (before,
    behind) an axis; extents are those of `conv1d` along each axis. Makes ``weight`` (filters,
    channels / groups, *window) and ``bias`` (filters,) as `conv2d` does, unless a `weight` is
    given; then `bias` is a value of that shape, or there is none. It is a sum of `conv2d` over the
    window's depth. Raises what `conv2d` does.
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
    bias: bool | Value = True,
    trainable: bool = True,
    name: str | None = None,
    weight: Value | None = None,
) -> Value:
    """The transpose of `conv1d`: each element of x adds a window to the output.

    x is float (batch, channels, length), the result (batch, filters, (length - 1) · stride -
    before - behind + dilation · (window - 1) + 1 + output_padding). Makes ``weight`` (channels,
    filters / groups, window) and ``bias`` (filters,), or takes them, as `conv1d` does, and raises
    what it does.
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
    bias: bool | Value = True,
    trainable: bool = True,
    name: str | None = None,
    weight: Value | None = None,
) -> Value:
    """The transpose of `conv3d`: each element of x adds a window to the output.

    x is float (batch, channels, depth, height, width), each extent of the result that of
    `conv_transpose1d`. Makes ``weight`` (channels, filters / groups, *window) and ``bias``
    (filters,), or takes them, as `conv3d` does, and raises what it does.
    """
    layer = _Layer(
        "conv_transpose3d", filters, window, stride, padding, dilation, groups, bias, trainable,
        weight,
    )  # fmt: skip
    return layer.transposed(x, 3, output_padding, name)
