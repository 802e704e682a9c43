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
from graphc.ir.types import TensorType, normalize_axis
from graphc.ops.embedding import gather
from graphc.ops.shape import Slice, SliceAttributes, reshape, transpose


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
    """x[index] by slices, integers, ``...``, None and one tensor of integers, as NumPy has them.

    An integer drops its axis, None makes one of extent 1, a tensor puts its axes in place of the
    axis and takes elements by number, as `gather` does; a list or an array of integers stands for
    such a tensor, and may count from the end. It is a view, unless a step is negative or there is a
    tensor. Raises `ShapeError` for an index outside x or an empty slice, and `OptionError` for
    another kind of index, such as a mask: that many elements would have no fixed shape.
    """
    entries = _entries(as_value("slice", x), index)
    starts, stops, steps, turned = [], [], [], []
    shape: list[int] = []
    looked_up: list[tuple[int, Value]] = []
    axis = 0
    for entry in entries:
        if entry is None:
            shape.append(1)
            continue
        n = x.shape[axis]
        if isinstance(entry, Value):
            looked_up.append((axis, entry))
            shape += entry.shape
            part = (0, n, 1)
        elif isinstance(entry, slice):
            part, is_turned = _ascending(entry, axis, n)
            turned += [axis] if is_turned else []
            shape.append(len(range(*part)))
        else:
            start = int(entry) % n if -n <= entry < n else n
            if start == n:
                raise ShapeError(f"slice: index {entry} is outside axis {axis} of extent {n}")
            part = (start, start + 1, 1)
        starts.append(part[0])
        stops.append(part[1])
        steps.append(part[2])
        axis += 1
    is_whole = not any(starts) and (*stops,) == x.shape and all(step == 1 for step in steps)
    if not is_whole or (x.type.rank and not looked_up and None not in entries):
        attributes = SliceAttributes(tuple(starts), tuple(stops), tuple(steps))
        x = apply(Slice, x, attributes=attributes).output
    x = reverse(x, turned)
    for axis, numbers in looked_up:
        x = taken(x, numbers, axis)
    return reshape(x, shape)


def taken(x: Value, numbers: Value, axis: int) -> Value:
    """x[numbers] along an axis: the axes of `numbers` take its place."""
    rest = [i for i in range(x.type.rank) if i != axis]
    rows = gather(transpose(x, [axis, *rest]), numbers)
    rank = numbers.type.rank
    behind = [rank + i for i in range(len(rest))]
    return transpose(rows, [*behind[:axis], *range(rank), *behind[axis:]])


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
    if sum(isinstance(entry, Value) for entry in entries) > 1:
        raise OptionError(
            "slice: an index has one tensor of integers; take one axis after the other, as in "
            "x[i][:, j]"
        )
    return entries


def _entry(entry: Any, extent: int) -> Any:
    """A slice, an integer, or a tensor of integers as a value."""
    if isinstance(entry, Value):
        return _numbers(entry)
    if isinstance(entry, slice | int | np.integer) and not isinstance(entry, bool):
        return entry
    if isinstance(entry, list | np.ndarray):
        numbers = constant(entry)
        array = np.asarray(entry)
        if array.dtype.kind in "iu":
            if not -extent <= array.min() <= array.max() < extent:
                raise ShapeError(
                    f"slice: the numbers {quoted(entry)} are not all inside an axis of {extent}"
                )
            return constant(np.where(array < 0, array + extent, array))
        return _numbers(numbers)
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
