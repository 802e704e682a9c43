"""Argmax, argmin, top-k and sorting along an axis.

Equal elements are ordered by their indices, so results are the same on all devices. NaN counts as
larger than any number in sorts, and is the result of both `argmax` and `argmin`, as in NumPy.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from graphc.devices.device import Device
from graphc.errors import ShapeError, choose, truth, whole_number
from graphc.ir.attributes import OneOf, Whole
from graphc.ir.builder import apply, as_value
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Op, Recorder
from graphc.ir.types import TensorType, as_dtype, int64, normalize_axis
from graphc.ops.cpu.lines import line_tiles
from graphc.ops.cpu.order import choose_places, first_places, sorting_workspace
from graphc.ops.elements import scatter_elements
from graphc.ops.geometry import COUNTED
from graphc.ops.shape import full, reshape

INDEX_DTYPES = ("int64", "int32")

IndexDType = Annotated[str, OneOf(INDEX_DTYPES)]


@dataclass(frozen=True, slots=True)
class PlaceAttributes:
    """The axis, whether the last of equal elements is chosen, and the dtype of indices."""

    axis: Annotated[int, Whole()]
    last: bool = False
    index: IndexDType = "int64"


def _length(x: TensorType, axis: int) -> int:
    """Return the extent of an axis; raises `ShapeError` if its indices exceed 32 bits."""
    length = x.shape[normalize_axis(axis, x.rank, "axis")]
    if length > COUNTED:
        raise ShapeError(
            f"the axis to sort or search must have at most {COUNTED} elements, got {length}"
        )
    return length


class PlaceOf(Op):
    """Base: for each row along an axis, the index of one element; the axis is dropped."""

    inputs = ("x",)
    attributes = PlaceAttributes
    needs_contiguous = ("x",)
    flops_per_element = 0
    any_strides = True
    largest: ClassVar[bool]

    def infer(self, attributes: PlaceAttributes, x: TensorType) -> TensorType:
        axis = attributes.axis
        _length(x, axis)
        return TensorType((*x.shape[:axis], *x.shape[axis + 1 :]), as_dtype(attributes.index))

    def output_limit(self, node: Node) -> int:
        axis: int = node.attributes.axis
        return node.inputs[0].shape[axis]

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types: a tile of rows, and one number per row."""
        x = node.inputs[0].type
        tiles = line_tiles(x.shape, node.attributes.axis)
        return (
            x.with_shape((tiles.lines, tiles.length)),
            TensorType((tiles.lines, 1), int64),
        )

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array) -> None:
        a: PlaceAttributes = node.attributes
        find = np.argmax if self.largest else np.argmin
        record(functools.partial(first_places, find, a.axis, a.last, x, y, *record.scratch))


class ArgMax(PlaceOf):
    """y = the index of the largest element of x along an axis."""

    name = "argmax"
    largest = True


class ArgMin(PlaceOf):
    """y = the index of the smallest element of x along an axis."""

    name = "argmin"
    largest = False


@dataclass(frozen=True, slots=True)
class TopKAttributes:
    """The axis, how many elements to choose, from which end, and the dtype of indices."""

    axis: Annotated[int, Whole()]
    k: Annotated[int, Whole(1)]
    largest: bool = True
    index: IndexDType = "int64"


