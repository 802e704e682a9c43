"""Pooling along one, two and three axes, built on two-dimensional pooling.

One axis is treated as a map with one row. With three axes, the last two are pooled first, then the
first. The reshapes before and after are views, and the result of max pooling is exactly the maximum
of each window. Average pooling over a map of ones gives the fraction of each window inside the map.
A mean that excludes padding is therefore a quotient of two poolings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphc.errors import OptionError, ShapeError, quoted, truth
from graphc.ir.builder import apply, as_value
from graphc.ir.graph import Node, Value
from graphc.ir.op import Op
from graphc.ops.choice import maximum
from graphc.ops.conv_axes import AxisWindows, Numbers, Padding
from graphc.ops.elementwise import div, mul, neg, sqrt
from graphc.ops.geometry import axis_numbers, axis_sides, padding_of
from graphc.ops.pool import AveragePool2d, MaxPool2d, Pool2dAttributes
from graphc.ops.power import power
from graphc.ops.reduce import mean
from graphc.ops.shape import full, reshape
from graphc.ops.statistics import in_float32

Window = tuple[int, AxisWindows]
"""Along one axis: the number of elements of a window, and stride, padding and dilation."""

ONE: Window = (1, AxisWindows())


def pool_windows(
    where: str,
    allowed: Sequence[int],
    x: Value,
    window: Numbers,
    stride: Numbers | None,
    padding: Padding,
    dilation: Numbers,
    ceil_mode: bool,
) -> tuple[Window, ...]:
    """Return the windows along each axis after the channels of x.

    `allowed` lists the allowed numbers of axes after the channels. With `ceil_mode`, a last window
    may reach beyond the trailing padding, which is increased to contain it. It must start inside x
    or in the leading padding. Raises `ShapeError` and `OptionError` for invalid arguments.
    """
    axes = as_value(where, x).type.rank - 2
    if axes not in allowed:
        numbers = " or ".join(map(str, allowed))
        raise ShapeError(
            f"{where}: x must be (batch, channels, and {numbers} more axes), got {x.type}"
        )
    is_ceil = truth(f"{where}: ceil_mode", ceil_mode)
    sizes = axis_numbers(f"{where}: window", window, axes, 1)
    steps = sizes if stride is None else axis_numbers(f"{where}: stride", stride, axes, 1)
    sides = axis_sides(f"{where}: padding", padding, axes)
    spread = axis_numbers(f"{where}: dilation", dilation, axes, 1)
    found = []
    for n, size, step, (before, behind), d in zip(
        x.shape[2:], sizes, steps, sides, spread, strict=True
    ):
        if is_ceil:
            reach = d * (size - 1) + 1
            count = -(-(n + before + behind - reach) // step) + 1
            count -= (count - 1) * step >= n + before
            behind = max(behind, (count - 1) * step + reach - n - before)
        found.append((size, AxisWindows(step, before, behind, d)))
    return tuple(found)


def pooled(op: type[Op], x: Value, windows: Sequence[Window]) -> Value:
    """Apply a two-dimensional pooling op along one, two or three axes."""
    batch, channels, *extents = x.shape
    if len(windows) == 1:
        y = _maps(op, reshape(x, (batch, channels, 1, *extents)), ONE, *windows)
        return reshape(y, (batch, channels, y.shape[3]))
    if len(windows) == 2:
        return _maps(op, x, *windows)
    depth, rows, columns = extents
    y = _maps(op, reshape(x, (batch, channels * depth, rows, columns)), *windows[1:])
    rows, columns = y.shape[2:]
    y = _maps(op, reshape(y, (batch, channels, depth, rows * columns)), windows[0], ONE)
    return reshape(y, (batch, channels, y.shape[2], rows, columns))


def _maps(op: type[Op], x: Value, rows: Window, columns: Window) -> Value:
    if (rows, columns) == (ONE, ONE):
        return x
    return pool_node(op, x, rows, columns).outputs[0]


def pool_node(op: type[Op], x: Value, rows: Window, columns: Window) -> Node:
    """Return a new pooling node on x (batch, channels, height, width)."""
    (height, down), (width, across) = rows, columns
    attributes = Pool2dAttributes(
        (height, width),
        (down.stride, across.stride),
        padding_of(((down.before, down.behind), (across.before, across.behind))),
        (down.dilation, across.dilation),
    )
    return apply(op, x, attributes=attributes)


def _average(
    where: str,
    axes: int,
    x: Value,
    window: Numbers,
    stride: Numbers | None,
    padding: Padding,
    dilation: Numbers,
    ceil_mode: bool,
    count_include_pad: bool,
) -> Value:
    """Return the mean of each window of x (batch, channels, and `axes` more axes)."""
    windows = pool_windows(where, (axes,), x, window, stride, padding, dilation, ceil_mode)
    means = pooled(AveragePool2d, x, windows)
    sides = axis_sides(f"{where}: padding", padding, axes)
    counted = sides if count_include_pad else ((0, 0),) * axes
    if all((a.before, a.behind) == side for (_, a), side in zip(windows, counted, strict=True)):
        return means
    extents = [
        n + before + behind for n, (before, behind) in zip(x.shape[2:], counted, strict=True)
    ]
    over_ones = [
        (size, axis._replace(before=axis.before - before, behind=axis.behind - behind))
        for (size, axis), (before, behind) in zip(windows, counted, strict=True)
    ]
    ones = full((1, 1, *extents), 1.0, x.type.dtype)
    return div(means, pooled(AveragePool2d, ones, over_ones))


# --- functions ---


def max_pool1d(
    x: Value,
    window: Numbers,
    stride: Numbers | None = None,
    padding: Padding = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
) -> Value:
    """Return the largest element of each window of x (batch, channels, length).

    The result is (batch, channels, ⌊(length + before + after - dilation · (window - 1) - 1) /
    stride⌋ + 1). With `ceil_mode` the quotient is rounded up, but a last window that would start
    after x is dropped. The default stride is the window. `padding` is one number or ((before,
    after),), and padding is never the maximum. Raises `ShapeError` if no window fits, if a window
    has more than 256 elements, or if padding is as wide as a window. Raises `OptionError` for other
    invalid numbers.
    """
    where = "max_pool1d"
    windows = pool_windows(where, (1,), x, window, stride, padding, dilation, ceil_mode)
    return pooled(MaxPool2d, x, windows)


def max_pool2d(
    x: Value,
    window: Numbers,
    stride: Numbers | None = None,
    padding: Padding = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
) -> Value:
    """Return the largest element of each window of x (batch, channels, height, width).

    Each of `window`, `stride` (by default the window), `padding` and `dilation` is one number or
    (rows, columns). Padding may also be ((top, bottom), (left, right)). Extents and errors are
    those of `max_pool1d` along each axis.
    """
    where = "max_pool2d"
    windows = pool_windows(where, (2,), x, window, stride, padding, dilation, ceil_mode)
    return pooled(MaxPool2d, x, windows)


def max_pool3d(
    x: Value,
    window: Numbers,
    stride: Numbers | None = None,
    padding: Padding = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
) -> Value:
    """Return the largest element of each window of x (batch, channels, depth, height, width).

    Arguments are one number, or one number per axis; padding may also be (before, after) per axis.
    Extents and errors are those of `max_pool1d` along each axis. Height and width are pooled before
    the depth.
    """
    where = "max_pool3d"
    windows = pool_windows(where, (3,), x, window, stride, padding, dilation, ceil_mode)
    return pooled(MaxPool2d, x, windows)


def average_pool1d(
    x: Value,
    window: Numbers,
    stride: Numbers | None = None,
    padding: Padding = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Value:
    """Return the mean of each window of x (batch, channels, length).

    Shapes and arguments are those of `max_pool1d`. Padding counts as zeros, unless
    `count_include_pad` is false. The result is then the mean of the window's elements inside x, or
    NaN if there are none. Elements that `ceil_mode` adds after the padding never count. Raises the
    errors of `max_pool1d`.
    """
    return _average(
        "average_pool1d", 1, x, window, stride, padding, dilation, ceil_mode, count_include_pad
    )


def average_pool2d(
    x: Value,
    window: Numbers,
    stride: Numbers | None = None,
    padding: Padding = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Value:
    """Return the mean of each window of x (batch, channels, height, width).

    Shapes and arguments are those of `max_pool2d`. `average_pool1d` describes which elements count.
    Raises the errors of `max_pool1d`.
    """
    return _average(
        "average_pool2d", 2, x, window, stride, padding, dilation, ceil_mode, count_include_pad
    )


def average_pool3d(
    x: Value,
    window: Numbers,
    stride: Numbers | None = None,
    padding: Padding = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Value:
    """Return the mean of each window of x (batch, channels, depth, height, width).

    Shapes and arguments are those of `max_pool3d`. `average_pool1d` describes which elements count.
    Raises the errors of `max_pool1d`.
    """
    return _average(
        "average_pool3d", 3, x, window, stride, padding, dilation, ceil_mode, count_include_pad
    )


@in_float32
def lp_pool(
    x: Value,
    p: float,
    window: Numbers,
    stride: Numbers | None = None,
    padding: Padding = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
) -> Value:
    """Return the p-norm of each window of x (batch, channels, and 1 to 3 more axes), for p above 0.

    It is (Σ |x|ᵖ)^(1/p), with zeros for padding. Shapes and other arguments are those of max
    pooling with as many axes. The gradient is not finite in a window with only zeros. Raises the
    errors of `max_pool1d`.
    """
    if not isinstance(p, int | float) or not 0 < p < math.inf:
        raise OptionError(f"lp_pool: p must be a finite number above 0, got {quoted(p)}")
    windows = pool_windows("lp_pool", (1, 2, 3), x, window, stride, padding, dilation, ceil_mode)
    powers = mul(x, x) if p == 2 else power(maximum(x, neg(x)), p)
    sums = mul(pooled(AveragePool2d, powers, windows), float(math.prod(n for n, _ in windows)))
    return sqrt(sums) if p == 2 else power(sums, 1 / p)


def global_average_pool2d(x: Value) -> Value:
    """Average over height and width: (batch, channels, height, width) to (batch, channels)."""
    return mean(x, (2, 3))
