"""Convolutions along one and three axes, built on two-dimensional convolutions.

A tensor with one axis is treated as a map with one row; the reshapes before and after are views.
With three axes, the first, the depth, is moved to the front, where the images used by one depth
index of the filters, a tap, are contiguous. One two-dimensional convolution per tap is computed,
and the results are summed. A volume is copied once, and nothing is unfolded along its depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from graphc.errors import ShapeError
from graphc.ir.builder import apply
from graphc.ir.graph import Value
from graphc.ops.conv import Conv2d, Conv2dInputAttributes, Conv2dInputGradient
from graphc.ops.elementwise import add
from graphc.ops.geometry import Conv2dAttributes, Pair, axis_numbers, axis_sides, padding_of
from graphc.ops.shape import (
    PadSlice,
    PadSliceAttributes,
    Slice,
    SliceAttributes,
    reshape,
    transpose,
)

Numbers = int | Sequence[int]
"""One number for all axes, or one per axis."""

Padding = int | Sequence[int] | Sequence[Pair]
"""One number for all sides, one per axis, or (before, after) per axis."""


class AxisWindows(NamedTuple):
    """The stride, padding and dilation of windows along one axis."""

    stride: int = 1
    before: int = 0
    behind: int = 0
    dilation: int = 1

    def output(self, extent: int, taps: int) -> int:
        """Return the number of windows of `taps` elements in an axis.

        Raises `ShapeError` if none fits.
        """
        workspace = extent + self.before + self.behind - self.dilation * (taps - 1) - 1
        if workspace < 0:
            raise ShapeError(
                f"a window of {taps} with dilation {self.dilation} does not fit into an extent of "
                f"{extent} with padding ({self.before}, {self.behind})"
            )
        return workspace // self.stride + 1

    def input(self, windows: int, taps: int, extra: int) -> int:
        """Return the output extent of a transposed convolution of `windows` elements.

        `extra` pads its end.
        """
        reach = (windows - 1) * self.stride + self.dilation * (taps - 1) + 1
        if reach + extra <= self.before + self.behind:
            raise ShapeError(
                f"a transposed convolution of extent {reach + extra} is empty with the padding "
                f"({self.before}, {self.behind}); reduce the padding"
            )
        return reach + extra - self.before - self.behind


def windows_of(
    axes: int, stride: Numbers, padding: Padding, dilation: Numbers
) -> tuple[AxisWindows, ...]:
    """Return the windows along each axis; raises `OptionError` for invalid numbers."""
    steps = axis_numbers("stride", stride, axes, 1)
    sides = axis_sides("padding", padding, axes)
    spread = axis_numbers("dilation", dilation, axes, 1)
    return tuple(AxisWindows(s, *side, d) for s, side, d in zip(steps, sides, spread, strict=True))


def _attributes(windows: Sequence[AxisWindows], groups: int) -> Conv2dAttributes:
    rows, columns = windows
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
    """Convolve x (batch, channels, *extents) with w (filters, channels / groups, *window)."""
    bias_operand = () if bias is None else (bias,)
    if len(windows) == 2:
        return apply(Conv2d, x, w, *bias_operand, attributes=_attributes(windows, groups)).output
    if len(windows) == 1:
        attributes = _attributes((AxisWindows(), *windows), groups)
        y = apply(Conv2d, _row(x), _row(w), *bias_operand, attributes=attributes).output
        return reshape(y, (*y.shape[:2], y.shape[3]))
    depth, taps = windows[0], w.shape[2]
    batch, count = x.shape[0], depth.output(x.shape[2], taps)
    frames = _padded(transpose(x, (2, 0, 1, 3, 4)), depth)
    attributes, total = _attributes(windows[1:], groups), None
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
    """Reshape one axis to the columns of one row."""
    return reshape(x, (*x.shape[:2], 1, x.shape[2]))


def _tap(w: Value, tap: int) -> Value:
    """Return the two-dimensional filters at depth index `tap`."""
    return reshape(_part(w, 2, tap, tap + 1, 1), (*w.shape[:2], *w.shape[3:]))


def _part(x: Value, axis: int, start: int, stop: int, step: int) -> Value:
    """Return a strided slice of one axis as a view; x itself if the slice is the whole axis."""
    if (start, stop, step) == (0, x.shape[axis], 1):
        return x
    starts, stops, steps = [0] * x.type.rank, list(x.shape), [1] * x.type.rank
    starts[axis], stops[axis], steps[axis] = start, stop, min(step, x.shape[axis])
    attributes = SliceAttributes(tuple(starts), tuple(stops), tuple(steps))
    return apply(Slice, x, attributes=attributes).output


def _spread(x: Value, extent: int, start: int, step: int) -> Value:
    """Return `extent` images: those of x at indices start, start + step, ..., and zeros
    elsewhere."""
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
    """Apply the transpose of `convolve` with w (channels, filters / groups, *window).

    `extra` is the output padding: the number of elements added at the end of each axis.
    """
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
    a, (rows, columns) = _attributes(windows, groups), extent
    attributes = Conv2dInputAttributes(a.stride, a.padding, a.dilation, groups, (rows, columns))
    return apply(Conv2dInputGradient, x, w, attributes=attributes).output


def _transposed_volume(
    x: Value, w: Value, windows: Sequence[AxisWindows], groups: int, extents: Sequence[int]
) -> Value:
    """Spread each tap's maps along the depth, sum them, and cut off the padding."""
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