class TopK(Op):
    """y = the k largest or smallest elements of x along an axis in order, and their indices."""

    name, inputs, outputs = "top_k", ("x",), ("y", "places")
    attributes = TopKAttributes
    limited = ("places",)
    needs_contiguous = ("x",)
    any_strides = True

    def infer(self, attributes: TopKAttributes, x: TensorType) -> tuple[TensorType, TensorType]:
        axis, k = attributes.axis, attributes.k
        length = _length(x, axis)
        if k > length:
            raise ShapeError(f"k must not exceed the extent of axis {axis}, {length}; got {k}")
        y = x.with_shape((*x.shape[:axis], k, *x.shape[axis + 1 :]))
        return y, y.with_dtype(as_dtype(attributes.index))

    def output_limit(self, node: Node) -> int:
        axis: int = node.attributes.axis
        return node.inputs[0].shape[axis]

    def gradient(self, node: Node, dy: Value, places: Value) -> Value:
        nothing = full(node.inputs[0].shape, 0.0, dy.type.dtype)
        return scatter_elements(nothing, places, dy, node.attributes.axis, "add")

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        x, a = node.inputs[0].type, node.attributes
        return sorting_workspace(x, line_tiles(x.shape, a.axis), a.k)

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array, places: Array) -> None:
        a: TopKAttributes = node.attributes
        record(
            functools.partial(choose_places, a.axis, a.k, a.largest, x, y, places, record.scratch)
        )


# --- functions ---


def _place(
    op: type[PlaceOf], x: Value, axis: int, keepdims: bool, last: bool, dtype: object
) -> Value:
    place = normalize_axis(axis, as_value(op.name, x).type.rank, op.name)
    index = choose("dtype of places", as_dtype(dtype).name, INDEX_DTYPES)
    stays = truth(f"{op.name}: keepdims", keepdims)
    attributes = PlaceAttributes(place, truth(f"{op.name}: last", last), index)
    y = apply(op, x, attributes=attributes).output
    return reshape(y, (*x.shape[:place], 1, *x.shape[place + 1 :])) if stays else y


def argmax(
    x: Value, axis: int, keepdims: bool = False, last: bool = False, dtype: object = "int64"
) -> Value:
    """Return the index of the largest element of x along `axis`.

    The axis is dropped, or gets extent 1 with `keepdims`. Of equal elements, the first counts, or
    with `last` the last one. `dtype` is int64 or int32. It has no gradient. Raises `ShapeError` for
    an axis that x does not have, and `OptionError` for another dtype.
    """
    return _place(ArgMax, x, axis, keepdims, last, dtype)


def argmin(
    x: Value, axis: int, keepdims: bool = False, last: bool = False, dtype: object = "int64"
) -> Value:
    """Return the index of the smallest element of x along `axis`.

    The axis is dropped, or gets extent 1 with `keepdims`. Of equal elements, the first counts, or
    with `last` the last one. `dtype` is int64 or int32. It has no gradient. Raises `ShapeError` for
    an axis that x does not have, and `OptionError` for another dtype.
    """
    return _place(ArgMin, x, axis, keepdims, last, dtype)


def top_k(
    x: Value, k: int, axis: int = -1, largest: bool = True, dtype: object = "int64"
) -> tuple[Value, Value]:
    """Return the k largest or smallest elements of x along `axis`, in order, and their indices.

    Both have the shape of x with k in place of the axis. Indices are int64 or int32, by `dtype`.
    Equal elements keep their order, and NaN counts as larger than any number. The gradient goes to
    the chosen elements. Raises `ShapeError` for an axis that x does not have or that is shorter
    than k, and `OptionError` for another k or dtype.
    """
    place = normalize_axis(axis, as_value("top_k", x).type.rank, "top_k")
    index = choose("dtype of places", as_dtype(dtype).name, INDEX_DTYPES)
    attributes = TopKAttributes(place, whole_number("k", k), truth("largest", largest), index)
    values, places = apply(TopK, x, attributes=attributes).outputs
    return values, places


def sort(
    x: Value, axis: int = -1, descending: bool = False, dtype: object = "int64"
) -> tuple[Value, Value]:
    """Sort x along `axis`; returns the elements and their original indices, in the shape of x.

    Equal elements keep their order, and NaN counts as larger than any number. Raises the errors of
    `top_k`.
    """
    place = normalize_axis(axis, as_value("sort", x).type.rank, "sort")
    return top_k(x, x.shape[place], place, truth("sort: descending", descending), dtype)
