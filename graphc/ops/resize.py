"""Resizing by interpolation, as in ONNX's Resize: one linear map per axis.

Each result has a coordinate among the elements of the axis. It is the sum of the elements around
the coordinate, weighted by a kernel of the distance (Keys, 1981, for the cubic kernel). Beyond the
ends, the elements at the ends are repeated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from graphc.errors import DTypeError, OptionError, ShapeError, choose, quoted
from graphc.ir.attributes import Between, OneOf, Whole
from graphc.ir.builder import apply, as_value
from graphc.ir.graph import Value
from graphc.ir.op import Array
from graphc.ir.types import TensorType, as_shape, number_of
from graphc.ops.axis_map import AxisMap, Table, table_of
from graphc.ops.elementwise import float_dtype
from graphc.ops.geometry import COUNTED

FORMS = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric",
    "tf_crop_and_resize",
)  # fmt: skip
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True, slots=True)
class ResizeAttributes:
    """An axis, its extent in the result, and the options of resizing."""

    axis: Annotated[int, Whole()]
    extent: Annotated[int, Whole(1, COUNTED)]
    scale: Annotated[float, Between(above=0.0)]
    """The scale: the extent of the result is that of x times the scale, rounded down."""
    form: Annotated[str, OneOf(FORMS)] = "nearest"
    coordinates: Annotated[str, OneOf(COORDINATES)] = "half_pixel"
    rounding: Annotated[str, OneOf(ROUNDINGS)] = "round_prefer_floor"
    cubic: Annotated[float, Between(-1e6, 1e6)] = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    region: Annotated[tuple[float, float], Between(-1e6, 1e6)] = (0.0, 1.0)
    value: float = 0.0


def coordinates_of(a: ResizeAttributes, source: int, result: int) -> Array:
    """Return the coordinate of each result on the axis of x, in elements of x."""
    places, length = np.arange(result, dtype=np.float64), a.scale * source
    if a.coordinates == "asymmetric":
        return places / a.scale
    if a.coordinates == "align_corners":
        return places * ((source - 1) / (length - 1)) if length != 1 else 0 * places
    if a.coordinates == "tf_crop_and_resize":
        start, end = a.region
        if length == 1:
            return 0 * places + (start + end) * (source - 1) / 2
        return start * (source - 1) + places * ((end - start) * (source - 1) / (length - 1))
    if a.coordinates == "pytorch_half_pixel" and length <= 1:
        return 0 * places
    shift = source / 2 * (1 - result / length) if a.coordinates == "half_pixel_symmetric" else 0
    return shift + (places + 0.5) / a.scale - 0.5


def _rounded(a: ResizeAttributes, coordinates: Array) -> Array:
    if a.rounding == "round_prefer_floor":
        return np.ceil(coordinates - 0.5)
    if a.rounding == "round_prefer_ceil":
        return np.floor(coordinates + 0.5)
    return np.floor(coordinates) if a.rounding == "floor" else np.ceil(coordinates)


def _height(a: ResizeAttributes, distance: Array) -> Array:
    """Return the kernel at a distance: a tent, or Keys' cubic with the coefficient `a.cubic`."""
    d = np.abs(distance)
    if a.form == "linear":
        tent: Array = np.maximum(1 - d, 0)
        return tent
    near = ((a.cubic + 2) * d - (a.cubic + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a.cubic - 4 * a.cubic
    heights: Array = np.where(d <= 1, near, np.where(d < 2, far, 0))
    return heights


def _squeeze(a: ResizeAttributes) -> float:
    """Return the factor from distances between elements to arguments of the kernel."""
    return min(a.scale, 1.0) if a.antialias else 1.0


def _reach(a: ResizeAttributes) -> int:
    """Return the number of elements with a weight on either side of a coordinate."""
    return math.ceil((1 if a.form == "linear" else 2) / _squeeze(a))


def interpolation(a: ResizeAttributes, source: int, result: int) -> Table:
    """Return the table of weights from an axis of `source` elements to one of `result` elements."""
    centres = coordinates_of(a, source, result)
    kept = np.ones((result, 1), bool)
    if a.coordinates == "tf_crop_and_resize":
        kept = ((centres >= 0) & (centres <= source - 1))[:, None]
    if a.form == "nearest":
        return table_of(np.clip(_rounded(a, centres), 0, source - 1)[:, None], None, kept)
    squeeze, reach = _squeeze(a), _reach(a)
    places = np.floor(centres)[:, None] + np.arange(1 - reach, reach + 1)
    weights = _height(a, (places - centres[:, None]) * squeeze)
    if a.antialias:
        weights /= weights.sum(1, keepdims=True)
    if a.exclude_outside:
        weights *= (places >= 0) & (places < source)
        weights /= np.where(kept, weights.sum(1, keepdims=True), 1)
    return table_of(np.clip(places, 0, source - 1), weights, kept & (weights != 0))


class ResizeAxis(AxisMap):
    """y = x resized along one axis by interpolation."""

    name, attributes, partner = "resize_axis", ResizeAttributes, "resize_axis_gradient"
    cure = (
        'resize parts by region (coordinates="tf_crop_and_resize") and join them with graphc.concat'
    )

    def check(self, attributes: Any, x: TensorType, source: int, result: int) -> None:
        a: ResizeAttributes = attributes
        number_of("value", a.value, x.dtype)
        if a.form != "nearest":
            float_dtype(x)
        length = a.scale * source
        if not result - 0.5 <= length < result + 1:
            raise ShapeError(
                f"an axis of {source} elements scaled by {a.scale:g} does not have {result} "
                "elements"
            )

    def taps(self, attributes: Any) -> int:
        return 1 if attributes.form == "nearest" else 2 * _reach(attributes)

    def forward_table(self, attributes: Any, source: int, result: int) -> Table:
        return interpolation(attributes, source, result)

    def fill(self, attributes: Any) -> float:
        return float(attributes.value)

    def linear(self, attributes: Any) -> Any:
        return replace(attributes, value=0.0)


class ResizeAxisGradient(ResizeAxis):
    """dx = for each element of x, the weighted sum of the gradients of the results that use it."""

    name, partner, transposes = "resize_axis_gradient", "resize_axis", True

    def fill(self, attributes: Any) -> float:
        return 0.0


# --- function ---


def resize(
    x: Value,
    shape: Sequence[int] | None = None,
    scales: Sequence[float] | None = None,
    form: str = "nearest",
    coordinates: str = "half_pixel",
    rounding: str = "round_prefer_floor",
    antialias: bool = False,
    cubic: float = -0.75,
    exclude_outside: bool = False,
    region: Sequence[tuple[float, float]] | None = None,
    value: float = 0.0,
) -> Value:
    """Interpolate x to another shape, each axis separately, as ONNX's Resize does.

    Give the `shape` of the result, with as many axes as x, or `scales`, one per axis. With both,
    `scales` map coordinates, otherwise the ratios of the extents; without `shape`, extents times
    `scales` are rounded down. The `form` is "nearest", for any dtype, or "linear" or "cubic" (with
    the coefficient `cubic`), for floats.

    `coordinates` maps the centers of the result to those of x:

    - "half_pixel" aligns the outer edges, "align_corners" the first and last centers.
    - "asymmetric" aligns the first centers, "half_pixel_symmetric" the middles.
    - "pytorch_half_pixel" is "half_pixel", except for an extent of 1.
    - "tf_crop_and_resize" takes the `region` (start, end) of each axis, as fractions of it.
      Elements beyond x are `value` there.

    `rounding` is for "nearest": "round_prefer_floor", "round_prefer_ceil", "floor" or "ceil".

    With `antialias`, the kernel of an axis that shrinks is widened by the ratio of the extents.
    With `exclude_outside`, weights beyond the ends are 0; otherwise they are added to the weights
    of the elements at the ends. PyTorch's "nearest" is "asymmetric" with "floor". The weights of
    all results of an axis are limited to 2**26, 2**24 on a GPU. A result has one weight for
    "nearest", two for "linear", four for "cubic", and more with `antialias`.

    Raises `ShapeError`, `OptionError` and `DTypeError` for invalid arguments.
    """
    rank = as_value("resize", x).type.rank
    choose("resize: form", form, FORMS)
    choose("resize: coordinates", coordinates, COORDINATES)
    choose("resize: rounding", rounding, ROUNDINGS)
    factors, extents = _sizes(x, shape, scales)
    regions = [(0.0, 1.0)] * rank if region is None else [*map(_bounds, region)]
    if len(regions) != rank:
        raise ShapeError(f"resize: give a region for each of {rank} axes, got {region!r}")
    if form != "nearest" and x.type.dtype.kind != "float":
        raise DTypeError(
            f"resize: the form {form!r} needs floats, got {x.type}; convert with graphc.cast"
        )
    if form == "nearest":
        antialias, exclude_outside, cubic = False, False, -0.75
    crops = coordinates == "tf_crop_and_resize"
    filled = number_of("resize: value", value, x.type.dtype) if crops else 0.0
    wanted = [
        ResizeAttributes(
            axis, extent, factor, form, coordinates, rounding, cubic, antialias, exclude_outside,
            bounds if crops else (0.0, 1.0), filled,
        )
        for axis, (extent, factor, bounds) in enumerate(zip(extents, factors, regions, strict=True))
    ]  # fmt: skip
    for attributes in sorted(wanted, key=lambda a: a.scale):  # axes that shrink first
        same = attributes.scale == 1.0 and attributes.extent == x.shape[attributes.axis]
        if not same or attributes.region != (0.0, 1.0):
            x = apply(ResizeAxis, x, attributes=attributes).output
    return x


def _bounds(given: object) -> tuple[float, float]:
    if not isinstance(given, Sequence) or len(given) != 2:
        raise OptionError(f"resize: a region must be (start, end), got {given!r}")
    return given[0], given[1]


def _sizes(
    x: Value, shape: Sequence[int] | None, scales: Sequence[float] | None
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return the scale and the extent of each axis; raises `OptionError` or `ShapeError`."""
    sequences = [each for each in (shape, scales) if each is not None]
    if not sequences or not all(isinstance(each, Sequence) for each in sequences):
        raise OptionError(
            "resize: give the shape or the scales, with one number per axis; got "
            f"shape={quoted(shape)} and scales={quoted(scales)}"
        )
    for given in sequences:
        if len(given) != x.type.rank:
            raise ShapeError(
                f"resize: give a number for each of {x.type.rank} axes, got {quoted(given)}"
            )
    if scales is None:
        extents = as_shape("resize", shape)
        return tuple(m / n for m, n in zip(extents, x.shape, strict=True)), extents
    factors = []
    for factor in scales:
        Between(above=0.0).check("resize: a scale", factor)
        factors.append(float(factor))
    if shape is not None:
        return tuple(factors), as_shape("resize", shape)
    extents = tuple(math.floor(n * factor) for n, factor in zip(x.shape, factors, strict=True))
    if min(extents, default=1) < 1:
        raise ShapeError(f"resize: scales {scales!r} remove all elements of an axis of {x.type}")
    return tuple(factors), extents
