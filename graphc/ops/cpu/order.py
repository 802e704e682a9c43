"""Sorting of rows in place, by sorts of 64-bit integers.

NumPy's sorts of numbers need no memory, but its stable sorts do. So each element's sort key, 32
bits, and its index, the low 32 bits, are packed into one 64-bit number. No two of these numbers are
equal. Elements of 64 bits are sorted twice: by their low half, then by their high half, packed with
the rank from the first sort instead of the index.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graphc.ir.types import DType, TensorType, bool_, compute_dtype, int64
from graphc.ops.cpu.lines import LineTiles, count_up, line_tiles, lines_of, workspace_for

Array = np.ndarray[Any, np.dtype[Any]]

LOW = np.int64(0xFFFFFFFF)
HALF = np.int64(2**31)


def first_places(
    find: Callable[..., Any],
    axis: int,
    last: bool,
    x: Array,
    y: Array,
    workspace: Array,
    number: Array,
) -> None:
    """Compute the index of the extreme of each row along `axis`; `find` is argmax or argmin.

    Of equal elements, the first or, with `last`, the last one counts. `workspace` and `number` are
    scratch.
    """
    rest = y.reshape(*x.shape[:axis], 1, *x.shape[axis + 1 :])
    for tile in line_tiles(x.shape, axis):
        source = lines_of(x, axis, tile)
        lines, found = workspace_for(source, workspace), workspace_for(source, number)
        np.copyto(lines, source[..., ::-1] if last else source)
        find(lines, -1, out=found, keepdims=True)
        if last:
            np.subtract(x.shape[axis] - 1, found, out=found)
        np.copyto(lines_of(rest, axis, tile), found, casting="unsafe")


def sorting_workspace(x: TensorType, tiles: LineTiles, k: int) -> tuple[TensorType, ...]:
    """Return the scratch types of `choose_places`.

    They are rows, chosen elements, the starts of rows, indices along a row, and a mask of NaN. Then
    follow the sort keys, the keys packed with indices and, for 64 bits, the indices of a first
    sort.
    """
    whole, dtype = (tiles.lines, tiles.length), compute_dtype(x.dtype)
    number = TensorType(whole, int64)
    second = (number,) if _is_long(dtype) else ()
    return (
        TensorType(whole, x.dtype),
        TensorType((tiles.lines, k), x.dtype),
        TensorType((tiles.lines,), int64),
        TensorType((tiles.length,), int64),
        TensorType(whole, bool_),
        number,
        number,
        *second,
    )


def _is_long(dtype: DType) -> bool:
    """Return whether an element's sort key takes more than 32 bits."""
    return dtype.itemsize == 8


def choose_places(
    axis: int, k: int, largest: bool, x: Array, y: Array, places: Array, scratch: tuple[Array, ...]
) -> None:
    """Compute `y`, the k largest or smallest elements of rows in order, and their indices."""
    workspace, chosen, starts, along, odd, *numbers = scratch
    count_up(along)
    count_up(starts)
    np.multiply(starts, x.shape[axis], out=starts)
    for tile in line_tiles(x.shape, axis):
        source = lines_of(x, axis, tile)
        lines = workspace_for(source, workspace)
        np.copyto(lines, source)
        count = source.shape[0] * source.shape[1]
        flat, begin = workspace[:count], starts[:count, None]
        order, packed, *second = (n[:count] for n in numbers)
        _order(flat, order, packed, odd[:count])
        if largest:
            np.invert(order, out=order)
        found = _sorted(order, begin, along, k, packed, second[0] if second else None)
        target = lines_of(places, axis, tile)
        np.copyto(target, found.reshape(target.shape), casting="unsafe")
        np.add(found, begin, out=found)
        np.take(flat.reshape(-1), found, None, chosen[:count], "clip")
        target = lines_of(y, axis, tile)
        np.copyto(target, chosen[:count].reshape(target.shape))


def _order(lines: Array, order: Array, part: Array, odd: Array) -> None:
    """Compute integer sort keys of the elements; NaN becomes the largest.

    The key of a float is its bits, read as a signed integer, with the bits below the sign flipped
    if it is negative. The key of -0 would be -1, and is set to 0, the key of 0.
    """
    if lines.dtype.kind != "f":
        np.copyto(order, lines)
        return
    bits = np.dtype(f"i{lines.itemsize}")
    largest = np.iinfo(bits).max
    np.copyto(order, lines.view(bits))
    np.right_shift(order, 63, out=part)
    np.bitwise_and(part, largest, out=part)
    np.bitwise_xor(order, part, out=order)
    np.equal(order, -1, out=odd)
    np.add(order, odd, out=order)
    np.isnan(lines, out=odd)
    np.copyto(order, largest, where=odd)


def _sorted(
    order: Array, begin: Array, along: Array, k: int, packed: Array, second: Array | None
) -> Array:
    """Return the indices of the k least elements of each row, in order.

    The indices are stored in `order` or, with `second`, in `packed`.
    """
    if second is not None:
        np.bitwise_and(order, LOW, out=packed)
        np.left_shift(packed, 32, out=packed)
        np.bitwise_or(packed, along, out=packed)
        packed.view(np.uint64).sort(-1)
        np.bitwise_and(packed, LOW, out=second)
        np.add(second, begin, out=second)
        np.take(order.reshape(-1), second, None, packed, "clip")
        np.right_shift(packed, 32, out=packed)
    else:
        np.copyto(packed, order)
    np.add(packed, HALF, out=packed)
    np.left_shift(packed, 32, out=packed)
    np.bitwise_or(packed, along, out=packed)
    words = packed.view(np.uint64)
    if k < words.shape[1]:
        words.partition(k - 1, -1)
    words[:, :k].sort(-1)
    found = _first(order, k)
    np.bitwise_and(packed[:, :k], LOW, out=found)
    if second is None:
        return found
    np.add(found, begin, out=found)
    places = _first(packed, k)
    np.take(second.reshape(-1), found, None, places, "clip")
    np.subtract(places, begin, out=places)
    return places


def _first(numbers: Array, k: int) -> Array:
    """Return the start of a contiguous array (rows, length) as a contiguous array (rows, k)."""
    count = numbers.shape[0]
    return numbers.reshape(-1)[: count * k].reshape(count, k)
