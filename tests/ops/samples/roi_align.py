"""Rows of regions of maps."""

from __future__ import annotations

import itertools
import math

import numpy as np
from ops.samples.sample import Sample, direct, linear_transpose

from graphc.ops import roi_align as ra


def bilinear(plane, y, x):
    """The mean of the four elements around a point, 0 more than one element beyond the map."""
    height, width = plane.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return 0.0
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    top, left = min(int(y), max(height - 2, 0)), min(int(x), max(width - 2, 0))
    down, right = min(top + 1, height - 1), min(left + 1, width - 1)
    v, u = y - top, x - left
    above = (1 - u) * plane[top, left] + u * plane[top, right]
    below = (1 - u) * plane[down, left] + u * plane[down, right]
    return (1 - v) * above + v * below


def aligned_regions(x, rois, batch, a):
    """Region by region, bin by bin, point by point."""
    y = np.zeros((len(rois), x.shape[1], *a.bins))
    shift = 0.5 if a.aligned else 0.0
    for r, c, p, q in np.ndindex(*y.shape):
        left, top, right, bottom = rois[r] * a.scale - shift
        size = np.array([bottom - top, right - left])
        size = size if a.aligned else np.maximum(size, 1.0)
        step = size / a.bins
        count = [a.ratio or max(0, math.ceil(s)) for s in step]
        points = [
            bilinear(
                x[batch[r], c],
                top + step[0] * (p + (i + 0.5) / count[0]),
                left + step[1] * (q + (j + 0.5) / count[1]),
            )
            for i in range(count[0])
            for j in range(count[1])
        ]
        y[r, c, p, q] = sum(points) / max(len(points), 1)
    return y


def shares(plane_extent, point):
    """Both elements around a point along an axis with their weights; none for a point beyond."""
    if not -1 <= point <= plane_extent:
        return []
    place = min(max(point, 0.0), plane_extent - 1.0)
    near = int(place)
    return [(near, 1 - (place - near)), (min(near + 1, plane_extent - 1), place - near)]


def largest_of_regions(x, rois, batch, a):
    """Element by element of all points: the largest product, where it stands, its weight."""
    y = np.zeros((len(rois), x.shape[1], *a.bins))
    place, weight = np.zeros(y.shape, int), np.zeros(y.shape)
    for at in np.ndindex(*y.shape):
        r, c, *bin = at
        best = None
        along = []
        for axis in range(2):
            start, end = rois[r][[1 - axis, 3 - axis]] * a.scale - (0.5 if a.aligned else 0.0)
            size = end - start if a.aligned else max(end - start, 1.0)
            step = size / a.bins[axis]
            count = a.ratio or max(0, math.ceil(step))
            points = [start + step * (bin[axis] + (i + 0.5) / count) for i in range(count)]
            along.append([shares(x.shape[2 + axis], point) or [(0, 0.0)] for point in points])
        for above, before in itertools.product(*along):
            for (i, v), (j, u) in itertools.product(above, before):
                found = v * u * x[batch[r], c, i, j]
                if best is None or found > best[0]:
                    best = found, (i * x.shape[3] + j) * (v * u > 0), v * u
        if best is not None:
            y[at], place[at], weight[at] = best
    return y, place, weight


def of_chosen(x, batch, place, weight):
    """The elements at the places of the maps, times their weights."""
    flat = x.reshape(*x.shape[:2], -1)[batch].reshape(*place.shape[:2], -1)
    return (
        np.take_along_axis(flat, place.reshape(flat.shape[0], flat.shape[1], -1), 2).reshape(
            place.shape
        )
        * weight
    )


def largest_samples(label, x, regions, a):
    y, maps = (regions, x[1], *a.bins), (x[0], *x[2:])
    options = {"int_limit": x[0], "label": label, "domain": (-1.0, 5.0)}
    dtypes = ("float64", "int32", "int32", "float64")
    return [
        Sample(
            "roi_align_max", direct(ra.RoiAlignMax, a), (x, (regions, 4), (regions,)),
            lambda x, rois, batch: largest_of_regions(x, rois, batch, a),
            {"x": {"dy", "batch", "place", "weight"}},
            dtypes=("float64", "float64", "int32"), **options,
        ),
        Sample(
            "roi_align_max_gradient",
            direct(ra.RoiAlignMaxGradient, ra.MapAttributes(maps)), (y, (regions,), y, y),
            lambda dy, batch, place, weight: linear_transpose(
                lambda x: of_chosen(x, batch, place, weight), x, dy
            ),
            {"dy": {"ddx", "batch", "place", "weight"}, "weight": {"ddx", "batch", "place", "dy"}},
            dtypes=dtypes, **options,
        ),
        Sample(
            "roi_align_max_select", direct(ra.RoiAlignMaxSelect), (x, (regions,), y, y), of_chosen,
            {"x": {"dy", "batch", "place", "weight"}, "weight": {"dy", "batch", "place", "x"}},
            dtypes=dtypes, **options,
        ),
    ]  # fmt: skip


def samples(label, x, regions, a):
    y = (regions, x[1], *a.bins)
    back = ra.RoiAlignGradientAttributes(a.bins, (x[0], *x[2:]), a.ratio, a.scale, a.aligned)
    options = {
        "dtypes": ("float64", "float64", "int32"), "int_limit": x[0], "label": label,
        "domain": (-1.0, 5.0),
    }  # fmt: skip
    return [
        Sample(
            "roi_align", direct(ra.RoiAlign, a), (x, (regions, 4), (regions,)),
            lambda x, rois, batch: aligned_regions(x, rois, batch, a),
            {"x": {"dy", "rois", "batch"}}, **options,
        ),
        Sample(
            "roi_align_gradient", direct(ra.RoiAlignGradient, back), (y, (regions, 4), (regions,)),
            lambda dy, rois, batch: linear_transpose(
                lambda x: aligned_regions(x, rois, batch, a), x, dy
            ),
            {"dy": {"ddx", "rois", "batch"}}, **options,
        ),
    ]  # fmt: skip


SAMPLES = [
    *samples("", (2, 2, 4, 5), 5, ra.RoiAlignAttributes((2, 3))),
    *samples(" fixed", (2, 3, 5, 4), 4, ra.RoiAlignAttributes((2, 2), 2, 0.75, False)),
    *largest_samples("", (2, 2, 4, 5), 5, ra.RoiAlignAttributes((2, 3))),
    *largest_samples(" fixed", (2, 1, 3, 4), 3, ra.RoiAlignAttributes((2, 1), 2, 0.75, False)),
    *samples(" whole numbers", (3, 1, 8, 6), 6, ra.RoiAlignAttributes((1, 2), 0, 1.5, False)),
]
