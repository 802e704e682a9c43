"""Operands of a kernel: their addresses and strides, and index arithmetic.

Strides count elements here, not bytes. Stride 0 repeats an element along an axis. With a negative
stride, the operand starts at the far end of the axis and is read backward.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphc.codegen.node_calls import Buffer
from graphc.ir.graph import Value
from graphc.ir.types import DType, TensorType, axes_in_memory, contiguous_strides

VECTOR_BYTES = 16
"""Number of bytes of the widest memory access of a thread."""

INDEX_LIMIT = 2**31
"""Limit of offsets, in elements, below which they are computed in 32 bits."""


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a tensor in memory: the byte address of its first element, and byte
    strides."""

    address: int
    strides: tuple[int, ...]


Places = Mapping[Value, Place]
"""A mapping from the values of a node to their places in memory."""


def in_one_piece(type: TensorType, address: int = 0) -> Place:
    """Return the place of a row-major, contiguous tensor at a given address."""
    return Place(address, contiguous_strides(type))


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor, in elements."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


@dataclass(frozen=True, slots=True)
class Operand:
    """An argument of a kernel, with strides along the axes of the kernel's index space. Without a
    buffer it is an index along an axis: its value is its offset, with stride 1 along that axis and
    0 along others.
    """

    name: str
    dtype: DType
    strides: tuple[int, ...]
    buffer: Buffer | None = None
    address: int = 0
    """The address that is passed as the pointer argument; kernels depend on it modulo 16."""
    start: int = 0
    """Number of elements from `address` to the operand's first element."""

    def permuted(self, order: Sequence[int]) -> Operand:
        """Return the same operand for an index space whose axes are permuted by `order`."""
        return self.on([self.strides[axis] for axis in order])

    def on(self, strides: Sequence[int]) -> Operand:
        """Return the same operand with other strides, for another index space."""
        return replace(self, strides=tuple(strides))


def operand(name: str, value: Value, place: Place, shape: tuple[int, ...]) -> Operand:
    """Return a value as an operand, broadcast to `shape` by NumPy's rule."""
    size = value.type.dtype.itemsize
    own = [
        0 if extent == 1 else stride // size
        for extent, stride in zip(value.shape, place.strides, strict=True)
    ]
    missing = (0,) * (len(shape) - len(own))
    return Operand(name, value.type.dtype, (*missing, *own), value, place.address)


