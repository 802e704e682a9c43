"""Rearrangement of elements: im2col and col2im, depth to space and space to depth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from graphc.errors import ShapeError, choose, whole_number
from graphc.ir.attributes import Whole
from graphc.ir.builder import apply, as_value
from graphc.ir.graph import Value
from graphc.ir.types import TensorType
from graphc.ops.axis_map import AxisMap, Table, table_of
from graphc.ops.conv_axes import AxisWindows, Numbers, Padding, windows_of
from graphc.ops.geometry import COUNTED, axis_numbers
from graphc.ops.shape import reshape, transpose


@dataclass(frozen=True, slots=True)
class UnfoldAttributes:
    """An axis, its extent in the result, and the windows along it."""

    axis: Annotated[int, Whole()]
    extent: Annotated[int, Whole(1, COUNTED)]
    window: Annotated[int, Whole(1, COUNTED)]
    stride: Annotated[int, Whole(1, COUNTED)] = 1
    dilation: Annotated[int, Whole(1, COUNTED)] = 1
    before: Annotated[int, Whole(0, COUNTED)] = 0
    behind: Annotated[int, Whole(0, COUNTED)] = 0


class UnfoldAxis(AxisMap):
    """y = the elements of all windows along an axis, ordered by offset in the window.

    Padding is zeros.
    """

    name, attributes, partner = "unfold_axis", UnfoldAttributes, "fold_axis"

    def check(self, attributes: Any, x: TensorType, source: int, result: int) -> None:
        a: UnfoldAttributes = attributes
        windows = AxisWindows(a.stride, a.before, a.behind, a.dilation).output(source, a.window)
        if windows * a.window != result:
            raise ShapeError(
                f"{windows} windows of {a.window} over an extent of {source} do not give {result}"
            )

    def forward_table(self, attributes: Any, source: int, result: int) -> Table:
        a: UnfoldAttributes = attributes
        starts = np.arange(result // a.window) * a.stride - a.before
        places = (np.arange(a.window)[:, None] * a.dilation + starts).reshape(-1, 1)
        return table_of(places, None, (places >= 0) & (places < source))


class FoldAxis(UnfoldAxis):
    """y = for each element, the sum over windows that contain it: the transpose of
    `unfold_axis`."""

    name, partner, transposes = "fold_axis", "unfold_axis", True


# --- functions ---


def im2col(
    x: Value,
    window: Numbers,
    stride: Numbers = 1,
    padding: Padding = 0,
    dilation: Numbers = 1,
) -> Value:
    """Unfold the windows of float x (batch, channels, *extents) to columns.

    The result is (batch, channels · window elements, windows). Arguments are those of `conv2d` for
    any number of axes. Padding is zeros. Raises `ShapeError` if no window fits, and `OptionError`
    for other invalid numbers.
    """
    axes = as_value("im2col", x).type.rank - 2
    sizes, windows = _windows("im2col", axes, window, stride, padding, dilation)
    counts = []
    for axis, (size, along) in enumerate(zip(sizes, windows, strict=True), start=2):
        counts.append(along.output(x.shape[axis], size))
        x = _mapped(UnfoldAxis, x, axis, size * counts[-1], size, along)
    split = [n for pair in zip(sizes, counts, strict=True) for n in pair]
    apart = reshape(x, (*x.shape[:2], *split))
    places, columns = range(2, 2 + 2 * axes, 2), range(3, 2 + 2 * axes, 2)
    columns_last = transpose(apart, (0, 1, *places, *columns))
    return reshape(columns_last, (x.shape[0], x.shape[1] * math.prod(sizes), math.prod(counts)))


def col2im(
    x: Value,
    extents: Sequence[int],
    window: Numbers,
    stride: Numbers = 1,
    padding: Padding = 0,
    dilation: Numbers = 1,
) -> Value:
    """Sum, for each element, the values of all windows that contain it: the transpose of `im2col`.

    x is float (batch, channels · window elements, windows). The result is (batch, channels,
    *extents). Raises the errors of `im2col`, and `ShapeError` if the shape of x does not fit.
    """
    axes = len(extents) if isinstance(extents, Sequence) else 0
    wanted = tuple(whole_number("col2im: an extent", n) for n in extents) if axes else ()
    sizes, windows = _windows("col2im", axes, window, stride, padding, dilation)
    counts = [w.output(n, k) for w, n, k in zip(windows, wanted, sizes, strict=True)]
    places = math.prod(sizes)
    as_value("col2im", x)
    if x.type.rank != 3 or x.shape[1] % places or x.shape[2] != math.prod(counts):
        raise ShapeError(
            f"col2im: x must be (batch, a multiple of {places}, {math.prod(counts)}), got {x.type}"
        )
    batch, channels = x.shape[0], x.shape[1] // places
    apart = reshape(x, (batch, channels, *sizes, *counts))
    order = [axis for i in range(axes) for axis in (2 + i, 2 + axes + i)]
    lines = [size * count for size, count in zip(sizes, counts, strict=True)]
    y = reshape(transpose(apart, (0, 1, *order)), (batch, channels, *lines))
    for axis, (extent, size, along) in enumerate(zip(wanted, sizes, windows, strict=True), start=2):
        y = _mapped(FoldAxis, y, axis, extent, size, along)
    return y


def _windows(
    where: str, axes: int, window: Numbers, stride: Numbers, padding: Padding, dilation: Numbers
) -> tuple[tuple[int, ...], tuple[AxisWindows, ...]]:
    if axes < 1:
        raise ShapeError(f"{where}: windows need at least one axis after the channels")
    sizes = axis_numbers(f"{where}: window", window, axes, 1)
    return sizes, windows_of(axes, stride, padding, dilation)


def _mapped(
    op: type[AxisMap], x: Value, axis: int, extent: int, size: int, along: AxisWindows
) -> Value:
    attributes = UnfoldAttributes(
        axis, extent, size, along.stride, along.dilation, along.before, along.behind
    )
    return apply(op, x, attributes=attributes).output


DEPTH_ORDERS = ("DCR", "CRD")


def depth_to_space(x: Value, block: int, mode: str = "DCR") -> Value:
    """Move channels of x (batch, channels, height, width) to blocks of rows and columns.

    The result is (batch, channels / block², height · block, width · block), of any dtype. With the
    mode "DCR", the channels of x are ordered by row in the block, column in the block, and channel
    of the result. With "CRD", the channel of the result comes first, as in PyTorch's pixel_shuffle.
    Raises `ShapeError` if block² does not divide the channels.
    """
    n, c, height, width = _maps("depth_to_space", x, block, mode)
    if c % (block * block):
        raise ShapeError(
            f"depth_to_space: channels must be a multiple of {block} · {block}, got {x.type}"
        )
    c //= block * block
    if mode == "DCR":
        apart = reshape(x, (n, block, block, c, height, width))
        turned = transpose(apart, (0, 3, 4, 1, 5, 2))
    else:
        apart = reshape(x, (n, c, block, block, height, width))
        turned = transpose(apart, (0, 1, 4, 2, 5, 3))
    return reshape(turned, (n, c, height * block, width * block))


def space_to_depth(x: Value, block: int, mode: str = "DCR") -> Value:
    """Move blocks of rows and columns of x (batch, channels, height, width) to channels.

    The result is (batch, channels · block², height / block, width / block), of any dtype.
    `depth_to_space` of the same mode is the inverse. Raises `ShapeError` if `block` does not divide
    the extents.
    """
    n, c, height, width = _maps("space_to_depth", x, block, mode)
    if height % block or width % block:
        raise ShapeError(
            f"space_to_depth: height and width must be multiples of {block}, got {x.type}"
        )
    height, width = height // block, width // block
    apart = reshape(x, (n, c, height, block, width, block))
    turned = transpose(apart, (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    return reshape(turned, (n, c * block * block, height, width))


def _maps(where: str, x: Value, block: int, mode: str) -> tuple[int, int, int, int]:
    """Return the extents of maps; raises `ShapeError` or `OptionError` for invalid arguments."""
    whole_number(f"{where}: block", block)
    choose(f"{where}: mode", mode, DEPTH_ORDERS)
    if as_value(where, x).type.rank != 4:
        raise ShapeError(f"{where}: x must be (batch, channels, height, width), got {x.type}")
    n, c, height, width = x.shape
    return n, c, height, width
