"""Interpolation at sample points on the CPU, by tiles of points, in the plan's scratch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from graphc.ir.op import Array

CUBIC = -0.75
"""The free coefficient of Keys' cubic kernel."""


@dataclass(frozen=True, slots=True)
class Taps:
    """The elements (taps) that a point reads: map extents, taps per axis, and padding mode."""

    extents: tuple[int, ...]
    count: int
    outside: str


@dataclass(frozen=True, slots=True)
class Tiles:
    """Sample points (batch, points, axes), and the scratch for a tile of points.

    The scratch has rows of floats, of indices and of bools, and one row per channel.
    """

    taps: Taps
    places: Array
    scratch: tuple[Array, ...]

    def __iter__(self) -> Iterator[Tile]:
        size = self.scratch[0].shape[1]
        for image in range(self.places.shape[0]):
            for start in range(0, self.places.shape[1], size):
                part = slice(start, min(start + size, self.places.shape[1]))
                yield Tile(self, image, part)


class Tile:
    """Some sample points of one image: their taps along each axis, and combinations of these."""

    def __init__(self, tiles: Tiles, image: int, part: slice) -> None:
        self.image, self.part, self.taps = image, part, tiles.taps
        points, (axes, count) = part.stop - part.start, (len(tiles.taps.extents), tiles.taps.count)
        reals, ints, bools, workspace = tiles.scratch
        rows = axes * count
        self.weights = reals[:rows, :points].reshape(axes, count, points)
        self.slopes = reals[rows : 2 * rows, :points].reshape(axes, count, points)
        self.totals = reals[2 * rows : 2 * rows + axes, :points]
        self.weight, self.spare, self.dots = reals[2 * rows + axes :, :points]
        self.index = ints[:rows, :points].reshape(axes, count, points)
        self.flat, self.step = ints[rows:, :points]
        self.beyond = bools[:rows, :points].reshape(axes, count, points)
        self.missed = bools[rows, :points]
        self.workspace = workspace.reshape(-1)[: len(workspace) * points].reshape(
            len(workspace), points
        )
        for axis in range(axes):
            self._find(axis, tiles.places[image, part, axes - 1 - axis])

    def _find(self, axis: int, place: Array) -> None:
        """Compute weights, slopes and indices of the taps along an axis, at coordinates `place`."""
        count, base, part = self.taps.count, self.spare, self.weight
        if count == 1:
            np.rint(place, out=base)
            self.weights[axis].fill(1)
        else:
            np.floor(place, out=base)
            np.subtract(place, base, out=part)
            find = _linear if count == 2 else _cubic
            find(part, self.weights[axis], self.slopes[axis])
        for tap in range(count):
            index = self.index[axis, tap]
            np.copyto(index, base, casting="unsafe")
            np.add(index, tap - (count - 1) // 2, out=index)
            self._bring_inside(index, self.beyond[axis, tap], self.taps.extents[axis])

    def _bring_inside(self, index: Array, beyond: Array, extent: int) -> None:
        """Map indices beyond the ends to elements; `beyond` marks those that read zeros."""
        if self.taps.outside == "zeros":
            np.less(index, 0, out=beyond)
            np.greater_equal(index, extent, out=self.missed)
            np.logical_or(beyond, self.missed, out=beyond)
        elif self.taps.outside == "reflect":
            np.remainder(index, max(1, 2 * (extent - 1)), out=index)
            np.subtract(index, extent - 1, out=index)
            np.absolute(index, out=index)
            np.subtract(extent - 1, index, out=index)
        elif self.taps.outside == "symmetric":
            np.remainder(index, 2 * extent, out=index)
            np.subtract(2 * extent - 1, index, out=self.flat)
            np.minimum(index, self.flat, out=index)
        np.clip(index, 0, extent - 1, out=index)

    def combinations(self) -> Iterator[tuple[int, ...]]:
        """Yield all combinations of taps.

        For each combination, `flat` has the element index that each point reads. `missed` is true
        where the element is a zero beyond the ends of the map.
        """
        count, extents = self.taps.count, self.taps.extents
        for taps in itertools.product(range(count), repeat=len(extents)):
            self.flat.fill(0)
            self.missed.fill(False)
            for axis, tap in enumerate(taps):
                np.multiply(self.flat, extents[axis], out=self.flat)
                np.add(self.flat, self.index[axis, tap], out=self.flat)
                if self.taps.outside == "zeros":
                    np.logical_or(self.missed, self.beyond[axis, tap], out=self.missed)
            yield taps

    def weigh(self, taps: tuple[int, ...], sloped: int | None = None) -> Array:
        """Return the product of the taps' weights.

        Along axis `sloped` the slope replaces the weight.
        """
        self.weight.fill(1)
        for axis, tap in enumerate(taps):
            rows = self.slopes if axis == sloped else self.weights
            np.multiply(self.weight, rows[axis, tap], out=self.weight)
        product: Array = self.weight
        return product

    def clear(self, rows: Array) -> None:
        """Set the columns of `rows` to zero whose points read beyond the ends of the map."""
        if self.taps.outside == "zeros":
            np.copyto(rows, 0, where=self.missed)


def _linear(part: Array, weights: Array, slopes: Array) -> None:
    np.subtract(1, part, out=weights[0])
    np.copyto(weights[1], part)
    slopes[0].fill(-1)
    slopes[1].fill(1)


def _cubic(part: Array, weights: Array, slopes: Array) -> None:
    """Compute Keys' kernel and its slope at the distances 1 + part, part, 1 - part and 2 - part."""
    a = CUBIC
    for tap, (sign, shift) in enumerate(((1, 1), (1, 0), (-1, 1), (-1, 2))):
        height, slope = weights[tap], slopes[tap]
        distance = slope
        np.multiply(part, sign, out=distance)
        np.add(distance, shift, out=distance)
        if tap in (1, 2):
            c3, c2, c1, c0 = a + 2, -(a + 3), 0.0, 1.0
        else:
            c3, c2, c1, c0 = a, -5 * a, 8 * a, -4 * a
        np.multiply(distance, c3, out=height)
        for coefficient in (c2, c1):
            np.add(height, coefficient, out=height)
            np.multiply(height, distance, out=height)
        np.add(height, c0, out=height)
        _slope(distance, sign, c3, c2, c1)


def _slope(distance: Array, sign: int, c3: float, c2: float, c1: float) -> None:
    """Overwrite each distance d with the slope of a cubic, sign · ((3 c3 d + 2 c2) d + c1).

    `sign` is the derivative of d with respect to the coordinate. The equal form
    3 c3 (d + c2 / (3 c3))² + c1 - c2² / (3 c3) reads d only once.
    """
    centre = c2 / (3 * c3)
    np.add(distance, centre, out=distance)
    np.multiply(distance, distance, out=distance)
    np.multiply(distance, 3 * c3 * sign, out=distance)
    np.add(distance, sign * (c1 - c2 * centre), out=distance)


def gather(tiles: Tiles, x: Array, y: Array) -> None:
    """Interpolate x (batch, channels, elements) into y (batch, channels, points)."""
    for tile in tiles:
        result = y[tile.image, :, tile.part]
        result.fill(0)
        for taps in tile.combinations():
            np.take(x[tile.image], tile.flat, 1, tile.workspace, "clip")
            np.multiply(tile.workspace, tile.weigh(taps), out=tile.workspace)
            tile.clear(tile.workspace)
            np.add(result, tile.workspace, out=result)


def scatter(tiles: Tiles, dy: Array, dx: Array) -> None:
    """Compute dx (batch, channels, elements): sums of the gradients of points that read an
    element."""
    dx.fill(0)
    for tile in tiles:
        for taps in tile.combinations():
            np.multiply(dy[tile.image, :, tile.part], tile.weigh(taps), out=tile.workspace)
            tile.clear(tile.workspace)
            for channel, row in zip(dx[tile.image], tile.workspace, strict=True):
                np.add.at(channel, tile.flat, row)


def slopes(tiles: Tiles, dy: Array, x: Array, dplaces: Array) -> None:
    """Compute dplaces (batch, points, axes), the coordinates' gradient, the last axis first."""
    for tile in tiles:
        axes = len(tile.totals)
        tile.totals.fill(0)
        for taps in tile.combinations():
            np.take(x[tile.image], tile.flat, 1, tile.workspace, "clip")
            np.multiply(tile.workspace, dy[tile.image, :, tile.part], out=tile.workspace)
            np.add.reduce(tile.workspace, 0, None, tile.dots)
            tile.clear(tile.dots)
            for axis in range(axes):
                np.multiply(tile.weigh(taps, axis), tile.dots, out=tile.weight)
                np.add(tile.totals[axis], tile.weight, out=tile.totals[axis])
        for axis, total in enumerate(tile.totals):
            np.copyto(dplaces[tile.image, tile.part, axes - 1 - axis], total)
