"""Means over bins of regions on the CPU: products with the weights of rows and of columns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from graphc.ir.op import Array


@dataclass(frozen=True, slots=True)
class Regions:
    """Corners of regions, their images, how they are sampled, and scratch for weights."""

    rois: Array
    batch: Array
    ratio: int
    scale: float
    aligned: bool
    scratch: tuple[Array, ...]

    def over(self, images: int) -> Iterator[tuple[int, int, slice, slice]]:
        """Each region with its image and the rows and columns that it reads; the first two tensors
        of the scratch are then its weights. One that reads nothing has an empty slice."""
        rows, columns = self.scratch[:2]
        for region in range(len(self.rois)):
            left, top, right, bottom = (float(corner) for corner in self.rois[region])
            image = min(max(int(self.batch[region]), 0), images - 1)
            yield region, image, self._fill(rows, top, bottom), self._fill(columns, left, right)

    def _fill(self, weights: Array, first: float, last: float) -> slice:
        """The weight of each element in each bin along an axis."""
        bins, extent = weights.shape
        shift = 0.5 if self.aligned else 0.0
        start = first * self.scale - shift
        size = last * self.scale - shift - start
        size = size if self.aligned else max(size, 1.0)
        weights.fill(0)
        if not (math.isfinite(start) and math.isfinite(size)):
            return slice(0, 0)
        count = float(self.ratio or math.ceil(size / bins))
        if count <= 0:
            return slice(0, 0)
        low, past = extent, 0
        for number in range(bins):
            for at, part in _points(start + number * (size / bins), size / bins, count, extent):
                weights[number, at] += (1 - part) / count
                low, past = min(low, at), max(past, at + 1)
                if part:
                    weights[number, at + 1] += part / count
                    past = max(past, at + 2)
        return slice(low, past) if past else slice(0, 0)


def _points(start: float, size: float, count: float, extent: int) -> Iterator[tuple[int, float]]:
    """The element before each point of a bin, and how far the point is from there. Points beyond
    the axis are left out, without meeting each of them."""
    step = size / count
    first, past = 0.0, count
    if step > 0:
        first = min(max((-1 - start) / step - 2, 0.0), count)
        past = min(max((extent - start) / step + 2, 0.0), count)
    for number in range(int(first), int(past)):
        place = start + (number + 0.5) * step
        if not -1 <= place <= extent:
            continue
        place = max(place, 0.0)
        at = int(place)
        yield (extent - 1, 0.0) if at >= extent - 1 else (at, place - at)


def pool(regions: Regions, x: Array, y: Array) -> None:
    """y (regions, channels, rows, columns): weights of rows · x · weights of columns."""
    rows, columns, room = regions.scratch
    for region, image, down, across in regions.over(len(x)):
        part = x[image, :, down, across]
        shape = (x.shape[1], len(rows), part.shape[2])
        between = room[: math.prod(shape)].reshape(shape)
        np.matmul(rows[:, down], part, out=between)
        np.matmul(between, columns[:, across].T, out=y[region])


def spread(regions: Regions, dy: Array, dx: Array) -> None:
    """dx: the transposed products of all regions, summed in their order."""
    rows, columns, room, product = regions.scratch
    dx.fill(0)
    for region, image, down, across in regions.over(len(dx)):
        target = dx[image, :, down, across]
        shape = (dx.shape[1], len(rows), target.shape[2])
        between = room[: math.prod(shape)].reshape(shape)
        whole = product[: target.size].reshape(target.shape)
        np.matmul(dy[region], columns[:, across], out=between)
        np.matmul(rows[:, down].T, between, out=whole)
        np.add(target, whole, out=target)
