"""Rows of regions of maps."""

from __future__ import annotations

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
    *samples(" whole numbers", (3, 1, 8, 6), 6, ra.RoiAlignAttributes((1, 2), 0, 1.5, False)),
]
