"""Rows of pooling and resampling."""

from __future__ import annotations

import numpy as np
from ops.samples.sample import Sample, direct, linear_transpose, windows

import graphc as g
from graphc.ops import pool, resample


def pool_samples(label, x, size, stride, padding, dilation=(1, 1)):
    """Max and average pooling with this geometry, and their gradients as ops."""
    a = pool.Pool2dAttributes(size, stride, padding, dilation)
    back = pool._with_extent(a, x)

    def largest(x):
        seen = windows(x, size, stride, padding, dilation, fill=-np.inf)
        flat = seen.reshape(*seen.shape[:4], -1)
        return flat.max(-1), flat.argmax(-1)

    def average(x):
        return windows(x, size, stride, padding, dilation).mean((-2, -1))

    y = average(np.zeros(x)).shape
    # places that lie inside the input for every window
    inner = list(range(size[0] * size[1]))
    middle = inner[len(inner) // 2]

    def chosen(x, place):
        seen = windows(x, size, stride, padding, dilation).reshape(*y, -1)
        return np.take_along_axis(seen, place[..., None].astype(int), -1)[..., 0]

    return [
        Sample(
            "max_pool2d",
            direct(pool.MaxPool2d, a),
            (x,),
            largest,
            {"x": {"dy", "place"}},
            label=label,
        ),
        Sample(
            "max_pool2d_gradient",
            direct(pool.MaxPool2dGradient, back),
            (y, y),
            lambda dy, place: linear_transpose(lambda x: chosen(x, place), x, dy),
            {"dy": {"ddx", "place"}},
            dtypes=("float64", "uint8"),
            int_limit=middle + 1,
            label=label,
        ),
        Sample(
            "max_pool2d_select",
            direct(pool.MaxPool2dSelect, a),
            (x, y),
            chosen,
            {"x": {"dy", "place"}},
            dtypes=("float64", "uint8"),
            int_limit=middle + 1,
            label=label,
        ),
        Sample(
            "average_pool2d",
            direct(pool.AveragePool2d, a),
            (x,),
            average,
            {"x": {"dy"}},
            label=label,
        ),
        Sample(
            "average_pool2d_gradient",
            direct(pool.AveragePool2dGradient, back),
            (y,),
            lambda dy: linear_transpose(average, x, dy),
            {"dy": {"ddx"}},
            label=label,
        ),
    ]


def shares(x, extent):
    rows = list(np.array_split(np.arange(x.shape[2]), extent[0]))
    if all(n % m == 0 for n, m in zip(x.shape[2:], extent, strict=True)):
        columns = list(np.array_split(np.arange(x.shape[3]), extent[1]))
    else:  # uneven shares overlap by one: floor of the start, ceiling of the end
        rows = [
            range(i * x.shape[2] // extent[0], -(-(i + 1) * x.shape[2] // extent[0]))
            for i in range(extent[0])
        ]
        columns = [
            range(j * x.shape[3] // extent[1], -(-(j + 1) * x.shape[3] // extent[1]))
            for j in range(extent[1])
        ]
    out = [[x[:, :, list(r)][..., list(c)].mean((2, 3)) for c in columns] for r in rows]
    return np.array(out).transpose(2, 3, 0, 1)


def bilinear(x, factor):
    for axis in (2, 3):
        n = x.shape[axis]
        centres = (np.arange(n * factor) + 0.5) / factor - 0.5
        x = np.apply_along_axis(
            lambda line, n=n, c=centres: np.interp(c, np.arange(n), line), axis, x
        )
    return x


SAMPLES = [
    *pool_samples("", (2, 2, 6, 4), (2, 2), (2, 2), (0, 0)),
    *pool_samples(" overlapping", (1, 2, 7, 5), (3, 2), (2, 1), (0, 0)),
    *pool_samples(" stride above window", (1, 1, 7, 7), (2, 2), (3, 3), (0, 0)),
    *pool_samples(" dilated, one side padded", (2, 1, 7, 6), (2, 3), (2, 1), (0, 1, 2, 3), (3, 2)),
    Sample(
        "max_pool2d", lambda x: g.max_pool2d(x, 3, 2, 1).producer.outputs, ((2, 3, 5, 5),),
        lambda x: (
            (w := windows(x, (3, 3), (2, 2), (1, 1), fill=-np.inf).reshape(2, 3, 3, 3, -1)).max(-1),
            w.argmax(-1),
        ),
        {"x": {"dy", "place"}}, label=" padded",
    ),
    Sample(
        "average_pool2d", lambda x: g.average_pool2d(x, 3, 2, 1), ((2, 3, 5, 5),),
        lambda x: windows(x, (3, 3), (2, 2), (1, 1)).mean((-2, -1)), {"x": {"dy"}},
        label=" padded",
    ),
    Sample(
        "adaptive_average_pool2d", lambda x: g.adaptive_average_pool2d(x, (3, 2)), ((2, 2, 7, 5),),
        lambda x: shares(x, (3, 2)), {"x": {"dy"}},
    ),
    Sample(
        "adaptive_average_pool2d_gradient",
        direct(resample.AdaptiveAveragePool2dGradient, resample.ExtentAttributes((7, 5))),
        ((2, 2, 3, 2),),
        lambda dy: linear_transpose(lambda x: shares(x, (3, 2)), (2, 2, 7, 5), dy),
        {"dy": {"ddx"}},
    ),
    Sample(
        "upsample_nearest2d", lambda x: g.upsample2d(x, 3), ((2, 2, 2, 3),),
        lambda x: x.repeat(3, 2).repeat(3, 3), {"x": {"dy"}},
    ),
    Sample(
        "upsample_bilinear2d", lambda x: g.upsample2d(x, 2, "bilinear"), ((2, 2, 3, 4),),
        lambda x: bilinear(x, 2), {"x": {"dy"}},
    ),
    Sample(
        "upsample_bilinear2d_gradient",
        direct(resample.UpsampleBilinear2dGradient, resample.UpsampleAttributes(3)),
        ((1, 2, 6, 9),),
        lambda dy: linear_transpose(lambda x: bilinear(x, 3), (1, 2, 2, 3), dy), {"dy": {"ddx"}},
    ),
]  # fmt: skip
