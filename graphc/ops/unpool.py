"""Where the largest elements of windows stand, as numbers, and the way back."""

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
    """A max pool of x with one or two axes behind its channels, and where its elements stand.

    The numbers are int64, count the elements of a map row-major, and have the pool's shape; of
    equal elements the first one counts. Arguments and errors are those of `max_pool2d`.
    """
    where = "max_pool_with_indices"
    windows = pool_windows(where, x, window, stride, padding, dilation, ceil_mode)
    if len(windows) > 2:
        raise ShapeError(f"{where}: x has one or two axes behind its channels, got {x.type}")
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
    """How far each place of a window is from its first, and where windows begin."""
    (height, down), (breadth, across) = rows, columns
    taps = np.arange(height)[:, None] * down.dilation * width
    taps = taps + np.arange(breadth) * across.dilation
    starts = (np.arange(counts[0])[:, None] * down.stride - down.before) * width
    starts = starts + np.arange(counts[1]) * across.stride - across.before
    return taps.reshape(-1).astype(np.int64), starts.astype(np.int64)


def max_unpool(x: Value, indices: Value, extents: Sequence[int]) -> Value:
    """x (batch, channels, ...) put where `indices` says, zeros elsewhere: the way back of a max
    pool.

    `indices` has x's shape and counts elements of a map of these extents row-major, as those of
    `max_pool_with_indices`; the result is (batch, channels, *extents). Of elements for one place
    the last one stays. Raises `ShapeError` for another shape.
    """
    if as_value("max_unpool", x).shape != as_value("max_unpool", indices).shape or (
        x.type.rank < 3
    ):
        raise ShapeError(
            f"max_unpool: x is (batch, channels, ...) and indices alike, got {x.type} and "
            f"{indices.type}"
        )
    wanted = tuple(whole_number("max_unpool: an extent", n) for n in extents)
    lines = (*x.shape[:2], -1)
    zeros = full((*x.shape[:2], math.prod(wanted)), 0.0, x.type.dtype)
    flat = scatter_elements(zeros, reshape(indices, lines), reshape(x, lines), 2)
    return reshape(flat, (*x.shape[:2], *wanted))
