"""Import of resampling of maps."""

from __future__ import annotations

import graphc
from graphc.importing.calls import UnsupportedError
from graphc.ir.graph import Value
from graphc.ir.types import normalize_axis
from graphc.onnx.calls import OnnxCall, rule

FORMS = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_half_pixel_for_nn", "tf_crop_and_resize",
)  # fmt: skip
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
POLICIES = ("stretch", "not_larger", "not_smaller")


@rule("Resize")
def resize(call: OnnxCall) -> Value:
    """Import Resize: interpolation along some axes, to extents or by factors."""
    x = call.value(0)
    rank = x.type.rank
    axes = [
        normalize_axis(axis, rank, "Resize") for axis in call.attribute("axes", list(range(rank)))
    ]
    scales = _numbers(call, 2)
    coordinates = call.choice("coordinate_transformation_mode", "half_pixel", COORDINATES)
    regions = None
    if coordinates == "tf_crop_and_resize":
        given = [float(n) for n in call.known(1)]
        regions = [(0.0, 1.0)] * rank
        for i, axis in enumerate(axes):
            regions[axis] = given[i], given[i + len(axes)]
    factors, extents = [1.0] * rank, list(x.shape)
    if scales:
        for axis, scale in zip(axes, scales, strict=True):
            factors[axis] = scale
    else:
        for axis, extent in zip(axes, _extents(call, x, axes), strict=True):
            extents[axis] = extent
    return graphc.resize(
        x,
        None if scales else extents,
        factors if scales else None,
        form=call.choice("mode", "nearest", FORMS),
        coordinates=coordinates,
        rounding=call.choice("nearest_mode", "round_prefer_floor", ROUNDINGS),
        antialias=bool(call.attribute("antialias", 0)),
        cubic=call.attribute("cubic_coeff_a", -0.75),
        exclude_outside=bool(call.attribute("exclude_outside", 0)),
        region=regions,
        value=call.attribute("extrapolation_value", 0.0),
    )


def _numbers(call: OnnxCall, index: int) -> list[float]:
    return [float(n) for n in call.known(index)] if call.has(index) else []


def _extents(call: OnnxCall, x: Value, axes: list[int]) -> list[int]:
    """Return the requested extents of a Resize, adjusted by its aspect ratio policy."""
    wanted = call.integers(3)
    policy = call.choice("keep_aspect_ratio_policy", "stretch", POLICIES)
    if policy == "stretch":
        return wanted
    ratios = [n / x.shape[axis] for n, axis in zip(wanted, axes, strict=True)]
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    return [int(ratio * x.shape[axis] + 0.5) for axis in axes]


@rule("Upsample")
def upsample(call: OnnxCall) -> Value:
    """Import Upsample, the form of Resize before opset 10."""
    x = call.value(0)
    scales = _numbers(call, 1) if call.has(1) else call.required("scales")
    form = call.choice("mode", "nearest", ("nearest", "linear"))
    if len(scales) != x.type.rank:
        raise UnsupportedError(f"scales must have one number per axis of {x.type}, got {scales}")
    return graphc.resize(x, scales=scales, form=form, coordinates="asymmetric", rounding="floor")


GRID_FORMS = {"bilinear": "linear", "bicubic": "cubic"}


@rule("GridSample")
def grid_sample(call: OnnxCall) -> Value:
    """Import GridSample; older versions have other mode names for two axes."""
    names = ("linear", "nearest", "cubic", "bilinear", "bicubic")
    form = call.choice("mode", "linear", names)
    return graphc.grid_sample(
        call.value(0),
        call.value(1),
        GRID_FORMS.get(form, form),
        call.choice("padding_mode", "zeros", ("zeros", "border", "reflection")),
        bool(call.attribute("align_corners", 0)),
    )


@rule("RoiAlign")
def roi_align(call: OnnxCall) -> Value:
    """Import RoiAlign: means or maxima of bins of regions."""
    modes = ("half_pixel", "output_half_pixel")
    default = "half_pixel" if call.opset >= 16 else "output_half_pixel"
    return graphc.roi_align(
        call.value(0),
        call.value(1),
        call.value(2),
        (call.attribute("output_height", 1), call.attribute("output_width", 1)),
        call.attribute("sampling_ratio", 0),
        call.attribute("spatial_scale", 1.0),
        call.choice("coordinate_transformation_mode", default, modes) == "half_pixel",
        call.choice("mode", "avg", ("avg", "max")),
    )
