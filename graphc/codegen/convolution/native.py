"""Convolutions by a library on the CPU: what it takes, and the workspace that it needs.

The library computes in float32, of float32 and bfloat16 operands, on maps in one piece,
channels-last. Maps that lie row-major are copied some images at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphc.codegen.onednn import THREADS, is_native
from graphc.ir.graph import Node, Value
from graphc.ir.op import Strided
from graphc.ir.types import (
    TensorType,
    align,
    bfloat16,
    channels_last_strides,
    contiguous_strides,
    float32,
    is_channels_last,
    memory_order,
    outer_axes,
    pieces,
    same_order,
)
from graphc.ops.conv import Convolution
from graphc.ops.geometry import Geometry

CHANNELS, FILTERS = 16, (48, 64)
"""The library holds filters in blocks of at most so many channels and filters."""

PARTIAL_BYTES = 4 * 2**20
"""At most so many bytes of sums over some of the images: larger filters are shared among threads
instead."""

COPIED_BYTES = 4 * 2**20
"""About how many bytes of images are copied at a time, but one image at least."""

MAPS = ("x", "y", "dx", "dy")
"""The operands that are maps; the others are filters and biases."""

LEAST_BYTES = 64 * 2**10


def takes_strides(node: Node, name: str, type: TensorType, strides: tuple[int, ...]) -> bool:
    """Whether the library reads or writes an operand where it lies so: maps in one piece,
    channels-last or row-major, filters anyhow. NumPy's kernels do, too.

    Gradients of filters are left row-major, as filters are: NumPy's kernels would need a copy."""
    if name == "dw":
        return outer_axes(type, strides) == 0
    if name not in MAPS:
        return True
    if is_channels_last(type, strides):
        return True
    order = memory_order(type.shape, strides)
    return pieces(type, strides) == 1 and order == tuple(sorted(order))


def copied_strides(type: TensorType, strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a copy into one piece: maps keep the order of their axes, so that they are
    summed as those that lie in one piece."""
    last = channels_last_strides(type) if type.rank == 4 else strides
    return last if same_order(type, strides, last) else contiguous_strides(type)


def copied_images(copied: Sequence[Value]) -> int:
    """How many images at a time are copied of these maps."""
    image = sum(value.type.bytes // value.shape[0] for value in copied)
    return max(1, min(copied[0].shape[0], COPIED_BYTES // image))


def native_bytes(node: Node, strided: Strided) -> int:
    """The bytes of workspace for a convolution beside what its NumPy kernel needs: filters in
    blocks, what threads need for themselves, and copies of maps that do not lie channels-last.

    `strided` has the strides of values that do not lie row-major in one piece.
    """
    op = node.op
    assert isinstance(op, Convolution)
    if not is_native(node):
        return 0
    geometry = op.geometry(node)
    filters = _filters_bytes(geometry)
    total = LEAST_BYTES + filters + THREADS * _image_bytes(geometry)
    if node.op.name == "conv2d_weight_gradient":
        total += min(THREADS * filters, PARTIAL_BYTES) + _transposed_bytes(node, geometry)
    copied = _copied_maps(node, strided)
    images = copied_images(copied) if copied else 0
    return total + images * sum(value.type.bytes // value.shape[0] for value in copied)


def _copied_maps(node: Node, strided: Strided) -> list[Value]:
    """The maps that the library does not take where they lie."""
    names = {value: node.op.input_name(index) for index, value in enumerate(node.inputs)}
    names[node.output] = node.op.output_name(0)
    return [
        value
        for value, name in names.items()
        if name in MAPS
        and not is_channels_last(value.type, strided.get(value, contiguous_strides(value.type)))
    ]


def _filters_bytes(geometry: Geometry) -> int:
    """Filters in blocks."""
    groups, (k, c, r, s) = geometry.attributes.groups, geometry.w
    if c == 1 and k == groups:
        return align(groups, CHANNELS) * r * s * float32.itemsize
    filters = max(align(k // groups, block) for block in FILTERS)
    return groups * filters * align(c, CHANNELS) * r * s * float32.itemsize


def _transposed_bytes(node: Node, geometry: Geometry) -> int:
    """An image of both maps for each thread, in which pairs of places lie together: products of
    bfloat16 sum over pairs."""
    dtype = node.inputs[0].type.dtype
    if dtype != bfloat16:
        return 0
    maps = (geometry.x, geometry.y)
    image = sum(align(c, CHANNELS) * h * align(w, CHANNELS) for _, c, h, w in maps)
    return min(THREADS, geometry.x[0]) * image * dtype.itemsize


def _image_bytes(geometry: Geometry) -> int:
    """What a thread needs of an image where windows lie apart: an output with all its borders, of
    as many channels as the wider of the two maps."""
    if max(geometry.attributes.stride) == 1:
        return 0
    channels = align(max(geometry.x[1], geometry.y[1]), CHANNELS)
    extents = [n + k for n, k in zip(geometry.y[2:], geometry.w[2:], strict=True)]
    return channels * math.prod(extents) * float32.itemsize