def folded_strides(
    type: TensorType, strides: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the byte strides of a tensor viewed in another shape, or None if the tensor's strides
    allow no such view."""
    element = np.empty(1, type.dtype.numpy)
    outline = np.lib.stride_tricks.as_strided(element, type.shape, strides)
    try:
        return np.reshape(outline, shape, copy=False).strides
    except ValueError:
        return None


def on_frame(
    name: str, value: Value, place: Place, own: tuple[int, ...], shape: tuple[int, ...]
) -> Operand:
    """Return a value as an operand: viewed in the shape `own`, then broadcast to `shape`.

    Raises `ValueError` if the strides of the value do not allow this view.
    """
    strides = folded_strides(value.type, place.strides, own)
    if strides is None:
        raise ValueError(
            f"{value.type} with byte strides {place.strides} cannot be viewed in the shape {own}; "
            "copy it first"
        )
    size = value.type.dtype.itemsize
    elements = tuple(0 if n == 1 else s // size for n, s in zip(own, strides, strict=True))
    missing = (0,) * (len(shape) - len(own))
    return Operand(name, value.type.dtype, (*missing, *elements), value, place.address)


def order_of(shape: tuple[int, ...], operands: Iterable[Operand]) -> tuple[int, ...]:
    """Return all axes in the memory order of the first operand without repeated elements. If there
    is no such operand, axes keep their order.
    """
    long = {axis for axis, extent in enumerate(shape) if extent > 1}
    for each in operands:
        if each.buffer is not None and all(each.strides[axis] for axis in long):
            return axes_in_memory(shape, each.strides)
    return tuple(range(len(shape)))


def counter(name: str, dtype: DType, axis: int, rank: int) -> Operand:
    """Return an operand that is not in memory: the index along an axis."""
    return Operand(name, dtype, tuple(int(i == axis) for i in range(rank)))


def collapse(
    shape: tuple[int, ...], operands: Sequence[Operand]
) -> tuple[tuple[int, ...], list[Operand]]:
    """Merge axes: drop extents of 1, and merge neighbors if all operands are contiguous across
    both."""
    extents: list[int] = []
    kept: list[list[int]] = []
    for extent, *strides in zip(shape, *(o.strides for o in operands), strict=True):
        if extent == 1:
            continue
        if extents and all(
            before == extent * here for before, here in zip(kept[-1], strides, strict=True)
        ):
            extents[-1] *= extent
            kept[-1] = strides
        else:
            extents.append(extent)
            kept.append(strides)
    by_operand = zip(*kept, strict=True) if kept else ((),) * len(operands)
    return tuple(extents), [o.on(s) for o, s in zip(operands, by_operand, strict=True)]


def index_type(shape: tuple[int, ...], operands: Sequence[Operand]) -> str:
    """Return the C++ index type that can hold every offset of these operands."""
    spans = [
        sum((n - 1) * abs(s) for n, s in zip(shape, o.strides, strict=True)) + 1 for o in operands
    ]
    wide = max([math.prod(shape), *spans]) >= INDEX_LIMIT
    return "unsigned long long" if wide else "unsigned"


def widest_index(spans: Iterable[tuple[tuple[int, ...], Operand]]) -> str:
    """Return the C++ index type that can hold every offset of operands, each with its own shape."""
    return max((index_type(shape, [operand]) for shape, operand in spans), key=len)


def pack_bytes(operand: Operand, width: int) -> int:
    """Return the alignment in bytes that a pack of `width` elements of an operand needs."""
    return min(VECTOR_BYTES, operand.dtype.itemsize * width)


def packs(operand: Operand, width: int) -> bool:
    """Return true if an operand's packs of `width` elements along the last axis are contiguous and
    aligned."""
    if width == 1 or operand.buffer is None or not operand.strides or operand.strides[-1] != 1:
        return False
    needed, size = pack_bytes(operand, width), operand.dtype.itemsize
    return (operand.address + operand.start * size) % needed == 0 and all(
        stride * size % needed == 0 for stride in operand.strides[:-1]
    )


def decompose(item: str, shape: Sequence[int], prefix: str) -> tuple[list[str], list[str]]:
    """Return statements that split a row-major number into one index per axis, and the indices'
    names."""
    if not shape:
        return [], []
    if len(shape) == 1:
        return [], [item]
    names = [f"{prefix}{axis}" for axis in range(len(shape))]
    statements, rest = [], item
    for axis in reversed(range(1, len(shape))):
        statements.append(f"const Index {names[axis]} = {rest} % {shape[axis]}u;")
        carried = f"{prefix}_above{axis}" if axis > 1 else names[0]
        statements.append(f"const Index {carried} = {rest} / {shape[axis]}u;")
        rest = carried
    return statements, names


def offset(indices: Sequence[str], strides: Sequence[int]) -> str:
    """Return a C++ expression for the sum of index times stride.

    It is unsigned and has 32 bits, or is signed and has 64 if a stride is negative. No part of an
    unsigned sum may wrap: NVRTC moves a constant term out of the 32-bit sum and adds it to the
    64-bit address. If the other terms wrap, the address is 4 GiB too high (seen with NVRTC 13.0 on
    an H100, in the kernel of `reverse`).
    """
    terms = [
        index if stride == 1 else f"{index} * {_factor(stride)}"
        for index, stride in zip(indices, strides, strict=True)
        if stride
    ]
    return " + ".join(terms) or "0u"


def _factor(stride: int) -> str:
    return f"{stride}u" if stride >= 0 else f"{stride}ll"
