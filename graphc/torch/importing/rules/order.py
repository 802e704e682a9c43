"""Order statistics, searches in sorted tensors, and running extremes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

import graphc
from graphc.ir.graph import Value
from graphc.torch.importing.calls import TorchCall, rule
from graphc.torch.importing.rules.elementwise import promoted


@rule("topk")
def top_k(call: TorchCall) -> Sequence[Value]:
    """Return the largest or smallest elements along an axis, and their indices."""
    return graphc.top_k(call.value("self"), int(call["k"]), call.axis(), bool(call["largest"]))


@rule("sort", "argsort")
def sort(call: TorchCall) -> Value | Sequence[Value]:
    """Return the sorted elements and their indices; the sort is stable."""
    found = graphc.sort(call.value("self"), call.axis(), bool(call["descending"]))
    return found[1] if call.operator == "argsort" else found


@rule("kthvalue")
def kth_value(call: TorchCall) -> Sequence[Value]:
    """Return the k-th smallest element along an axis, and its index."""
    x = _vector_at_least(call)
    return _picked(call, x, _ranked(x, call.axis(), int(call["k"]) - 1))


@rule("median")
def median(call: TorchCall) -> Value | Sequence[Value]:
    """Return the lower median along an axis with its index, or of all elements.

    It is NaN if an element is. Elements equal to the median of all share its gradient.
    """
    x = _vector_at_least(call)
    if "dim" in call.arguments:
        return _picked(call, x, _median_place(x, call.axis()))
    flat = graphc.reshape(x, (-1,))
    found = graphc.stop_gradient(graphc.gather_elements(flat, _median_place(flat, 0), 0))
    if x.type.dtype.kind == "float":
        lowest = graphc.full((), -math.inf, x.type.dtype)
        found = graphc.max(graphc.where(graphc.greater(flat, found), lowest, flat), 0)
    return graphc.reshape(found, ())


def _vector_at_least(call: TorchCall) -> Value:
    """Return the operand, a number as a vector."""
    x = call.value("self")
    return x if x.type.rank else graphc.reshape(x, (1,))


def _ranked(x: Value, axis: int, rank: int) -> Value:
    """Return the index of the element at a rank along an axis, which is kept."""
    _, places = graphc.top_k(x, rank + 1, axis, False)
    return _sliced(places, axis, rank, rank + 1)


def _median_place(x: Value, axis: int) -> Value:
    """Return the index of the median, or of the first NaN, along an axis, which is kept."""
    place = _ranked(x, axis, (x.shape[axis] - 1) // 2)
    if x.type.dtype.kind != "float":
        return place
    largest = graphc.argmax(x, axis, True)  # that of the first NaN, if there is one
    is_nan = graphc.any(graphc.isnan(x), axis, True)
    return graphc.where(is_nan, largest, place)


def _picked(call: TorchCall, x: Value, place: Value) -> Sequence[Value]:
    """Return the elements at indices along the axis, and the indices, in torch's shape."""
    values = graphc.gather_elements(x, place, call.axis())
    return graphc.reshape(values, call.shape), graphc.reshape(place, call.shape)


def _sliced(x: Value, axis: int, start: int, stop: int) -> Value:
    return graphc.slice(x, (*(slice(None),) * axis, slice(start, stop)))


# --- searches ---


@rule("bucketize", "searchsorted")
def search(call: TorchCall) -> Value:
    """Return for each number how many elements of a sorted tensor precede it.

    NaN follows all numbers. The numbers are compared with all elements, because a planner can fuse
    this into one loop.
    """
    is_bucket = call.operator == "bucketize"
    given = [call["self"], call["boundaries" if is_bucket else "sorted_sequence"]]
    dtype = promoted(*given)
    x, table = (graphc.cast(call.as_value(each), dtype) for each in given)
    if call.has("sorter"):
        table = graphc.gather_elements(table, call.value("sorter"), -1)
    if table.type.rank > 1:
        table = graphc.reshape(table, (*table.shape[:-1], 1, table.shape[-1]))
    numbers = graphc.reshape(x, (*x.shape, 1))
    is_right = bool(call["right"]) or call.get("side") == "right"
    is_after = graphc.greater(table, numbers) if is_right else graphc.greater_equal(table, numbers)
    return graphc.sum(graphc.cast(graphc.bitwise_not(is_after), call.dtype), -1)


# --- running extremes and sums ---


@rule("cummax", "cummin")
def running_extreme(call: TorchCall) -> Sequence[Value]:
    """Return the largest or smallest elements so far, and their last indices; NaN stays."""
    x = _vector_at_least(call)
    axis = call.axis()
    shape = [1] * x.type.rank
    shape[axis] = x.shape[axis]
    numbers = graphc.constant(np.arange(x.shape[axis], dtype=np.int64).reshape(shape))
    order = graphc.greater_equal if call.operator == "cummax" else graphc.less_equal

    def later(before: Sequence[Value], own: Sequence[Value]) -> Sequence[Value]:
        wins = order(own[0], before[0])
        if x.type.dtype.kind == "float":
            wins = graphc.bitwise_or(wins, graphc.isnan(own[0]))
        return [graphc.where(wins, b, a) for a, b in zip(before, own, strict=True)]

    places = graphc.broadcast_to(numbers, x.shape)
    _, found = _scanned((graphc.stop_gradient(x), places), axis, later)
    values = graphc.gather_elements(x, found, axis)
    return graphc.reshape(values, call.shape), graphc.reshape(found, call.shape)


@rule("logcumsumexp")
def running_log_sum(call: TorchCall) -> Value:
    """Return the logarithms of the sums of exponentials so far."""
    x = _vector_at_least(call)
    axis = call.axis()
    (found,) = _scanned(
        (x,), axis, lambda before, own: [graphc.logsumexp(graphc.stack([*before, *own]), 0)]
    )
    return graphc.reshape(found, call.shape)


def _scanned(
    parts: Sequence[Value],
    axis: int,
    combined: Callable[[Sequence[Value], Sequence[Value]], Sequence[Value]],
) -> Sequence[Value]:
    """Return an inclusive scan along an axis by an associative function of tuples.

    It takes one step per doubling of the length (Hillis and Steele 1986).
    """
    extent, step = parts[0].shape[axis], 1
    while step < extent:
        before = [_sliced(part, axis, 0, extent - step) for part in parts]
        own = [_sliced(part, axis, step, extent) for part in parts]
        heads = [_sliced(part, axis, 0, step) for part in parts]
        tails = combined(before, own)
        parts = [graphc.concat(pair, axis) for pair in zip(heads, tails, strict=True)]
        step *= 2
    return parts
