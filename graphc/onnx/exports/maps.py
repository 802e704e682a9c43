"""Export of pooling and resampling of (batch, channels, height, width)."""

from __future__ import annotations

import numpy as np

from graphc.ir.graph import Node
from graphc.ir.op import Array
from graphc.ir.types import int64
from graphc.onnx.emission import Emission, exports


def _window(node: Node) -> dict[str, object]:
    a = node.attributes
    return {
        "kernel_shape": list(a.window),
        "strides": list(a.stride),
        "pads": [*a.padding[:2], *a.padding[-2:]],
        "dilations": list(a.dilation),
    }


@exports("max_pool2d")
def _max_pool2d(node: Node, on: Emission, x: str) -> list[str | None]:
    if node.outputs[1] not in on.read:
        return [on("MaxPool", x, **_window(node)), None]
    y, indices = on.several("MaxPool", [x], 2, **_window(node))
    return [y, _place(node, on, indices)]


def _place(node: Node, on: Emission, indices: str) -> str:
    """Convert ONNX's indices into the whole tensor to indices inside the pooling window."""
    a, (height, width) = node.attributes, node.inputs[0].shape[2:]
    number = on("Mod", indices, on.scalar_integer(height * width))
    line = on.scalar_integer(width)
    row = _tap(node, on, on("Div", number, line), 0)
    column = _tap(node, on, on("Mod", number, line), 1)
    place = on("Add", on("Mul", row, on.scalar_integer(a.window[1])), column)
    return on.cast(place, int64, node.outputs[1].type.dtype)


def _tap(node: Node, on: Emission, places: str, axis: int) -> str:
    """Compute, along an axis, the index of each position inside its window."""
    a, count = node.attributes, node.outputs[0].shape[2 + axis]
    starts = np.arange(count, dtype=np.int64) * a.stride[axis] - a.padding[axis]
    first = on.constant(starts.reshape(-1, *[1] * (1 - axis)))
    return on("Div", on("Sub", places, first), on.scalar_integer(a.dilation[axis]))


@exports("average_pool2d")
def _average_pool2d(node: Node, on: Emission, x: str) -> str:
    return on("AveragePool", x, count_include_pad=1, **_window(node))


@exports("adaptive_average_pool2d")
def _adaptive_average_pool2d(node: Node, on: Emission, x: str) -> str:
    """Emit one average pool if the windows are equal, else products with row and column weights."""
    have, want = node.inputs[0].shape[2:], node.attributes.extent
    if all(n % m == 0 for n, m in zip(have, want, strict=True)):
        window = [n // m for n, m in zip(have, want, strict=True)]
        return on("AveragePool", x, kernel_shape=window, strides=window)
    dtype = node.output.type.dtype.numpy
    rows, columns = (_shares(n, m).astype(dtype) for n, m in zip(have, want, strict=True))
    return on("MatMul", on.constant(rows), on("MatMul", x, on.constant(columns.T.copy())))


def _shares(extent: int, parts: int) -> Array:
    """Return the matrix (parts, extent) of adaptive average pooling along an axis.

    Row i averages from ⌊i · extent / parts⌋ to ⌈(i + 1) · extent / parts⌉.
    """
    weights = np.zeros((parts, extent))
    for part in range(parts):
        first, last = part * extent // parts, -(-(part + 1) * extent // parts)
        weights[part, first:last] = 1 / (last - first)
    return weights


@exports("upsample_nearest2d")
def _nearest(node: Node, on: Emission, x: str) -> str:
    return _resized(
        node, on, x, mode="nearest", coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )  # fmt: skip


@exports("upsample_bilinear2d")
def _bilinear(node: Node, on: Emission, x: str) -> str:
    return _resized(node, on, x, mode="linear", coordinate_transformation_mode="half_pixel")


def _resized(node: Node, on: Emission, x: str, **attributes: object) -> str:
    factor = node.attributes.factor
    scales = on.constant(np.array([1, 1, factor, factor], np.float32))
    return on("Resize", x, "", scales, **attributes)
