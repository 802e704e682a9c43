"""Gather and scatter of elements by their indices along an axis.

Both use the ops of `graphc.ops.scatter` with rows of one element. All other axes are batch axes,
which transposed views move to the front.
"""

from __future__ import annotations

from graphc.errors import ShapeError
from graphc.ir.builder import as_value
from graphc.ir.graph import Value
from graphc.ir.types import normalize_axis
from graphc.ops.concat import concat
from graphc.ops.indexing import rows_at, slice_
from graphc.ops.scatter import gather_nd, scatter_nd
from graphc.ops.shape import reshape, transpose


def take(x: Value, indices: Value, axis: int = 0) -> Value:
    """Select slices of x along `axis` by index; the axes of `indices` replace `axis`.

    A negative index counts from the end. Raises `ShapeError` for an axis that x does not have, and
    otherwise the errors of `gather_nd`.
    """
    at = normalize_axis(axis, as_value("take", x).type.rank, "take")
    return rows_at(x, {at: as_value("take", indices)}, at)


def gather_elements(x: Value, indices: Value, axis: int) -> Value:
    """Select one element of x along `axis` for each of `indices`; the result has their shape.

    ``y[i, j, k]`` is ``x[i, indices[i, j, k], k]`` for axis 1: NumPy's take_along_axis. On the
    other axes `indices` may be shorter than x. A negative index counts from the end. Raises the
    errors of `gather_nd`.
    """
    place, whole, last = _along("gather_elements", x, indices, axis)
    found = gather_nd(_part(whole, last), reshape(last, (*last.shape, 1)), last.type.rank - 1)
    return _back(found, place)


def scatter_elements(
    x: Value, indices: Value, updates: Value, axis: int, reduction: str = "none"
) -> Value:
    """Combine elements of x along `axis` with `updates`, one for each of `indices`.

    For axis 1, ``y[i, indices[i, j, k], k]`` is combined with ``updates[i, j, k]``. On the other
    axes `indices` may be shorter than x, and `updates` has its shape. Reductions, order and errors
    are those of `scatter_nd`.
    """
    place, whole, last = _along("scatter_elements", x, indices, axis)
    rows = _last(as_value("scatter_elements", updates), place)
    if rows.shape != last.shape:
        raise ShapeError(
            f"scatter_elements: updates must have the shape of indices, got {updates.type} and "
            f"{indices.type}"
        )
    tuples, batch = reshape(last, (*last.shape, 1)), last.type.rank - 1
    part = _part(whole, last)
    found = scatter_nd(part, tuples, rows, reduction, batch)
    return _back(found if part is whole else _put(whole, found), place)


def _along(where: str, x: Value, indices: Value, axis: int) -> tuple[int, Value, Value]:
    """Return the axis counted from the front, and x and indices with that axis moved to the end."""
    place = normalize_axis(axis, as_value(where, x).type.rank, where)
    longer = [
        i for i, (n, m) in enumerate(zip(as_value(where, indices).shape, x.shape, strict=False))
        if n > m and i != place
    ]  # fmt: skip
    if indices.type.rank != x.type.rank or longer:
        raise ShapeError(
            f"{where}: indices must have the rank of x, and no axis except {place} may exceed "
            f"that of x; got {x.type} and {indices.type}"
        )
    return place, _last(x, place), _last(indices, place)


def _last(x: Value, axis: int) -> Value:
    """Return x with an axis moved to the end."""
    return transpose(x, (*(i for i in range(x.type.rank) if i != axis), axis))


def _back(x: Value, axis: int) -> Value:
    """Return x with its last axis moved to `axis`."""
    last = x.type.rank - 1
    return transpose(x, (*range(axis), last, *range(axis, last)))


def _part(whole: Value, last: Value) -> Value:
    """Return the start of `whole` with the extents of `last` on all axes but the last one."""
    if whole.shape[:-1] == last.shape[:-1]:
        return whole
    return slice_(whole, tuple(slice(0, n) for n in last.shape[:-1]))


def _put(whole: Value, part: Value) -> Value:
    """Return `whole` with its start, a slice of the shape of `part`, replaced by `part`."""
    reach = list(part.shape)
    for axis, extent in enumerate(whole.shape):
        if reach[axis] < extent:
            behind = [slice(0, n) for n in reach]
            behind[axis] = slice(reach[axis], extent)
            part = concat([part, slice_(whole, tuple(behind))], axis)
            reach[axis] = extent
    return part
