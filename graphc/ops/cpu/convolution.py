"""Convolution on the CPU: products with the unfolded input (im2col).

The input is unfolded tile by tile into scratch from the plan, within the device's workspace limit.
One call of matmul multiplies a tile by the filters. 1x1 windows need no unfolding. Maps are
row-major or channels-last. With channels-last maps the matrices are transposed in memory, which
NumPy's BLAS supports without a copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from graphc.devices.device import Device
from graphc.ir.op import Array
from graphc.ops.geometry import Geometry, window

TILE_BYTES = 8 * 2**20
"""The most bytes of unfolded input per tile; the device may allow fewer."""


def columns_shape(geometry: Geometry, device: Device) -> tuple[int, ...]:
    """Return the shape of a tile of unfolded input: (images, groups, depth, rows · columns)."""
    images, rows = _tile(geometry, device)
    return images, geometry.attributes.groups, geometry.depth, rows * geometry.y[3]


def _tile(geometry: Geometry, device: Device) -> tuple[int, int]:
    """Return (images, output rows) of a tile: as many as fit, at least one row of one image."""
    row = geometry.attributes.groups * geometry.depth * geometry.y[3] * geometry.itemsize
    most_bytes = min(TILE_BYTES, device.workspace_limit_bytes)
    image = row * geometry.y[2]
    if image <= most_bytes:
        return min(geometry.y[0], most_bytes // image), geometry.y[2]
    return 1, max(1, most_bytes // row)


def _tiles(geometry: Geometry, images: int, rows: int) -> Iterator[tuple[slice, range]]:
    """Yield the (images, output rows) of all tiles in order."""
    for start in range(0, geometry.y[0], images):
        for top in range(0, geometry.y[2], rows):
            stop = min(start + images, geometry.y[0])
            yield slice(start, stop), range(top, min(top + rows, geometry.y[2]))


def _unfold(geometry: Geometry, x: Array, rows: range, columns: Array) -> None:
    """Copy the elements of each window into `columns`, with zeros for padding."""
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
    """Add each window's values back to the elements it read: the transpose of `_unfold`."""
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
    """Return the start of the scratch `buffer` as contiguous (images, groups, depth, elements)."""
    shape = (images, *depth, elements)
    flat: Array = buffer.reshape(-1)[: math.prod(shape)]
    return flat.reshape(shape)


def _grouped(array: Array, groups: int) -> Array:
    """Return maps as a view (images, groups, channels of a group, rows, columns)."""
    n, channels, height, width = array.shape
    return array.reshape(n, groups, channels // groups, height, width)


def _flat_rows(array: Array, rows: range) -> Array:
    """Return some rows of (..., rows, columns) with both axes merged, as a view."""
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
    """Compute y = x * w + bias."""
    groups = geometry.attributes.groups
    filters = w.reshape(groups, w.shape[0] // groups, geometry.depth)
    out = _grouped(y, groups)
    if geometry.is_pointwise:
        whole = range(geometry.y[2])
        np.matmul(filters, _flat_rows(_grouped(x, groups), whole), out=_flat_rows(out, whole))
    else:
        images, _, _, elements = scratch[0].shape
        for part, rows in _tiles(geometry, images, elements // geometry.y[3]):
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
    """Compute dx from dy and w."""
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
    for part, rows in _tiles(geometry, images, elements // geometry.y[3]):
        count = part.stop - part.start
        depth = (groups, geometry.depth)
        columns = _columns(scratch[0], count, depth, len(rows) * geometry.y[3])
        np.matmul(filters, _flat_rows(source[part], rows), out=columns)
        _fold(geometry, columns, rows, dx[part])


def correlate(
    geometry: Geometry, dy: Array, x: Array, dw: Array, scratch: tuple[Array, ...]
) -> None:
    """Add the weight gradient of dy and x to dw."""
    groups, product = geometry.attributes.groups, scratch[-1]
    k, *filter = geometry.w
    total = dw.reshape(groups, k // groups, *filter)  # a view for every layout of filters
    addend = product.reshape(total.shape)
    source = _grouped(dy, groups)
    if geometry.is_pointwise:
        whole = range(geometry.y[2])
        tiles: Any = [(slice(0, geometry.y[0]), whole, _flat_rows(_grouped(x, groups), whole))]
    else:
        tiles = _unfolded(geometry, x, scratch[0])
    for part, rows, columns in tiles:
        for out, inner in zip(_flat_rows(source[part], rows), columns, strict=True):
            np.matmul(out, inner.swapaxes(-1, -2), out=product)
            np.add(total, addend, out=total)


def _unfolded(geometry: Geometry, x: Array, buffer: Array) -> Iterator[tuple[slice, range, Array]]:
    images, groups, depth, elements = buffer.shape
    for part, rows in _tiles(geometry, images, elements // geometry.y[3]):
        count = part.stop - part.start
        columns = _columns(buffer, count, (groups, depth), len(rows) * geometry.y[3])
        _unfold(geometry, x[part], rows, columns)
        yield part, rows, columns
