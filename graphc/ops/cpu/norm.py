"""Norms on the CPU: two-pass statistics of a `Frame`, tile by tile."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from graphc.ir.op import Array
from graphc.ops.cpu.numpy_expression import TILE_ELEMENTS
from graphc.ops.frame import Frame


def tile_shape(frame: Frame, across: bool) -> tuple[int, ...]:
    """Return the shape of a tile.

    With `across`, tiles may divide any axis, else only axes that statistics do not reduce.
    """
    return _cut(frame, across)[1]


def _cut(frame: Frame, across: bool) -> tuple[int | None, tuple[int, ...]]:
    """Return the axis that tiles divide, None if a tile is the whole frame, and a tile's shape."""
    axes = [i for i in range(len(frame.shape)) if across or i not in frame.statistic_axes]
    cut = max(axes, key=lambda i: (frame.shape[i], -i), default=None)
    if cut is None:
        return None, frame.shape
    rest = math.prod(frame.shape) // frame.shape[cut]
    size = min(frame.shape[cut], max(1, TILE_ELEMENTS // rest))
    return cut, tuple(size if i == cut else n for i, n in enumerate(frame.shape))


def _tiles(frame: Frame, across: bool) -> Iterator[tuple[slice, ...]]:
    """Yield the index of each tile."""
    cut, shape = _cut(frame, across)
    if cut is None:
        yield ()
        return
    extent, size = frame.shape[cut], shape[cut]
    for start in range(0, extent, size):
        yield (*(slice(None),) * cut, slice(start, min(start + size, extent)))


def _at(array: Array, part: tuple[slice, ...]) -> Array:
    """Return the part of an array at index `part`.

    An array with extent 1 on the axis that tiles divide is returned whole.
    """
    if part and array.shape[len(part) - 1] == 1:
        return array
    return array[part]


def _piece(tile: Array, part: tuple[slice, ...]) -> Array:
    """Return the start of a scratch tile, as large as the tile at index `part`."""
    if not part:
        return tile
    length = part[-1].stop - part[-1].start
    return tile[(*part[:-1], slice(0, length))]


def folded_statistic(frame: Frame, array: Array) -> Array:
    """Reshape saved statistics so that they broadcast over the folded shape of the frame."""
    return array.reshape(frame.statistic_shape)


def normalise(
    frame: Frame, epsilon: float, x: Array, y: Array, mean: Array, inverse: Array,
    scale: Array, bias: Array, tile: Array, correction: Array,
) -> None:  # fmt: skip
    """Compute y, the means and the inverse standard deviations.

    `tile` and `correction` are scratch.
    """
    axes, count = frame.statistic_axes, float(frame.count)
    for part in _tiles(frame, across=False):
        source, out, m = x[part], y[part], _at(mean, part)
        square, left, v = _piece(tile, part), _at(correction, part), _at(inverse, part)
        np.add.reduce(source, axes, out=m, keepdims=True)
        np.divide(m, count, out=m)
        np.subtract(source, m, out=out)
        # A large mean is rounded. The mean of the differences is its error, which is subtracted
        # too.
        np.add.reduce(out, axes, out=left, keepdims=True)
        np.divide(left, count, out=left)
        np.subtract(out, left, out=out)
        np.multiply(out, out, out=square)
        np.add.reduce(square, axes, out=v, keepdims=True)
        np.divide(v, count, out=v)
        np.add(v, epsilon, out=v)
        np.sqrt(v, out=v)
        np.divide(1.0, v, out=v)
        np.multiply(out, v, out=out)
        np.multiply(out, _at(scale, part), out=out)
        np.add(out, _at(bias, part), out=out)


def normalise_back(
    frame: Frame, dy: Array, x: Array, dx: Array, mean: Array, inverse: Array, scale: Array,
    first: Array, second: Array, plain: Array, weighted: Array,
) -> None:  # fmt: skip
    """Compute dx from dy, x and the statistics; dx may alias x or dy.

    The last four arrays are scratch.
    """
    axes, count = frame.statistic_axes, float(frame.count)
    for part in _tiles(frame, across=False):
        v = _at(inverse, part)
        unit, g = _piece(first, part), _piece(second, part)
        a, b = _at(plain, part), _at(weighted, part)
        np.multiply(dy[part], _at(scale, part), out=g)
        np.add.reduce(g, axes, out=a, keepdims=True)
        np.divide(a, count, out=a)
        np.subtract(x[part], _at(mean, part), out=unit)
        np.multiply(unit, v, out=unit)
        out = dx[part]  # may alias x or dy, which are not read any more
        np.multiply(g, unit, out=out)
        np.add.reduce(out, axes, out=b, keepdims=True)
        np.divide(b, count, out=b)
        np.multiply(unit, b, out=unit)
        np.subtract(g, a, out=g)
        np.subtract(g, unit, out=out)
        np.multiply(out, v, out=out)


def scale_back(
    frame: Frame, axes: tuple[int, ...], dy: Array, x: Array, mean: Array, inverse: Array,
    total: Array, tile: Array, partial: Array,
) -> None:  # fmt: skip
    """Compute `total`, the sum of dy times the normalized x; `tile` and `partial` are scratch."""
    total.fill(0)
    for part in _tiles(frame, across=True):
        product, target, share = _piece(tile, part), _at(total, part), _at(partial, part)
        np.subtract(x[part], _at(mean, part), out=product)
        np.multiply(product, _at(inverse, part), out=product)
        np.multiply(product, dy[part], out=product)
        np.add.reduce(product, axes, out=share, keepdims=True)
        np.add(target, share, out=target)


def root_mean_square(
    epsilon: float, x: Array, y: Array, inverse: Array, scale: Array, tile: Array
) -> None:
    """Compute y = x · scale / root mean square, row by row."""
    for start in range(0, x.shape[0], tile.shape[0]):
        part = slice(start, min(start + tile.shape[0], x.shape[0]))
        square, v = tile[: part.stop - part.start], inverse[part]
        np.multiply(x[part], x[part], out=square)
        np.add.reduce(square, 1, out=v, keepdims=True)
        np.divide(v, float(x.shape[1]), out=v)
        np.add(v, epsilon, out=v)
        np.sqrt(v, out=v)
        np.divide(1.0, v, out=v)
        np.multiply(x[part], v, out=y[part])
        np.multiply(y[part], scale, out=y[part])
