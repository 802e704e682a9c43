"""Import of resampling of maps."""

from __future__ import annotations

import graphc
from graphc.importing.calls import UnsupportedError
from graphc.ir.graph import Value
from graphc.ir.types import normalize_axis
from graphc.onnx.calls import OnnxCall, rule
from graphc.onnx.model import WRITTEN_FOR

FORMS = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_crop_and_resize",
)  # fmt: skip
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
POLICIES = ("stretch", "not_larger", "not_smaller")


@rule("Resize")
def resize(call: OnnxCall) -> Value:
    """Import Resize: interpolation along some axes, to extents or by factors.

    Before opset 11, it has the inputs and the coordinates of Upsample.
    """
    if call.attribute(WRITTEN_FOR, call.opset) < 11:
        return upsample(call)
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
    extents = None
    if not scales:
        wanted, scales = _extents(call, x, axes)
        extents = list(x.shape)
        for axis, extent in zip(axes, wanted, strict=True):
            extents[axis] = extent
    factors = [1.0] * rank
    for axis, scale in zip(axes, scales, strict=True):
        factors[axis] = scale
    return graphc.resize(
        x,
        extents,
        factors,
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


def _extents(call: OnnxCall, x: Value, axes: list[int]) -> tuple[list[int], list[float]]:
    """Return the extents and scales of a Resize with sizes; its aspect ratio policy gives all axes
    the same scale."""
    wanted = call.integers(3)
    policy = call.choice("keep_aspect_ratio_policy", "stretch", POLICIES)
    ratios = [n / x.shape[axis] for n, axis in zip(wanted, axes, strict=True)]
    if policy == "stretch":
        return wanted, ratios
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    return [int(ratio * x.shape[axis] + 0.5) for axis in axes], [ratio] * len(axes)


@rule("Upsample")
def upsample(call: OnnxCall) -> Value:
    """Import Upsample, or Resize before opset 11, whose scales may be below 1.

    The nearest element of an axis is the one before for scales above 1, and else the one after, as
    in onnxruntime and in ONNX's test of that version.
    """
    x = call.value(0)
    last = 2 if call.has(2) else 1  # the converter to opset 11 inserts an input
    scales = _numbers(call, last) if call.has(1) else call.required("scales")
    form = call.choice("mode", "nearest", ("nearest", "linear"))
    if len(scales) != x.type.rank:
        raise UnsupportedError(f"scales must have one number per axis of {x.type}, got {scales}")
    for rounding, bound in (("ceil", min), ("floor", max)):
        parts = [bound(scale, 1.0) for scale in scales]
        if any(part != 1 for part in parts):
            x = graphc.resize(
                x, scales=parts, form=form, coordinates="asymmetric", rounding=rounding
            )
    return x


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
