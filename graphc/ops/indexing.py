"""Indexing by slices of any step, integers, new axes and integer tensors; axes turned round."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Axes to turn round, ascending from the front."""

    axes: Annotated[tuple[int, ...], Whole()]


class Reverse(Op):
    """Elements in the other order along axes. No view: strides are never negative."""

    name, inputs = "reverse", ("x",)
    attributes = ReverseAttributes
    native_16_bit = True
    any_strides = True

    def infer(self, attributes: ReverseAttributes, x: TensorType) -> TensorType:
        axes = attributes.axes
        if not axes or [normalize_axis(a, x.rank, "axes") for a in axes] != sorted(set(axes)):
            raise ShapeError(f"axes are ascending numbers from 0 to {x.rank - 1}, got {axes}")
        return x

    def gradient(self, node: Node, dy: Value) -> Value:
        return apply(Reverse, dy, attributes=node.attributes).output

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array) -> None:
        record(np.copyto, y, np.flip(x, node.attributes.axes))


def reverse(x: Value, axes: int | Sequence[int] | None = None) -> Value:
    """x with its elements in the other order along `axes`, by default all.

    Raises `ShapeError` for an axis that x does not have.
    """
    rank = as_value("reverse", x).type.rank
    listed = range(rank) if axes is None else [axes] if isinstance(axes, int) else axes
    resolved = tuple(sorted({normalize_axis(axis, rank, "reverse") for axis in listed}))
    return apply(Reverse, x, attributes=ReverseAttributes(resolved)).output if resolved else x


@operator("[]")
def slice_(x: Value, index: Any) -> Value:
    """x[index] by slices, integers, ``...``, None and tensors of integers, as NumPy has them.

    An integer drops its axis, None makes one of extent 1, a tensor takes elements by number, as
    `take` does; tensors for several neighbouring axes are broadcast and take them by tuples. A list
    or an array of integers is such a tensor. It is a view, unless a step is negative or there is a
    tensor. Raises `ShapeError` for an index outside x or an empty slice, and `OptionError` for
    another kind of index, such as a mask: that many elements would have no fixed shape.
    """
    entries = _entries(as_value("slice", x), index)
    parts, shape, turned = list[tuple[int, int, int]](), list[int](), list[int]()
    looked_up = list[Value]()
    first = place = 0
    for entry in entries:
        axis = len(parts)
        if entry is None:
            shape.append(1)
            continue
        if isinstance(entry, Value):
            first, place = (first, place) if looked_up else (axis, len(shape))
            looked_up.append(entry)
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
        x = rows_at(x, first, looked_up)
        shape[place:place] = broadcast_shapes("slice", *(given.shape for given in looked_up))
    return reshape(x, shape)


def rows_at(x: Value, axis: int, numbers: Sequence[Value]) -> Value:
    """x by number along neighbouring axes from `axis` on; those of the numbers take their place."""
    shape = broadcast_shapes("an index", *(given.shape for given in numbers))
    dtype = max((given.type.dtype for given in numbers), key=lambda dtype: dtype.itemsize)
    columns = [reshape(broadcast_to(cast(given, dtype), shape), (*shape, 1)) for given in numbers]
    tuples = concat(columns, -1) if len(columns) > 1 else columns[0]
    taken = range(axis, axis + len(numbers))
    rest = [i for i in range(x.type.rank) if i not in taken]
    found = gather_nd(transpose(x, [*taken, *rest]), tuples)
    behind = [len(shape) + i for i in range(len(rest))]
    return transpose(found, [*behind[:axis], *range(len(shape)), *behind[axis:]])


def _entries(x: Value, index: Any) -> list[Any]:
    """One entry an axis of x, tensors as values, and None for each new axis."""
    given = [*index] if isinstance(index, tuple) else [index]
    rank = x.type.rank
    places = [at for at, entry in enumerate(given) if entry is Ellipsis]
    named = sum(entry is not None and entry is not Ellipsis for entry in given)
    if len(places) > 1 or named > rank:
        raise ShapeError(f"index {quoted(index)} has too many parts for a tensor of rank {rank}")
    at = places[0] if places else len(given)
    given[at : at + 1] = [slice(None)] * (rank - named)
    axes = iter(x.shape)
    entries = [None if entry is None else _entry(entry, next(axes)) for entry in given]
    tensors = [place for place, entry in enumerate(entries) if isinstance(entry, Value)]
    if tensors and tensors[-1] - tensors[0] >= len(tensors):
        raise OptionError(
            "slice: the tensors of integers in an index stand side by side; take one axis after "
            "the other, as in x[i][..., j]"
        )
    return entries


def _entry(entry: Any, extent: int) -> Any:
    """A slice, an integer, or a tensor of integers as a value."""
    if isinstance(entry, Value):
        return _numbers(entry)
    if isinstance(entry, slice | int | np.integer) and not isinstance(entry, bool):
        return entry
    if isinstance(entry, list | np.ndarray):
        numbers = np.asarray(entry)
        if numbers.size and numbers.dtype.kind in "iu":
            if not -extent <= numbers.min() <= numbers.max() < extent:
                raise ShapeError(
                    f"slice: the numbers {quoted(entry)} are not all inside an axis of {extent}"
                )
            return constant(np.where(numbers < 0, numbers + extent, numbers), dtype="int64")
        return _numbers(constant(entry))
    raise OptionError(
        f"slice: an index is an integer, a slice, ..., None or a tensor of integers, got "
        f"{quoted(entry)}"
    )


def _numbers(given: Value) -> Value:
    if given.type.dtype.kind == "bool":
        raise OptionError(
            f"slice: the mask {given!r} would choose a number of elements that is not known before "
            "a step; graphc.where(mask, x, 0.0) keeps the shape, numpy.flatnonzero(mask) gives the "
            "numbers of a mask that is known"
        )
    if given.type.dtype.kind != "int":
        raise DTypeError(f"slice: a tensor of integers is expected as an index, got {given.type}")
    return given


def _one(entry: int, axis: int, extent: int) -> tuple[int, int, int]:
    """An integer as start, stop and step."""
    if not -extent <= entry < extent:
        raise ShapeError(f"slice: index {entry} is outside axis {axis} of extent {extent}")
    return entry % extent, entry % extent + 1, 1


def _ascending(given: slice, axis: int, extent: int) -> tuple[tuple[int, int, int], bool]:
    """A slice as start, stop and a positive step, and whether its elements are then turned."""
    try:
        places = range(*given.indices(extent))
    except (TypeError, ValueError) as error:
        raise OptionError(f"slice: {quoted(given)} of axis {axis}: {error}") from None
    if not places:
        raise ShapeError(f"slice: {given} of axis {axis} of extent {extent} is empty")
    if places.step < 0:
        return (places[-1], places[0] + 1, min(-places.step, extent)), len(places) > 1
    # of steps as long as the axis, only the first is taken
    return (places.start, places.stop, min(places.step, extent)), False
