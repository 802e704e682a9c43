"""Ops that join tensors along an axis, and split them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from graphc.errors import OptionError, ShapeError
from graphc.ir.attributes import Whole
from graphc.ir.builder import apply, as_value, as_values
from graphc.ir.graph import Node, Value
from graphc.ir.op import ANY_AXES, Array, Op, Recorder
from graphc.ir.types import Layout, TensorType, as_shape, normalize_axis
from graphc.ops.shape import AxisAttributes, full, reshape

MOST_PARTS = 2**18
"""The most parts that `split` creates, since each is a value of the graph."""


class Concat(Op):
    """y = the concatenation of parts along an axis.

    A part that the plan stores inside y is not copied.
    """

    name, inputs = "concat", ("*parts",)
    attributes = AxisAttributes
    gathers = "parts"
    strided_axes = {"y": ANY_AXES}
    native_16_bit = True
    any_strides = True

    def infer(self, attributes: AxisAttributes, *parts: TensorType) -> TensorType:
        axis = attributes.axis
        if not parts:
            raise ShapeError("needs at least one part")
        normalize_axis(axis, parts[0].rank, self.name)
        for part in parts[1:]:
            if (
                part.rank != parts[0].rank
                or _without(part.shape, axis) != _without(parts[0].shape, axis)
                or (part.dtype != parts[0].dtype)
            ):
                raise ShapeError(
                    f"parts must have equal dtypes, and equal extents on all axes except {axis}"
                )
        total = sum(part.shape[axis] for part in parts)
        shape = parts[0].shape
        return parts[0].with_shape((*shape[:axis], total, *shape[axis + 1 :]))

    def gradient(self, node: Node, dy: Value) -> tuple[Value, ...]:
        axis = node.attributes.axis
        return split(dy, [value.shape[axis] for value in node.inputs], axis)

    def gather(self, node: Node, whole: Layout) -> tuple[Layout, ...]:
        sizes = [value.shape[node.attributes.axis] for value in node.inputs]
        return _along(sizes, node.attributes.axis, whole)

    def numpy_parts(self, node: Node, y: Array) -> list[Array]:
        axis = node.attributes.axis
        return _cut(y, [value.shape[axis] for value in node.inputs], axis)

    def kernel(self, record: Recorder, node: Node, *parts: Array, y: Array) -> None:
        axis, start = node.attributes.axis, 0
        for part in parts:
            stop = start + part.shape[axis]
            target = y[(slice(None),) * axis + (slice(start, stop),)]
            if not _is_same(target, part):
                record(np.copyto, target, part)
            start = stop


def _along(sizes: Sequence[int], axis: int, whole: Layout) -> tuple[Layout, ...]:
    """Return the layouts of consecutive parts, with extents `sizes` along `axis`, inside
    `whole`."""
    layouts, offset = [], whole.offset
    for size in sizes:
        layouts.append(Layout(offset, whole.strides))
        offset += size * whole.strides[axis]
    return tuple(layouts)


def _is_same(a: Array, b: Array) -> bool:
    """Return whether two arrays of equal shape occupy the same bytes in the same layout."""
    return a.ctypes.data == b.ctypes.data and a.strides == b.strides


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


@dataclass(frozen=True, slots=True)
class SplitAttributes:
    """The extents of the parts along one axis."""

    sizes: Annotated[tuple[int, ...], Whole(1)]
    axis: Annotated[int, Whole()]


class Split(Op):
    """Consecutive parts along an axis; always views."""

    name, inputs, outputs = "split", ("x",), ("*parts",)
    attributes = SplitAttributes
    views = "x"

    def infer(self, attributes: SplitAttributes, x: TensorType) -> tuple[TensorType, ...]:
        axis, sizes = attributes.axis, attributes.sizes
        normalize_axis(axis, x.rank, self.name)
        if sum(sizes) != x.shape[axis]:
            raise ShapeError(f"the sizes {list(sizes)} do not sum to the extent {x.shape[axis]}")
        return tuple(x.with_shape((*x.shape[:axis], n, *x.shape[axis + 1 :])) for n in sizes)

    def view(self, node: Node, source: Layout) -> tuple[Layout, ...]:
        return _along(node.attributes.sizes, node.attributes.axis, source)

    def numpy_views(self, node: Node, x: Array) -> list[Array]:
        return _cut(x, node.attributes.sizes, node.attributes.axis)

    def gradient(self, node: Node, dparts: tuple[Value | None, ...]) -> Value:
        filled = [
            full(value.shape, 0.0, value.type.dtype) if part is None else part
            for part, value in zip(dparts, node.outputs, strict=True)
        ]
        return concat(filled, node.attributes.axis)


def _cut(array: Array, sizes: Sequence[int], axis: int) -> list[Array]:
    """Return consecutive slices with the extents `sizes` along `axis`."""
    return np.split(array, np.cumsum(sizes)[:-1], axis)


# --- functions ---


def concat(parts: Sequence[Value], axis: int = 0) -> Value:
    """Concatenate `parts` along `axis`; dtypes and the extents of all other axes must be equal.

    Raises `ShapeError` if they are not, and `OptionError` for no parts.
    """
    values = as_values("concat", parts)
    if not values:
        raise OptionError("concat needs at least one value")
    axis = normalize_axis(axis, values[0].type.rank, "concat")
    return apply(Concat, *values, attributes=AxisAttributes(axis)).output


def stack(parts: Sequence[Value], axis: int = 0) -> Value:
    """Stack `parts`, which have one shape, along a new axis of the result.

    Raises `ShapeError` if shapes or dtypes differ, and `OptionError` for no parts.
    """
    values = as_values("stack", parts)
    if not values:
        raise OptionError("stack needs at least one value")
    shape = values[0].shape
    axis = normalize_axis(axis, len(shape) + 1, "stack")
    if any(value.shape != shape for value in values):
        shapes = ", ".join(dict.fromkeys(str(list(value.shape)) for value in values))
        raise ShapeError(f"stack: all parts must have one shape, got {shapes}")
    wide = [reshape(value, (*shape[:axis], 1, *shape[axis:])) for value in values]
    return wide[0] if len(wide) == 1 else concat(wide, axis)


def split(x: Value, parts: int | Sequence[int], axis: int = 0) -> tuple[Value, ...]:
    """Split x along `axis` into equal parts, or into parts of the given extents: views.

    Raises `ShapeError` if the extents do not add up to the axis.
    """
    axis = normalize_axis(axis, as_value("split", x).type.rank, "split")
    if isinstance(parts, int | np.integer):
        if parts > MOST_PARTS:
            raise ShapeError(f"split: at most {MOST_PARTS} parts are supported, got {parts}")
        if parts < 1 or x.shape[axis] % parts:
            raise ShapeError(f"split: the extent must be divisible by {parts}, got {x.shape[axis]}")
        parts = [x.shape[axis] // parts] * parts
    return apply(Split, x, attributes=SplitAttributes(as_shape("split", parts), axis)).outputs
