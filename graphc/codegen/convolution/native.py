"""Convolutions by a library on the CPU: accepted strides, and the workspace they need.

The library computes in float32, from float32 and bfloat16 operands, on contiguous channels-last
maps. Row-major maps are copied some images at a time.
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
"""Maximum block sizes, in channels and in filters, in which the library stores filters."""

PARTIAL_BYTES = 4 * 2**20
"""Maximum bytes of partial sums over images. Gradients of larger filters are divided among threads
instead."""

COPIED_BYTES = 4 * 2**20
"""Approximate bytes of images that are copied at a time; at least one image is copied."""

MAPS = ("x", "y", "dx", "dy")
"""The names of operands that are feature maps; the others are filters and biases."""

LEAST_BYTES = 64 * 2**10


def takes_strides(node: Node, name: str, type: TensorType, strides: tuple[int, ...]) -> bool:
    """Return true if the library reads or writes an operand with these strides.

    Maps must be contiguous, channels-last or row-major; filters may have any strides. NumPy's
    kernels accept these, too. Gradients of filters stay row-major, like filters, because NumPy's
    kernels would need a copy.
    """
    if name == "dw":
        return outer_axes(type, strides) == 0
    if name not in MAPS:
        return True
    if is_channels_last(type, strides):
        return True
    order = memory_order(type.shape, strides)
    return pieces(type, strides) == 1 and order == tuple(sorted(order))


def copied_strides(type: TensorType, strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous copy of a tensor. Copies of maps keep the order of axes,
    so that they are summed like contiguous maps.
    """
    last = channels_last_strides(type) if type.rank == 4 else strides
    return last if same_order(type, strides, last) else contiguous_strides(type)


def copied_images(copied: Sequence[Value]) -> int:
    """Return the number of images of a batch that are copied at once, for these feature maps."""
    image = sum(value.type.bytes // value.shape[0] for value in copied)
    return max(1, min(copied[0].shape[0], COPIED_BYTES // image))


def native_bytes(node: Node, strided: Strided) -> int:
    """Return the bytes that a convolution needs in addition to the workspace of its NumPy kernel.

    They hold filters in blocks, buffers of threads, and copies of maps that are not channels-last.
    `strided` has the strides of values that are not row-major and contiguous.
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
    """Return the maps of a node that have to be copied, as the library does not accept their
    strides."""
    names = {value: node.op.input_name(index) for index, value in enumerate(node.inputs)}
    names[node.output] = node.op.output_name(0)
    return [
        value
        for value, name in names.items()
        if name in MAPS
        and not is_channels_last(value.type, strided.get(value, contiguous_strides(value.type)))
    ]


def _filters_bytes(geometry: Geometry) -> int:
    """Return the bytes of filters in the library's blocked layout."""
    groups, (k, c, r, s) = geometry.attributes.groups, geometry.w
    if c == 1 and k == groups:
        return align(groups, CHANNELS) * r * s * float32.itemsize
    filters = max(align(k // groups, block) for block in FILTERS)
    return groups * filters * align(c, CHANNELS) * r * s * float32.itemsize


def _transposed_bytes(node: Node, geometry: Geometry) -> int:
    """Return the bytes for one transposed image of each of the two maps, per thread. Pairs of
    pixels are interleaved, because products of bfloat16 sum over pairs.
    """
    dtype = node.inputs[0].type.dtype
    if dtype != bfloat16:
        return 0
    maps = (geometry.x, geometry.y)
    image = sum(align(c, CHANNELS) * h * align(w, CHANNELS) for _, c, h, w in maps)
    return min(THREADS, geometry.x[0]) * image * dtype.itemsize


def _image_bytes(geometry: Geometry) -> int:
    """Return the bytes that a thread needs per image if a stride exceeds 1. They hold an output
    with borders, with the larger number of channels of the two maps.
    """
    if max(geometry.attributes.stride) == 1:
        return 0
    channels = align(max(geometry.x[1], geometry.y[1]), CHANNELS)
    extents = [n + k for n, k in zip(geometry.y[2:], geometry.w[2:], strict=True)]
    return channels * math.prod(extents) * float32.itemsize
