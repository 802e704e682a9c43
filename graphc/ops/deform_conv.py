"""Deformable convolution (Dai et al., 2017): windows with learned offsets, sampled bilinearly."""

from __future__ import annotations

import math

import numpy as np

from graphc.errors import ShapeError, whole_number
from graphc.ir.builder import apply, as_value, constant
from graphc.ir.graph import Value
from graphc.ops.conv_axes import AxisWindows, Numbers, Padding, windows_of
from graphc.ops.elementwise import add, mul
from graphc.ops.indexing import reverse
from graphc.ops.interpolate import Interpolate, InterpolateAttributes
from graphc.ops.matmul import matmul
from graphc.ops.shape import reshape, transpose


def deform_conv2d(
    x: Value,
    offset: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Numbers = 1,
    padding: Padding = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    offset_groups: int = 1,
    mask: Value | None = None,
) -> Value:
    """Convolve x with windows whose elements are moved by `offset` and multiplied by `mask`.

    Offsets are those of Dai et al. (2017), the mask is that of Zhu et al. (2019). x is float
    (batch, channels, height, width), and the weight (filters, channels / groups, rows, columns).
    The offset is (batch, offset_groups · rows · columns · 2, *windows), in elements, vertical
    before horizontal. The mask is (batch, offset_groups · rows · columns, *windows). The result is
    (batch, filters, *windows), with as many windows as `conv2d` has.

    Points between elements are interpolated bilinearly, with zeros beyond x. All operands get
    gradients. The intermediate result, x interpolated at all points, has as many elements as x for
    each element of a window at stride 1. Raises `ShapeError` if shapes do not fit.
    """
    where = "deform_conv2d"
    windows = _checked(x, weight, stride, padding, dilation, groups, offset_groups)
    batch, channels, height, width = x.shape
    rows, columns = weight.shape[2:]
    counts = windows[0].output(height, rows), windows[1].output(width, columns)
    taps, parts = rows * columns, batch * offset_groups
    for name, value, each in (("offset", offset, 2 * taps), ("mask", mask, taps)):
        wanted = (batch, offset_groups * each, *counts)
        if value is not None and as_value(f"{where}: {name}", value).shape != wanted:
            raise ShapeError(
                f"{where}: {name} must have the shape {list(wanted)}, got {value.type}"
            )
    moved = transpose(reshape(offset, (parts, taps, 2, *counts)), (0, 1, 3, 4, 2))
    still = _places((rows, columns), counts, windows, x.type.dtype.numpy)
    places = add(reverse(moved, -1), constant(still))
    maps = reshape(x, (parts, channels // offset_groups, height, width))
    found = apply(Interpolate, maps, places, attributes=InterpolateAttributes()).output
    if mask is not None:
        found = mul(found, reshape(mask, (parts, 1, taps, *counts)))
    depth, points = channels // groups * taps, math.prod(counts)
    filters = reshape(weight, (groups, weight.shape[0] // groups, depth))
    y = matmul(filters, reshape(found, (batch, groups, depth, points)))
    y = reshape(y, (batch, weight.shape[0], *counts))
    return y if bias is None else add(y, reshape(bias, (-1, 1, 1)))


def _checked(
    x: Value,
    weight: Value,
    stride: Numbers,
    padding: Padding,
    dilation: Numbers,
    groups: int,
    offset_groups: int,
) -> tuple[AxisWindows, ...]:
    """Return the windows along both axes; raises `ShapeError` for arguments that do not fit."""
    whole_number("deform_conv2d: groups", groups)
    whole_number("deform_conv2d: offset_groups", offset_groups)
    x_type, w_type = as_value("deform_conv2d", x).type, as_value("deform_conv2d", weight).type
    if (
        x_type.rank != 4
        or w_type.rank != 4
        or x.shape[1] != weight.shape[1] * groups
        or x.shape[1] % offset_groups
        or weight.shape[0] % groups
    ):
        raise ShapeError(
            "deform_conv2d: x must be (batch, channels, height, width) and the weight (filters, "
            f"channels / groups, rows, columns), got {x_type}, {w_type}, groups={groups} and "
            f"offset_groups={offset_groups}"
        )
    return windows_of(2, stride, padding, dilation)


def _places(
    window: tuple[int, ...],
    counts: tuple[int, ...],
    windows: tuple[AxisWindows, ...],
    dtype: np.dtype[np.generic],
) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """Return sample points without offsets, (window elements, *counts, 2): column before row."""
    down, across = (
        np.arange(size)[:, None] * a.dilation + np.arange(count) * a.stride - a.before
        for size, count, a in zip(window, counts, windows, strict=True)
    )
    shape = (window[0], window[1], counts[0], counts[1])
    rows = np.broadcast_to(down[:, None, :, None], shape)
    columns = np.broadcast_to(across[None, :, None, :], shape)
    return np.stack([columns, rows], -1).reshape(-1, *counts, 2).astype(dtype)
