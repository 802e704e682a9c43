"""Division of a convolution into tiles, and the scratch that the tiles share.

A tile is some images, or some rows of one image, whose unfolded input is within a limit of bytes.
Everything follows from types and attributes, so scratch is known before memory is allocated.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from graphc.codegen.node_calls import Scratch
from graphc.ir.types import DType, TensorType, float32
from graphc.ops.geometry import Geometry


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile: a range of images, and a range of rows of the output or of the input."""

    images: range
    rows: range


def _row_bytes(geometry: Geometry, dtype: DType) -> int:
    """Return the bytes of the unfolded input for one output row of one image."""
    return geometry.attributes.groups * geometry.depth * geometry.y[3] * dtype.itemsize


def _even(total: int, most: int) -> list[range]:
    """Split `range(total)` into as few parts of at most `most` as possible, of nearly equal
    sizes."""
    size = -(-total // -(-total // max(1, most)))
    return [range(start, min(start + size, total)) for start in range(0, total, size)]


def _tiles(images: int, rows: int, image_bytes: int, rows_fit: int, limit: int) -> list[Tile]:
    """Return tiles of whole images if one image is within the limit, else of `rows_fit` rows of one
    image."""
    if image_bytes <= limit:
        parts = _even(images, limit // image_bytes)
        return [Tile(part, range(rows)) for part in parts]
    parts = _even(rows, rows_fit)
    return [Tile(range(n, n + 1), part) for n in range(images) for part in parts]


def _output_tiles(geometry: Geometry, dtype: DType, limit: int) -> list[Tile]:
    """Return tiles of the output whose unfolded input is within the limit of bytes."""
    row = _row_bytes(geometry, dtype)
    images, _, rows, _ = geometry.y
    return _tiles(images, rows, row * rows, limit // row, limit)


def _input_tiles(geometry: Geometry, dtype: DType, limit: int) -> list[Tile]:
    """Return tiles of the input whose unfolded gradient is within the limit; adjacent tiles share
    rows of the output."""
    row = _row_bytes(geometry, dtype)
    a, (images, _, height, _) = geometry.attributes, geometry.x
    unfolded = max(1, limit // row)
    reach = a.dilation[0] * (geometry.w[2] - 1)
    rows_fit = (unfolded - 1) * a.stride[0] + 1 - reach
    return _tiles(images, height, row * geometry.y[2], rows_fit, limit)


def windows_over(geometry: Geometry, height: range) -> range:
    """Return the range of output rows whose windows read these rows of the input."""
    a = geometry.attributes
    reach = a.dilation[0] * (geometry.w[2] - 1)
    first = max(0, -(-(height.start + a.padding[0] - reach) // a.stride[0]))
    past = min(geometry.y[2], (height.stop - 1 + a.padding[0]) // a.stride[0] + 1)
    return range(first, max(first, past))


def _workspace(geometry: Geometry, tiles: Iterable[tuple[int, int]], dtype: DType) -> TensorType:
    """Return the scratch type for the largest unfolded tile; `tiles` has (images, rows) of each."""
    row = geometry.attributes.groups * geometry.depth * geometry.y[3]
    return TensorType((max(images * rows for images, rows in tiles) * row,), dtype)


@functools.lru_cache(maxsize=1024)
def forward_plan(
    geometry: Geometry, dtype: DType, limit: int
) -> tuple[list[Tile], tuple[TensorType, ...]]:
    """Return tiles of the output, and the scratch type for the unfolded input of one tile."""
    if geometry.is_pointwise:
        return [Tile(range(geometry.y[0]), range(geometry.y[2]))], ()
    tiles = _output_tiles(geometry, dtype, limit)
    sizes = [(len(tile.images), len(tile.rows)) for tile in tiles]
    return tiles, (_workspace(geometry, sizes, dtype),)


@functools.lru_cache(maxsize=1024)
def backward_plan(
    geometry: Geometry, dtype: DType, limit: int
) -> tuple[list[Tile], tuple[TensorType, ...]]:
    """Return tiles of the input, and the scratch type for the unfolded gradient of one tile."""
    if geometry.is_pointwise:
        return [Tile(range(geometry.y[0]), range(geometry.x[2]))], ()
    tiles = _input_tiles(geometry, dtype, limit)
    sizes = [(len(t.images), max(1, len(windows_over(geometry, t.rows)))) for t in tiles]
    return tiles, (_workspace(geometry, sizes, dtype),)


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """Plan of the gradient of filters: tiles of the sum over all pixels, and its scratch. It
    depends on types and attributes alone."""

    tiles: tuple[Tile, ...]
    scratch: tuple[TensorType, ...]
    unfolded: Scratch | None
    gathered: Scratch | None
    """The scratch type for gathered pixels of dy, if tiles have several images."""
    total: Scratch | None
    """The scratch type of float32 sums, for a 16-bit gradient with several tiles or for split
    sums."""
    pixels: int | None
    """The number of pixels per part if the sum over a tile is split into parts, else None."""

    def parts(self, pixels: int) -> int:
        """Return the number of parts into which the sum over a tile of `pixels` pixels is split."""
        return 1 if self.pixels is None else pixels // self.pixels


@functools.lru_cache(maxsize=1024)
def weight_plan(geometry: Geometry, narrow: DType, dw: DType, limit: int) -> WeightPlan:
    """Return the plan of the gradient of filters, for operands of dtype `narrow` and a result of
    dtype `dw`."""
    images, filters, rows, columns = geometry.y
    row = _row_bytes(geometry, narrow)
    if dw.itemsize == 2:
        limit = max(1, limit - math.prod(geometry.w) * float32.itemsize)
    both = (row + filters * columns * narrow.itemsize) * rows
    each = Tile(range(1), range(rows))
    if images > 1 and 2 * both <= limit:
        tiles = [Tile(part, each.rows) for part in _even(images, limit // both)]
    elif geometry.is_pointwise:
        tiles = [Tile(range(n, n + 1), each.rows) for n in range(images)]
    else:
        parts = _even(rows, limit // row)
        tiles = [Tile(range(n, n + 1), part) for n in range(images) for part in parts]
    scratch: list[TensorType] = []

    def workspace(elements: int, dtype: DType) -> Scratch:
        scratch.append(TensorType((elements,), dtype))
        return Scratch(len(scratch) - 1)

    many = len(tiles[0].images)
    pixels = many * len(tiles[0].rows) * columns
    depth = geometry.attributes.groups * geometry.depth
    unfolds = many > 1 or not geometry.is_pointwise
    part = _part(geometry, tiles[0]) if narrow.itemsize == 2 else None
    sums = pixels // part if part else dw.itemsize == 2 and len(tiles) > 1
    return WeightPlan(
        tuple(tiles),
        unfolded=workspace(pixels * depth, narrow) if unfolds else None,
        gathered=workspace(pixels * filters, narrow) if many > 1 else None,
        total=workspace(sums * math.prod(geometry.w), float32) if sums else None,
        pixels=part,
        scratch=tuple(scratch),
    )


def _part(geometry: Geometry, tile: Tile) -> int | None:
    """Return the number of pixels per part if the sum over a tile of 16-bit operands should be
    split.

    cuBLASLt splits the sum of a small product by itself, but not if rows of the result are not
    aligned to 16 bytes: 147 taps of 64 filters took 27 ms for 137,984 pixels on an H200. A part
    divides the pixels of an image, so tiles of whole images have a whole number of parts.
    """
    is_aligned = geometry.depth % ALIGNED_TAPS == 0 or geometry.is_pointwise
    rows, columns = geometry.y[2:]
    if is_aligned or geometry.attributes.groups > 1 or len(tile.rows) < rows:
        return None
    if len(tile.images) * rows * columns <= PIXELS_OF_A_PART.stop:
        return None
    return next((n for n in reversed(PIXELS_OF_A_PART) if rows * columns % n == 0), None)


PIXELS_OF_A_PART = range(256, 2049)
"""The permitted numbers of pixels per part of a split sum."""

ALIGNED_TAPS = 4
"""Number of float32 sums in 16 bytes; rows with a multiple of it are aligned."""
