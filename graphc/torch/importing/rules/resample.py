"""Resizing, grid sampling, and conversion of maps to windows and back."""

from __future__ import annotations

import graphc
from graphc.ir.graph import Value
from graphc.torch.importing.calls import TorchCall, numbers_of, rule


@rule("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def nearest(call: TorchCall) -> Value:
    """Return the nearest elements, with coordinates rounded down."""
    return _resized(call, form="nearest", coordinates="asymmetric", rounding="floor")


@rule("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
def nearest_exact(call: TorchCall) -> Value:
    """Return the elements with the nearest centers."""
    return _resized(call, form="nearest", rounding="round_prefer_ceil")


@rule(
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
)  # fmt: skip
def smooth(call: TorchCall) -> Value:
    """Interpolate along each axis; antialiasing uses another cubic coefficient."""
    form = "cubic" if "cubic" in call.operator else "linear"
    coordinates = "align_corners" if call["align_corners"] else "half_pixel"
    if call.operator.endswith("_aa"):
        return _resized(
            call, form=form, coordinates=coordinates, antialias=True, cubic=-0.5,
            exclude_outside=True,
        )  # fmt: skip
    return _resized(call, form=form, coordinates=coordinates)


def _resized(call: TorchCall, **how: object) -> Value:
    """Resize to torch's extents; if factors are given, coordinates follow from them."""
    x = call.value("input" if "input" in call.arguments else "self")
    factors = _factors(call, x.type.rank - 2)
    whole = {n / m for n, m in zip(call.shape[2:], x.shape[2:], strict=True)}
    form, coordinates = how["form"], how.get("coordinates")
    is_plain = (form, coordinates) in (("nearest", "asymmetric"), ("linear", "half_pixel"))
    if x.type.rank == 4 and is_plain and len(how) < 4 and len(whole) == 1:
        (factor,) = whole
        if factor.is_integer() and (factors is None or set(factors) == {factor}):
            return graphc.upsample2d(x, int(factor), "nearest" if form == "nearest" else "bilinear")
    if factors is None or coordinates == "align_corners":
        return graphc.resize(x, call.shape, **how)  # type: ignore[arg-type]
    return graphc.resize(x, scales=(1.0, 1.0, *factors), **how)  # type: ignore[arg-type]


def _factors(call: TorchCall, axes: int) -> list[float] | None:
    """Return the given factors, or None if extents are given."""
    if call.has("scale_factors"):
        return [float(factor) for factor in call["scale_factors"]]
    names = ("scales",) if axes == 1 else ("scales_d", "scales_h", "scales_w")[-axes:]
    given = [call.get(name) for name in names]
    return None if any(factor is None for factor in given) else [float(n) for n in given]


INTERPOLATIONS = ("linear", "nearest", "cubic")
PADDINGS = ("zeros", "border", "reflection")
"""Paddings, indexed by torch's codes."""


@rule("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sample(call: TorchCall) -> Value:
    """Sample maps at the positions of a grid."""
    return graphc.grid_sample(
        call.value("input"),
        call.value("grid"),
        INTERPOLATIONS[call["interpolation_mode"]],
        PADDINGS[call["padding_mode"]],
        bool(call["align_corners"]),
    )


@rule("im2col")
def im2col(call: TorchCall) -> Value:
    """Return the elements of each window as a column."""
    frame = (numbers_of(call[n], 2) for n in ("kernel_size", "stride", "padding", "dilation"))
    return graphc.im2col(call.value("self"), *frame)


@rule("col2im")
def col2im(call: TorchCall) -> Value:
    """Return the sum over all windows at each position."""
    frame = (numbers_of(call[n], 2) for n in ("kernel_size", "stride", "padding", "dilation"))
    return graphc.col2im(call.value("self"), numbers_of(call["output_size"], 2), *frame)
