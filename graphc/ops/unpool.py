"""Max pooling with argmax indices, and max unpooling."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphc.errors import ShapeError, whole_number
from graphc.ir.builder import as_value, constant
from graphc.ir.graph import Value
from graphc.ops.choice import cast
from graphc.ops.conv_axes import Numbers, Padding
from graphc.ops.elements import scatter_elements
from graphc.ops.elementwise import add
from graphc.ops.embedding import gather
from graphc.ops.pool import MaxPool2d
from graphc.ops.pool_axes import ONE, Window, pool_node, pool_windows
from graphc.ops.shape import full, reshape


def max_pool_with_indices(
    x: Value,
    window: Numbers,
    stride: Numbers | None = None,
    padding: Padding = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
) -> tuple[Value, Value]:
    """Max-pool x with one or two axes after its channels; also return the argmax indices.

    Indices are int64 and have the shape of the maxima. They number the elements of a map in
    row-major order. The first of equal elements counts. Arguments and errors are those of
    `max_pool2d`.
    """
    where = "max_pool_with_indices"
    windows = pool_windows(where, (1, 2), x, window, stride, padding, dilation, ceil_mode)
    rows, columns = windows if len(windows) == 2 else (ONE, *windows)
    maps = reshape(x, (*x.shape[:2], *((1,) * (4 - x.type.rank)), *x.shape[2:]))
    y, place = pool_node(MaxPool2d, maps, rows, columns).outputs
    taps, starts = _numbers(rows, columns, maps.shape[3], y.shape[2:])
    numbers = add(gather(constant(taps), cast(place, "int32")), constant(starts))
    shape = (*x.shape[:2], *y.shape[6 - x.type.rank :])
    return reshape(y, shape), reshape(numbers, shape)


def _numbers(
    rows: Window, columns: Window, width: int, counts: tuple[int, ...]
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.int64]], ...]:
    """Return the offsets of a window's elements from its first one, and the starts of windows."""
    (height, down), (breadth, across) = rows, columns
    taps = np.arange(height)[:, None] * down.dilation * width
    taps = taps + np.arange(breadth) * across.dilation
    starts = (np.arange(counts[0])[:, None] * down.stride - down.before) * width
    starts = starts + np.arange(counts[1]) * across.stride - across.before
    return taps.reshape(-1).astype(np.int64), starts.astype(np.int64)


def max_unpool(x: Value, indices: Value, extents: Sequence[int]) -> Value:
    """Scatter x (batch, channels, ...) to the `indices` of max pooling, with zeros elsewhere.

    `indices` has x's shape. Indices number the elements of a map of the given extents in row-major
    order, as in `max_pool_with_indices`. The result is (batch, channels, *extents). If an index
    occurs more than once, the last element wins. Raises `ShapeError` if shapes do not fit.
    """
    if as_value("max_unpool", x).shape != as_value("max_unpool", indices).shape or (
        x.type.rank < 3
    ):
        raise ShapeError(
            "max_unpool: x must be (batch, channels, ...) and indices must have its shape, got "
            f"{x.type} and {indices.type}"
        )
    wanted = tuple(whole_number("max_unpool: an extent", n) for n in extents)
    lines = (*x.shape[:2], -1)
    zeros = full((*x.shape[:2], math.prod(wanted)), 0.0, x.type.dtype)
    flat = scatter_elements(zeros, reshape(indices, lines), reshape(x, lines), 2)
    return reshape(flat, (*x.shape[:2], *wanted))
