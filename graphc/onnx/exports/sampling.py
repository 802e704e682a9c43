"""Export of sampling of maps at computed positions."""

from __future__ import annotations

import math

import numpy as np

from graphc.ir.graph import Node
from graphc.ir.types import int64
from graphc.onnx.emission import Emission, exports

PADDING = {"zeros": "zeros", "edge": "border", "reflect": "reflection", "symmetric": "reflection"}


@exports("interpolate")
def _interpolate(node: Node, on: Emission, x: str, places: str) -> str:
    """Emit GridSample for sampling at the positions `places`.

    GridSample has coordinates in [-1, 1], and needs at least two axes.
    """
    a, (maps, points) = node.attributes, node.inputs
    extents, dtype = maps.shape[:1:-1], points.type.dtype.numpy
    along_centres = a.outside == "reflect"  # else from the outer edge of the first element
    if along_centres:
        scale = [2 / max(n - 1, 1) for n in extents]
        shift = [-1.0] * len(extents)
    else:
        scale = [2 / n for n in extents]
        shift = [1 / n - 1 for n in extents]
    grid = on("Add", on("Mul", places, on.constant(np.array(scale, dtype))),
              on.constant(np.array(shift, dtype)))  # fmt: skip
    count = math.prod(points.shape[1:-1])
    if len(extents) == 1:  # sample the first of two equal rows
        row_of_maps = on("Unsqueeze", x, on.integers(2))
        x = on("Concat", row_of_maps, row_of_maps, axis=2)
        grid = on("Reshape", grid, on.integers(points.shape[0], count, 1, 1))
        row = on.filled((points.shape[0], count, 1, 1), -1.0 if along_centres else -0.5,
                        points.type.dtype)  # fmt: skip
        grid = on("Concat", grid, row, axis=3)
    else:
        ones = [1] * (len(extents) - 1)
        shape = on.integers(points.shape[0], count, *ones, len(extents))
        grid = on("Reshape", grid, shape)
    y = on(
        "GridSample", x, grid, mode=a.form, padding_mode=PADDING[a.outside],
        align_corners=int(along_centres),
    )  # fmt: skip
    return on("Reshape", y, on.integers(*node.output.shape))


@exports("roi_align")
def _roi_align(node: Node, on: Emission, x: str, rois: str, batch: str) -> str:
    return _regions(node, on, x, rois, batch, "avg")


@exports("roi_align_max")
def _roi_align_max(node: Node, on: Emission, x: str, rois: str, batch: str) -> list[str | None]:
    return [_regions(node, on, x, rois, batch, "max"), None, None]


def _regions(node: Node, on: Emission, x: str, rois: str, batch: str, mode: str) -> str:
    a = node.attributes
    numbers = on.cast(batch, node.inputs[2].type.dtype, int64)
    return on(
        "RoiAlign", x, rois, numbers, mode=mode, output_height=a.bins[0], output_width=a.bins[1],
        sampling_ratio=a.ratio, spatial_scale=a.scale,
        coordinate_transformation_mode="half_pixel" if a.aligned else "output_half_pixel",
    )  # fmt: skip
