"""Indexing by slices of any step, integers, new axes and integer tensors; reversal of axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from graphc.errors import DTypeError, OptionError, ShapeError, quoted
from graphc.ir.attributes import Whole
from graphc.ir.builder import apply, as_value, constant
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Op, Recorder
from graphc.ir.operators import operator
from graphc.ir.types import TensorType, broadcast_shapes, normalize_axis
from graphc.ops.choice import cast
from graphc.ops.concat import concat
from graphc.ops.scatter import gather_nd
from graphc.ops.shape import Slice, SliceAttributes, broadcast_to, reshape, transpose


@dataclass(frozen=True, slots=True)
class ReverseAttributes:
    """Axes to reverse, ascending from the front."""

    axes: Annotated[tuple[int, ...], Whole()]


class Reverse(Op):
    """y = x with the elements reversed along axes; not a view, since strides are never negative."""

    name, inputs = "reverse", ("x",)
    attributes = ReverseAttributes
    native_16_bit = True
    any_strides = True

    def infer(self, attributes: ReverseAttributes, x: TensorType) -> TensorType:
        axes = attributes.axes
        if not axes or [normalize_axis(a, x.rank, "axes") for a in axes] != sorted(set(axes)):
            raise ShapeError(f"axes must be ascending integers from 0 to {x.rank - 1}, got {axes}")
        return x

    def gradient(self, node: Node, dy: Value) -> Value:
        return apply(Reverse, dy, attributes=node.attributes).output

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array) -> None:
        record(np.copyto, y, np.flip(x, node.attributes.axes))


def reverse(x: Value, axes: int | Sequence[int] | None = None) -> Value:
    """Reverse the elements of x along `axes`, by default all.

    Raises `ShapeError` for an axis that x does not have.
    """
    rank = as_value("reverse", x).type.rank
    listed = range(rank) if axes is None else [axes] if isinstance(axes, int) else axes
    resolved = tuple(sorted({normalize_axis(axis, rank, "reverse") for axis in listed}))
    return apply(Reverse, x, attributes=ReverseAttributes(resolved)).output if resolved else x


@operator("[]")
def slice_(x: Value, index: Any) -> Value:
    """Return `x[index]` by slices, integers, ``...``, None and integer tensors, as NumPy does.

    An integer drops its axis, and None inserts an axis of extent 1. A tensor, list or array of
    integers selects elements by index, as `take` does. Several of them are broadcast, and select
    elements by index tuples. The broadcast axes replace the indexed axes, or come first if a slice,
    ``...`` or None separates tensors, or a tensor and an integer, as in NumPy.

    The result is a view, unless a step is negative or there is a tensor. Raises `ShapeError` for an
    index outside x or an empty slice. Raises `OptionError` for another kind of index, such as a
    mask, since the number of selected elements would not be fixed.
    """
    entries = _entries(as_value("slice", x), index)
    parts, shape, turned = list[tuple[int, int, int]](), list[int](), list[int]()
    looked_up = dict[int, Value]()
    first = place = 0
    for entry in entries:
        axis = len(parts)
        if entry is None:
            shape.append(1)
            continue
        if isinstance(entry, Value):
            first, place = (first, place) if looked_up else (axis, len(shape))
            looked_up[axis] = entry
            parts.append((0, x.shape[axis], 1))
        elif isinstance(entry, slice):
            part, is_turned = _ascending(entry, axis, x.shape[axis])
            turned += [axis] if is_turned else []
            shape.append(len(range(*part)))
            parts.append(part)
        else:
            parts.append(_one(int(entry), axis, x.shape[axis]))
    is_whole = parts == [(0, extent, 1) for extent in x.shape]
    if not is_whole or (parts and not looked_up and None not in entries):
        starts, stops, steps = zip(*parts, strict=True)
        x = apply(Slice, x, attributes=SliceAttributes(starts, stops, steps)).output
    x = reverse(x, turned)
    if looked_up:
        first, place = (0, 0) if _is_parted(index) else (first, place)
        x = rows_at(x, looked_up, first)
        shape[place:place] = broadcast_shapes(
            "slice", *(given.shape for given in looked_up.values())
        )
    return reshape(x, shape)


def rows_at(x: Value, numbers: Mapping[int, Value], axis: int) -> Value:
    """Select from x by indices along axes.

    `numbers` maps an axis of x to its index tensor. In the result, the broadcast axes of the index
    tensors follow the first `axis` of the other axes.
    """
    given = list(numbers.values())
    shape = broadcast_shapes("an index", *(each.shape for each in given))
    dtype = max((each.type.dtype for each in given), key=lambda dtype: dtype.itemsize)
    columns = [reshape(broadcast_to(cast(each, dtype), shape), (*shape, 1)) for each in given]
    tuples = concat(columns, -1) if len(columns) > 1 else columns[0]
    rest = [i for i in range(x.type.rank) if i not in numbers]
    found = gather_nd(transpose(x, [*numbers, *rest]), tuples)
    behind = [len(shape) + i for i in range(len(rest))]
    return transpose(found, [*behind[:axis], *range(len(shape)), *behind[axis:]])


def _is_parted(index: Any) -> bool:
    """Return whether a slice, ``...`` or None separates the tensors and integers of an index."""
    given = index if isinstance(index, tuple) else (index,)
    numbered = [
        at
        for at, entry in enumerate(given)
        if entry is not None and entry is not Ellipsis and not isinstance(entry, slice)
    ]
    return numbered[-1] - numbered[0] >= len(numbered)


def _entries(x: Value, index: Any) -> list[Any]:
    """Return an index as one entry per axis of x, and None for each new axis.

    Tensors become values.
    """
    given = [*index] if isinstance(index, tuple) else [index]
    rank = x.type.rank
    places = [at for at, entry in enumerate(given) if entry is Ellipsis]
    named = sum(entry is not None and entry is not Ellipsis for entry in given)
    if len(places) > 1 or named > rank:
        raise ShapeError(
            f"slice: index {quoted(index)} has too many parts for a tensor of rank {rank}; give at "
            "most one part per axis, and at most one ..."
        )
    at = places[0] if places else len(given)
    given[at : at + 1] = [slice(None)] * (rank - named)
    axes = iter(x.shape)
    return [None if entry is None else _entry(entry, next(axes)) for entry in given]


def _entry(entry: Any, extent: int) -> Any:
    """Return one entry of an index; tensors, lists and arrays of integers become values."""
    if isinstance(entry, Value):
        return _numbers(entry)
    if isinstance(entry, slice | int | np.integer) and not isinstance(entry, bool):
        return entry
    if isinstance(entry, list | np.ndarray):
        numbers = np.asarray(entry)
        if numbers.size and numbers.dtype.kind in "iu":
            if not -extent <= numbers.min() <= numbers.max() < extent:
                raise ShapeError(
                    f"slice: the indices {quoted(entry)} are out of range for an axis of {extent}"
                )
            return constant(np.where(numbers < 0, numbers + extent, numbers), dtype="int64")
        return _numbers(constant(entry))
    raise OptionError(
        "slice: an index must be an integer, a slice, ..., None or a tensor of integers, got "
        f"{quoted(entry)}"
    )


def _numbers(given: Value) -> Value:
    if given.type.dtype.kind == "bool":
        raise OptionError(
            f"slice: the number of elements that the mask {given!r} selects is unknown before a "
            "step; use graphc.where(mask, x, 0.0), which keeps the shape, or index with "
            "numpy.flatnonzero(mask) if the mask is an array"
        )
    if given.type.dtype.kind != "int":
        raise DTypeError(f"slice: an index tensor must be of integers, got {given.type}")
    return given


def _one(entry: int, axis: int, extent: int) -> tuple[int, int, int]:
    """Return an integer index as a slice of one element: start, stop and step."""
    if not -extent <= entry < extent:
        raise ShapeError(f"slice: index {entry} is out of range for axis {axis} of extent {extent}")
    return entry % extent, entry % extent + 1, 1


def _ascending(given: slice, axis: int, extent: int) -> tuple[tuple[int, int, int], bool]:
    """Return a slice as start, stop and a positive step, and whether its elements are reversed."""
    try:
        places = range(*given.indices(extent))
    except (TypeError, ValueError) as error:
        raise OptionError(f"slice: {quoted(given)} of axis {axis}: {error}") from None
    if not places:
        raise ShapeError(f"slice: {given} of axis {axis} of extent {extent} is empty")
    if places.step < 0:
        return (places[-1], places[0] + 1, min(-places.step, extent)), len(places) > 1
    # a step as long as the axis selects only the first element
    return (places.start, places.stop, min(places.step, extent)), False
