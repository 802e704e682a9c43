"""RoIAlign on the CPU.

The means of a region's bins are the product weights of rows · x · weights of columns. Maxima of
bins are taken over columns first, then over rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.ir.op import Array


@dataclass(frozen=True, slots=True)
class Regions:
    """The corners and image indices of regions, the sampling options, and scratch for weights."""

    rois: Array
    batch: Array
    ratio: int
    scale: float
    aligned: bool
    scratch: tuple[Array, ...]

    def over(self, images: int) -> Iterator[tuple[int, int, slice, slice]]:
        """Yield each region with its image and the rows and columns that it reads.

        Before each yield, the weights of the region's rows and columns are written to the first two
        tensors of `scratch`. The slices of a region that reads no element are empty.
        """
        rows, columns = self.scratch[:2]
        for region in range(len(self.rois)):
            left, top, right, bottom = (float(corner) for corner in self.rois[region])
            image = min(max(int(self.batch[region]), 0), images - 1)
            yield region, image, self._fill(rows, top, bottom), self._fill(columns, left, right)

    def span(self, first: float, last: float, bins: int) -> tuple[float, float, float]:
        """Return start and size of a region along an axis, in elements, and the points per bin."""
        shift = 0.5 if self.aligned else 0.0
        start = first * self.scale - shift
        size = last * self.scale - shift - start
        size = size if self.aligned else max(size, 1.0)
        if not (math.isfinite(start) and math.isfinite(size)):
            return 0.0, 0.0, 0.0
        return start, size, max(float(self.ratio or math.ceil(size / bins)), 0.0)

    def _fill(self, weights: Array, first: float, last: float) -> slice:
        """Compute the weight of each element in each bin along an axis.

        Return the slice of elements read.
        """
        bins, extent = weights.shape
        weights.fill(0)
        start, size, count = self.span(first, last, bins)
        if not count:
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
    """Yield the index of the element before each point of a bin, and the distance between the two.

    Points beyond the axis are omitted, without a loop over them.
    """
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
    """Compute y (regions, channels, rows, columns): weights of rows · x · weights of columns."""
    rows, columns, workspace = regions.scratch
    for region, image, down, across in regions.over(len(x)):
        part = x[image, :, down, across]
        shape = (x.shape[1], len(rows), part.shape[2])
        between = workspace[: math.prod(shape)].reshape(shape)
        np.matmul(rows[:, down], part, out=between)
        np.matmul(between, columns[:, across].T, out=y[region])


def spread(regions: Regions, dy: Array, dx: Array) -> None:
    """Compute dx: the transposed products of all regions, added in the order of regions."""
    rows, columns, workspace, product = regions.scratch
    dx.fill(0)
    for region, image, down, across in regions.over(len(dx)):
        target = dx[image, :, down, across]
        shape = (dx.shape[1], len(rows), target.shape[2])
        between = workspace[: math.prod(shape)].reshape(shape)
        whole = product[: target.size].reshape(target.shape)
        np.matmul(dy[region], columns[:, across], out=between)
        np.matmul(rows[:, down].T, between, out=whole)
        np.add(target, whole, out=target)


@dataclass(frozen=True, slots=True)
class Largest:
    """The maximum of each bin, or its gradient, with map index and weight of the chosen element."""

    values: Array
    place: Array
    weight: Array

    def part(self, index: Any) -> Largest:
        """Return the views of the three arrays at `index`."""
        return Largest(self.values[index], self.place[index], self.weight[index])


@dataclass(frozen=True, slots=True)
class Bin:
    """The elements around a bin's points along an axis, with their weights, in order.

    `has_zero` is true if there are points beyond the axis or elements of weight 0.
    """

    terms: list[tuple[int, float]]
    has_zero: bool

    @classmethod
    def along(cls, regions: Regions, first: float, last: float, count: int, n: int) -> list[Bin]:
        """Return the `count` bins of a region from `first` to `last` along an axis of extent n."""
        start, size, points = regions.span(first, last, count)
        if not points:
            return [cls([], True)] * count
        found = []
        for number in range(count):
            terms, met, has_zero = list[tuple[int, float]](), 0, False
            for at, part in _points(start + number * (size / count), size / count, points, n):
                terms.append((at, 1 - part))
                if part:
                    terms.append((at + 1, part))
                has_zero, met = has_zero or not part, met + 1
            found.append(cls(terms, has_zero or met < points))
        return found


def largest(regions: Regions, x: Array, y: Largest) -> None:
    """Compute the maxima of bins: first over each row of x for each bin column, then over rows."""
    (_, _, height, width), (rows, columns) = x.shape, y.values.shape[2:]
    values, place, weight, trial, wins = regions.scratch
    between = Largest(values, place, weight)
    for region in range(len(regions.rois)):
        left, top, right, bottom = (float(corner) for corner in regions.rois[region])
        image = min(max(int(regions.batch[region]), 0), len(x) - 1)
        down = Bin.along(regions, top, bottom, rows, height)
        across = Bin.along(regions, left, right, columns, width)
        read = [at for bin in down for at, _ in bin.terms] or [0]
        used = slice(min(read), max(read) + 1)
        for q, bin in enumerate(across):
            target = between.part((slice(None), used, q))
            ones = ((x[image, :, used, at], at, w, None) for at, w in bin.terms)
            _take_largest(target, ones, trial, wins)
        for p, bin in enumerate(down):
            target = y.part((region, slice(None), p))
            lines = (
                (values[:, at], at * width, w, between.part((slice(None), at)))
                for at, w in bin.terms
            )
            _take_largest(target, lines, trial, wins)
            for q, other in enumerate(across):
                end = target.part((slice(None), q))
                _or_zero(end, bin, other, wins[: len(end.values)])


def _take_largest(
    target: Largest,
    candidates: Iterable[tuple[Array, int, float, Largest | None]],
    trial: Array,
    wins: Array,
) -> None:
    """Store in `target` the elementwise maximum of all candidates times their weights.

    A candidate is (values, index, weight, maxima). The index and weight of the largest candidate
    are stored, too. If its values are themselves `maxima`, their indices are added, and their
    weights multiplied.
    """
    target.values.fill(-np.inf)
    trial = trial[: target.values.size].reshape(target.values.shape)
    wins = wins[: target.values.size].reshape(target.values.shape)
    target.place.fill(0)
    target.weight.fill(0)
    for values, at, weight, of in candidates:
        np.multiply(values, weight, out=trial)
        np.greater(trial, target.values, out=wins)
        np.maximum(trial, target.values, out=target.values)
        np.copyto(target.place, at if of is None else of.place, where=wins)
        np.copyto(target.weight, weight if of is None else of.weight, where=wins)
        if of is not None:
            np.add(target.place, at, out=target.place, where=wins)
            np.multiply(target.weight, weight, out=target.weight, where=wins)


def _or_zero(y: Largest, row: Bin, column: Bin, below: Array) -> None:
    """Set bins to 0 if they have no elements, or if an element of weight 0 is the maximum."""
    if not (row.terms and column.terms):
        below.fill(True)
    elif row.has_zero or column.has_zero:
        np.less(y.values, 0, out=below)
    else:
        return
    for array in (y.values, y.place, y.weight):
        np.copyto(array, 0, where=below)


def spread_chosen(dy: Largest, batch: Array, dx: Array, places: Array, line: Array) -> None:
    """Compute dx: add dy · weight at the index of each maximum, in order of regions and bins."""
    dx.fill(0)
    for region, channel in np.ndindex(*dy.values.shape[:2]):
        image = min(max(int(batch[region]), 0), len(dx) - 1)
        plane, part = dx[image, channel].reshape(-1), dy.part((region, channel))
        np.clip(part.place.reshape(-1), 0, plane.size - 1, out=places)
        np.multiply(part.values.reshape(-1), part.weight.reshape(-1), out=line)
        np.add.at(plane, places, line)


def select_chosen(x: Array, batch: Array, y: Largest, places: Array, line: Array) -> None:
    """Compute y: the elements of x at the indices of the maxima, times the weights."""
    for region, channel in np.ndindex(*y.values.shape[:2]):
        image = min(max(int(batch[region]), 0), len(x) - 1)
        part = y.part((region, channel))
        np.copyto(places, part.place.reshape(-1))
        np.take(x[image, channel].reshape(-1), places, 0, line, "clip")
        np.multiply(line.reshape(part.values.shape), part.weight, out=part.values)
