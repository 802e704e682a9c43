"""Rows of maps interpolated at places that are given."""

from __future__ import annotations

import itertools
import math

import numpy as np
from ops.samples.sample import Sample, direct, linear_transpose

from graphc.ops import interpolate as ip


def height(form, d):
    d = abs(d)
    if form == "linear":
        return max(0.0, 1 - d)
    a = -0.75
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0


def steepness(form, d):
    """The derivative of `height`."""
    sign, d, a = math.copysign(1, d), abs(d), -0.75
    if form == "linear":
        return -sign if d < 1 else 0.0
    if d <= 1:
        return sign * (3 * (a + 2) * d**2 - 2 * (a + 3) * d)
    return sign * (3 * a * d**2 - 10 * a * d + 8 * a) if d < 2 else 0.0


def element(i, n, outside):
    """The element that stands at place i, None for a zero."""
    if outside == "zeros":
        return i if 0 <= i < n else None
    if outside == "edge":
        return min(max(i, 0), n - 1)
    while not 0 <= i < n:  # mirrored at one end after the other
        if i < 0:
            i = -i if outside == "reflect" else -1 - i
        else:
            i = 2 * (n - 1) - i if outside == "reflect" else 2 * n - 1 - i
    return i


def line_taps(place, n, form, outside, sloped=False):
    """Weight of each element along one axis, or how it changes with the place."""
    found = [0.0] * n
    if form == "nearest":
        taps = {round(place): 1.0}
    else:
        low = math.floor(place)
        taps = {
            i: -steepness(form, i - place) if sloped else height(form, i - place)
            for i in range(low - 2, low + 4)
        }
    for i, weight in taps.items():
        at = element(i, n, outside)
        if at is not None:
            found[at] += weight
    return np.array(found)


def interpolated(x, places, form, outside, sloped=None):
    """Point by point: the weights of an axis times those of the next, `sloped` along one."""
    points = places.reshape(places.shape[0], -1, places.shape[-1])
    y = np.zeros((*x.shape[:2], points.shape[1]))
    for n, p in itertools.product(range(x.shape[0]), range(points.shape[1])):
        part = x[n]
        for axis, extent in enumerate(x.shape[2:]):
            place = points[n, p, -1 - axis]
            weights = line_taps(place, extent, form, outside, axis == sloped)
            part = np.tensordot(part, weights, ([1], [0]))
        y[n, :, p] = part
    return y.reshape(*x.shape[:2], *places.shape[1:-1])


def place_sample(label, x, places, form, outside):
    def reference(dy, x, places):
        axes = reversed(range(x.ndim - 2))
        slopes = [(dy * interpolated(x, places, form, outside, axis)).sum(1) for axis in axes]
        return np.stack(slopes, -1)

    a = ip.InterpolateAttributes(form, outside)
    y = (*x[:2], *places[1:-1])
    build = direct(ip.InterpolatePlaceGradient, a)
    reads = {
        "dy": {"ddplaces", "x", "places"}, "x": {"ddplaces", "dy", "places"},
        "places": {"ddplaces", "dy", "x", "places"},
    }  # fmt: skip
    return Sample(
        "interpolate_place_gradient", build, (y, x, places), reference,
        reads if form == "linear" else {}, label=label,
    )  # fmt: skip


def samples(label, x, places, form, outside):
    a = ip.InterpolateAttributes(form, outside)
    back = ip.InterpolateGradientAttributes(x[2:], form, outside)
    y = (*x[:2], *places[1:-1])
    return [
        Sample(
            "interpolate", direct(ip.Interpolate, a), (x, places),
            lambda x, places: interpolated(x, places, form, outside),
            {"x": {"dy", "places"}, "places": {"dy", "x", "places"}},
            second_order=form == "linear", label=label,
        ),
        Sample(
            "interpolate_input_gradient", direct(ip.InterpolateInputGradient, back), (y, places),
            lambda dy, places: linear_transpose(
                lambda x: interpolated(x, places, form, outside), x, dy
            ),
            {"dy": {"ddx", "places"}, "places": {"ddx", "dy", "places"}},
            second_order=form == "linear", label=label,
        ),
    ]  # fmt: skip


PLANE = ((2, 3, 3, 2), (2, 2, 3, 2))

SAMPLES = [
    *samples("", *PLANE, "linear", "zeros"),
    *samples(" edge", (1, 2, 2, 3), (1, 4, 2), "linear", "edge"),
    *samples(" cubic", *PLANE, "cubic", "zeros"),
    *samples(" cubic reflect", (1, 2, 3, 2), (1, 5, 2), "cubic", "reflect"),
    *samples(" volume", (1, 2, 2, 3, 2), (1, 2, 2, 2, 3), "linear", "symmetric"),
    place_sample("", *PLANE, "linear", "zeros"),
    place_sample(" cubic", *PLANE, "cubic", "symmetric"),
    place_sample(" volume", (1, 2, 2, 3, 2), (1, 2, 2, 2, 3), "linear", "edge"),
    place_sample(" cubic volume", (1, 2, 2, 2, 2), (1, 3, 3), "cubic", "zeros"),
    *samples(" line", (2, 2, 4), (2, 3, 1), "cubic", "edge"),
    Sample(
        "interpolate", direct(ip.Interpolate, ip.InterpolateAttributes("nearest", "reflect")),
        PLANE, lambda x, p: interpolated(x, p, "nearest", "reflect"), label=" nearest",
    ),
    Sample(
        "interpolate_input_gradient",
        direct(
            ip.InterpolateInputGradient,
            ip.InterpolateGradientAttributes((3, 2), "nearest", "zeros"),
        ),
        ((2, 3, 4), (2, 4, 2)),
        lambda dy, p: linear_transpose(
            lambda x: interpolated(x, p, "nearest", "zeros"), (2, 3, 3, 2), dy
        ),
        label=" nearest",
    ),
]  # fmt: skip
