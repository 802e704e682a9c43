"""Rows of linear maps along one axis: resizing and padding by what is there."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from ops.samples.sample import Sample, direct, linear_transpose

import graphc as g
from graphc.ops import fold, padding, resize


def cubic(d, a):
    d = abs(d)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0


def centre(i, a, source, result):
    """Where result i lies among the elements of x, by the formulas of ONNX's operator Resize."""
    length = a.scale * source
    start, end = a.region
    return {
        "half_pixel": (i + 0.5) / a.scale - 0.5,
        "pytorch_half_pixel": (i + 0.5) / a.scale - 0.5 if length > 1 else 0.0,
        "asymmetric": i / a.scale,
        "align_corners": i * (source - 1) / (length - 1) if length != 1 else 0.0,
        "half_pixel_symmetric":
            source / 2 * (1 - result / length) + (i + 0.5) / a.scale - 0.5,
        "tf_crop_and_resize":
            start * (source - 1) + i * (end - start) * (source - 1) / (length - 1)
            if length != 1
            else 0.5 * (start + end) * (source - 1),
    }[a.coordinates]  # fmt: skip


def rounded(c, rounding):
    low = math.floor(c)
    up = {
        "floor": False, "ceil": c > low,
        "round_prefer_floor": c - low > 0.5, "round_prefer_ceil": c - low >= 0.5,
    }  # fmt: skip
    return low + up[rounding]


def resized_line(line, a):
    """Result by result and element by element."""
    found = []
    for i in range(a.extent):
        c = centre(i, a, len(line), a.extent)
        if a.coordinates == "tf_crop_and_resize" and not 0 <= c <= len(line) - 1:
            found.append(a.value)
            continue
        if a.form == "nearest":
            found.append(line[min(max(rounded(c, a.rounding), 0), len(line) - 1)])
            continue
        squeeze = min(1.0, a.scale) if a.antialias else 1.0
        reach = math.ceil(2 / squeeze) + 1
        weights = {}
        for j in range(math.floor(c) - reach, math.floor(c) + reach + 1):
            distance = (j - c) * squeeze
            height = max(0.0, 1 - abs(distance)) if a.form == "linear" else cubic(distance, a.cubic)
            if not a.exclude_outside or 0 <= j < len(line):
                weights[j] = height
        total = sum(weights.values()) if a.antialias or a.exclude_outside else 1.0
        ends = [min(max(j, 0), len(line) - 1) for j in weights]
        found.append(sum(w / total * line[j] for j, w in zip(ends, weights.values(), strict=True)))
    return np.array(found)


def resized(x, a):
    return np.apply_along_axis(resized_line, a.axis, x, a)


RESIZES = {
    "": ((2, 5, 3), resize.ResizeAttributes(1, 8, 1.6, "linear")),
    " nearest": ((3, 7), resize.ResizeAttributes(1, 5, 5 / 7, rounding="round_prefer_ceil")),
    " cubic": ((5, 2), resize.ResizeAttributes(0, 9, 1.9, "cubic", "half_pixel_symmetric")),
    " cubic inside": (
        (2, 4),
        resize.ResizeAttributes(
            1, 7, 7 / 4, "cubic", "pytorch_half_pixel", cubic=-0.5, exclude_outside=True
        ),
    ),
    " antialias": ((9, 2), resize.ResizeAttributes(0, 4, 4 / 9, "linear", antialias=True)),
    " cubic antialias": (
        (2, 11), resize.ResizeAttributes(1, 4, 0.4, "cubic", antialias=True, exclude_outside=True)
    ),
    " corners": ((2, 3, 4, 2), resize.ResizeAttributes(2, 6, 1.5, "linear", "align_corners")),
    " region": (
        (2, 5),
        resize.ResizeAttributes(
            1, 6, 1.2, "linear", "tf_crop_and_resize", region=(0.3, 1.4), value=2.5
        ),
    ),
    " twice": ((2, 3, 2, 3), resize.ResizeAttributes(3, 6, 2.0, "nearest", "asymmetric")),
}  # fmt: skip


def resize_samples(label, shape, a):
    result = list(shape)
    result[a.axis] = a.extent
    back = replace(a, extent=shape[a.axis], value=0.0)
    return [
        Sample(
            "resize_axis", direct(resize.ResizeAxis, a), (shape,), lambda x: resized(x, a),
            {"x": {"dy"}}, label=label,
        ),
        Sample(
            "resize_axis_gradient", direct(resize.ResizeAxisGradient, back), (tuple(result),),
            lambda dy: linear_transpose(lambda x: resized(x, replace(a, value=0.0)), shape, dy),
            {"x": {"dy"}}, label=label,
        ),
    ]  # fmt: skip


def pad_samples(mode, shape, axis, before, after):
    widths = [(before, after) if i == axis else (0, 0) for i in range(len(shape))]
    result = tuple(n + b + a for n, (b, a) in zip(shape, widths, strict=True))

    def reference(x):
        return np.pad(x, widths, mode)

    back = padding.PadAxisAttributes(axis, shape[axis], before, mode)
    return [
        Sample(
            "pad_axis", lambda x: g.pad(x, widths, mode), (shape,), reference, {"x": {"dy"}},
            label=f" {mode} {axis}",
        ),
        Sample(
            "pad_axis_gradient", direct(padding.PadAxisGradient, back), (result,),
            lambda dy: linear_transpose(reference, shape, dy), {"x": {"dy"}},
            label=f" {mode} {axis}",
        ),
    ]  # fmt: skip


def fold_samples(label, shape, a):
    source = list(shape)
    result = [a.extent if i == a.axis else n for i, n in enumerate(shape)]

    def reference(x):
        sides = [(a.before, a.behind) if i == a.axis else (0, 0) for i in range(x.ndim)]
        wide, count = np.pad(x, sides), a.extent // a.window
        taps = [
            wide.take(np.arange(count) * a.stride + k * a.dilation, a.axis) for k in range(a.window)
        ]
        return np.concatenate(taps, a.axis)

    back = replace(a, extent=source[a.axis])
    return [
        Sample(
            "unfold_axis", direct(fold.UnfoldAxis, a), (shape,), reference, {"x": {"dy"}},
            label=label,
        ),
        Sample(
            "fold_axis", direct(fold.FoldAxis, back), (tuple(result),),
            lambda dy: linear_transpose(reference, shape, dy), {"x": {"dy"}}, label=label,
        ),
    ]  # fmt: skip


SAMPLES = [
    *fold_samples("", (2, 9, 2), fold.UnfoldAttributes(1, 15, 3, 2, 2, 3, 1)),
    *fold_samples(" apart", (7, 2), fold.UnfoldAttributes(0, 4, 2, 4)),
    *(row for label, (shape, a) in RESIZES.items() for row in resize_samples(label, shape, a)),
    *pad_samples("reflect", (2, 4, 3), 1, 2, 3),
    *pad_samples("reflect", (2, 3, 2, 3), 3, 5, 4),
    *pad_samples("edge", (4, 3), 0, 3, 1),
    *pad_samples("wrap", (2, 3), 1, 4, 2),
]
