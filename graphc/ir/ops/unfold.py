"""The arithmetic of convolution on the CPU: products with the unfolded input (im2col).

The input is unfolded tile by tile into scratch from the plan, within the device's workspace limit,
and each tile is multiplied at once. 1x1 windows need no unfolding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from graphc.ir.device import Device
from graphc.ir.op import Array
from graphc.ir.types import TensorType

Pair = tuple[int, int]

TILE_BYTES = 8 * 2**20
"""Bytes of unfolded input to work on at a time, if the device allows as much."""


@dataclass(frozen=True, slots=True)
class Conv2dAttributes:
    """Window geometry: (rows, columns) each; padding is zeros on both sides."""

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def output_extent(self, axis: int, extent: int, kernel: int) -> int:
        """Windows along an axis."""
        reach = self.dilation[axis] * (kernel - 1) + 1
        return (extent + 2 * self.padding[axis] - reach) // self.stride[axis] + 1


class Window(NamedTuple):
    """One kernel position on one axis: windows [first, last) read start, start + step, ..."""

    first: int
    last: int
    start: int
    stop: int
    step: int

    def outer(self) -> slice:
        """Which windows."""
        return slice(self.first, self.last)

    def inner(self) -> slice:
        """Which input elements they read."""
        return slice(self.start, self.stop, self.step)


def window(
    position: int, windows: range, extent: int, stride: int, padding: int, dilation: int
) -> Window:
    """The windows of a range whose kernel `position` falls inside the input, relative to its start.

    `extent` is the input's; window i reads the input at i·stride + position·dilation - padding.
    """
    shift = position * dilation - padding
    first = max(windows.start, math.ceil(-shift / stride))
    last = min(windows.stop, (extent - 1 - shift) // stride + 1)
    last = max(first, last)
    start = first * stride + shift
    stop = start + (last - first - 1) * stride + 1 if last > first else start
    return Window(first - windows.start, last - windows.start, start, stop, stride)


@dataclass(frozen=True, slots=True)
class Geometry:
    """Shapes of a convolution x * w = y, and how it is cut into tiles."""

    attributes: Conv2dAttributes
    x: tuple[int, int, int, int]
    w: tuple[int, int, int, int]
    y: tuple[int, int, int, int]
    itemsize: int

    @property
    def depth(self) -> int:
        """Products summed for one output element."""
        return self.w[1] * self.w[2] * self.w[3]

    @property
    def is_pointwise(self) -> bool:
        """Whether the input is its own unfolding."""
        return (
            self.w[2:] == (1, 1)
            and self.attributes.stride == (1, 1)
            and (self.attributes.padding == (0, 0))
        )

    def tile(self, device: Device) -> tuple[int, int]:
        """(images, output rows) of a tile: as many as fit, at least one row of one image."""
        row = self.attributes.groups * self.depth * self.y[3] * self.itemsize
        room = min(TILE_BYTES, device.workspace_limit_bytes)
        image = row * self.y[2]
        if image <= room:
            return min(self.y[0], room // image), self.y[2]
        return 1, max(1, room // row)

    def columns_shape(self, device: Device) -> tuple[int, ...]:
        """A tile of unfolded input: (images, groups, depth, rows · columns)."""
        images, rows = self.tile(device)
        return images, self.attributes.groups, self.depth, rows * self.y[3]

    def tiles(self, images: int, rows: int) -> Iterator[tuple[slice, range]]:
        """All (images, output rows) in order."""
        for start in range(0, self.y[0], images):
            for top in range(0, self.y[2], rows):
                stop = min(start + images, self.y[0])
                yield slice(start, stop), range(top, min(top + rows, self.y[2]))


def geometry_of(attributes: Any, x: TensorType, w: TensorType, y: TensorType) -> Geometry:
    """The geometry of a convolution from the types of its three tensors."""
    plain = Conv2dAttributes(
        attributes.stride, attributes.padding, attributes.dilation, attributes.groups
    )
    itemsize = max(4, x.dtype.itemsize)  # 16-bit floats are unfolded as float32
    return Geometry(plain, _four(x), _four(w), _four(y), itemsize)


def _four(type: TensorType) -> tuple[int, int, int, int]:
    a, b, c, d = type.shape
    return a, b, c, d


def _unfold(geometry: Geometry, x: Array, rows: range, columns: Array) -> None:
    """Copy what each window reads into `columns`, zeros where it reads padding."""
    a, (_, _, height, width) = geometry.attributes, geometry.x
    r, s = geometry.w[2:]
    n = x.shape[0]
    shape = (n, a.groups * geometry.w[1], r, s, len(rows), geometry.y[3])
    target = columns.reshape(shape)
    if a.padding != (0, 0):
        columns.fill(0)
    for i in range(r):
        vertical = window(i, rows, height, a.stride[0], a.padding[0], a.dilation[0])
        for j in range(s):
            horizontal = window(
                j, range(geometry.y[3]), width, a.stride[1], a.padding[1], a.dilation[1]
            )
            part = target[:, :, i, j, vertical.outer(), horizontal.outer()]
            np.copyto(part, x[:, :, vertical.inner(), horizontal.inner()])


def _fold(geometry: Geometry, columns: Array, rows: range, dx: Array) -> None:
    """Add what each window holds back to where it was read: the transpose of `_unfold`."""
    a, (_, _, height, width) = geometry.attributes, geometry.x
    r, s = geometry.w[2:]
    shape = (dx.shape[0], a.groups * geometry.w[1], r, s, len(rows), geometry.y[3])
    source = columns.reshape(shape)
    for i in range(r):
        vertical = window(i, rows, height, a.stride[0], a.padding[0], a.dilation[0])
        for j in range(s):
            horizontal = window(
                j, range(geometry.y[3]), width, a.stride[1], a.padding[1], a.dilation[1]
            )
            target = dx[:, :, vertical.inner(), horizontal.inner()]
            np.add(target, source[:, :, i, j, vertical.outer(), horizontal.outer()], out=target)


def _columns(buffer: Array, images: int, depth: tuple[int, int], elements: int) -> Array:
    """A tile of the scratch as contiguous (images, groups, depth, elements)."""
    shape = (images, *depth, elements)
    flat: Array = buffer.reshape(-1)[: math.prod(shape)]
    return flat.reshape(shape)


def _grouped(array: Array, groups: int) -> Array:
    """(images, groups, channels of a group, rows, columns)."""
    n, channels, height, width = array.shape
    return array.reshape(n, groups, channels // groups, height, width)


def _flat_rows(array: Array, rows: range) -> Array:
    """Some rows of (..., rows, columns) with both axes as one: a view."""
    part = array[..., rows.start : rows.stop, :]
    shape = (*part.shape[:-2], part.shape[-2] * part.shape[-1])
    strides = (*part.strides[:-2], part.strides[-1])
    return np.lib.stride_tricks.as_strided(part, shape, strides)


def convolve(
    geometry: Geometry,
    x: Array,
    w: Array,
    bias: tuple[Array, ...],
    y: Array,
    scratch: tuple[Array, ...],
) -> None:
    """y = x * w + bias."""
    groups = geometry.attributes.groups
    filters = w.reshape(groups, w.shape[0] // groups, geometry.depth)
    out = _grouped(y, groups)
    if geometry.is_pointwise:
        whole = range(geometry.y[2])
        np.matmul(filters, _flat_rows(_grouped(x, groups), whole), out=_flat_rows(out, whole))
    else:
        images, _, _, elements = scratch[0].shape
        for part, rows in geometry.tiles(images, elements // geometry.y[3]):
            count = part.stop - part.start
            depth = (groups, geometry.depth)
            columns = _columns(scratch[0], count, depth, len(rows) * geometry.y[3])
            _unfold(geometry, x[part], rows, columns)
            np.matmul(filters, columns, out=_flat_rows(out[part], rows))
    for b in bias:
        np.add(y, b.reshape(-1, 1, 1), out=y)


def convolve_back(
    geometry: Geometry, dy: Array, w: Array, dx: Array, scratch: tuple[Array, ...]
) -> None:
    """dx from dy and w."""
    groups = geometry.attributes.groups
    filters = w.reshape(groups, w.shape[0] // groups, geometry.depth).swapaxes(-1, -2)
    source = _grouped(dy, groups)
    if geometry.is_pointwise:
        whole = range(geometry.y[2])
        back = _flat_rows(_grouped(dx, groups), whole)
        np.matmul(filters, _flat_rows(source, whole), out=back)
        return
    dx.fill(0)
    images, _, _, elements = scratch[0].shape
    for part, rows in geometry.tiles(images, elements // geometry.y[3]):
        count = part.stop - part.start
        depth = (groups, geometry.depth)
        columns = _columns(scratch[0], count, depth, len(rows) * geometry.y[3])
        np.matmul(filters, _flat_rows(source[part], rows), out=columns)
        _fold(geometry, columns, rows, dx[part])


def correlate(
    geometry: Geometry, dy: Array, x: Array, dw: Array, scratch: tuple[Array, ...]
) -> None:
    """dw += what dy and x give."""
    groups, product = geometry.attributes.groups, scratch[-1]
    total = dw.reshape(product.shape)
    source = _grouped(dy, groups)
    if geometry.is_pointwise:
        whole = range(geometry.y[2])
        tiles: Any = [(slice(0, geometry.y[0]), whole, _flat_rows(_grouped(x, groups), whole))]
    else:
        tiles = _unfolded(geometry, x, scratch[0])
    for part, rows, columns in tiles:
        for out, inner in zip(_flat_rows(source[part], rows), columns, strict=True):
            np.matmul(out, inner.swapaxes(-1, -2), out=product)
            np.add(total, product, out=total)


def _unfolded(geometry: Geometry, x: Array, buffer: Array) -> Iterator[tuple[slice, range, Array]]:
    images, groups, depth, elements = buffer.shape
    for part, rows in geometry.tiles(images, elements // geometry.y[3]):
        count = part.stop - part.start
        columns = _columns(buffer, count, (groups, depth), len(rows) * geometry.y[3])
        _unfold(geometry, x[part], rows, columns)
        yield part, rows, columns
