"""Import of gathers and scatters; negative indices count from the end."""

from __future__ import annotations

import math

import numpy as np

import graphc
from graphc.importing.calls import UnsupportedError, check_numbers
from graphc.importing.weights import Weight, empty, known
from graphc.ir.graph import Value
from graphc.ir.types import normalize_axis
from graphc.onnx.calls import OnnxCall, Operand, rule


@rule("Gather")
def gather(call: OnnxCall) -> Operand:
    """Import Gather along an axis; a single known index becomes a slice."""
    x = call.value(0)
    axis = normalize_axis(call.attribute("axis", 0), x.type.rank, "Gather")
    if call.is_known(1):
        numbers = np.asarray(call.known(1), np.int64)
        extent = x.shape[axis]
        if not numbers.size:
            return empty((*x.shape[:axis], *numbers.shape, *x.shape[axis + 1 :]), x.type.dtype)
        if not -extent <= numbers.min() <= numbers.max() < extent:
            raise UnsupportedError(f"indices are out of range for axis {axis} of {x.type}")
        if numbers.shape == ():
            return graphc.slice(x, (*(slice(None),) * axis, int(numbers)))
        found: Value = graphc.constant(numbers % extent)
        if axis == 0:
            return graphc.gather(x, found)
        return graphc.take(x, found, axis)
    return graphc.take(x, call.value(1), axis)


@rule("GatherElements")
def gather_elements(call: OnnxCall) -> Value:
    """Import GatherElements: one element along an axis for each index."""
    return graphc.gather_elements(call.value(0), call.value(1), call.attribute("axis", 0))


@rule("GatherND")
def gather_nd(call: OnnxCall) -> Value:
    """Import GatherND: rows by index tuples."""
    return graphc.gather_nd(call.value(0), call.value(1), call.attribute("batch_dims", 0))


REDUCTIONS = ("none", "add", "mul", "max", "min")


@rule("Scatter", "ScatterElements")
def scatter_elements(call: OnnxCall) -> Value:
    """Import ScatterElements: elements along an axis, combined with updates."""
    return graphc.scatter_elements(
        call.value(0),
        call.value(1),
        call.value(2),
        call.attribute("axis", 0),
        call.choice("reduction", "none", REDUCTIONS),
    )


@rule("ScatterND")
def scatter_nd(call: OnnxCall) -> Value:
    """Import ScatterND: rows by index tuples, combined with updates."""
    reduction = call.choice("reduction", "none", REDUCTIONS)
    return graphc.scatter_nd(call.value(0), call.value(1), call.value(2), reduction)


@rule("OneHot")
def one_hot(call: OnnxCall) -> Value:
    """Import OneHot with on and off values; an index out of range gives only off values."""
    indices, depth = call.value(0), int(call.number(1))
    values = call.value(2)
    axis = call.attribute("axis", -1) % (indices.type.rank + 1)
    check_numbers(depth)
    numbers = np.arange(depth).reshape((depth, *(1,) * (indices.type.rank - axis)))
    whole = graphc.cast(indices, "int64")
    from_end = graphc.where(graphc.less(whole, 0), graphc.add(whole, depth), whole)
    shape = (*indices.shape[:axis], 1, *indices.shape[axis:])
    hit = graphc.equal(graphc.reshape(from_end, shape), graphc.constant(numbers))
    return graphc.where(hit, values[1], values[0])


@rule("Range")
def range_(call: OnnxCall) -> Weight:
    """Import Range with known start, limit and step."""
    start, limit, step = bounds = [call.known(i).reshape(()).item() for i in range(3)]
    check_numbers(math.ceil((limit - start) / step))
    return known(call.node.output[0], np.arange(*bounds).astype(call.dtype(0).numpy))


@rule("TensorScatter")
def tensor_scatter(call: OnnxCall) -> Value:
    """Import TensorScatter: write an update into a cache, with a start index per batch row."""
    past, update = call.value(0), call.value(1)
    axis = normalize_axis(call.attribute("axis", -2), past.type.rank, "TensorScatter")
    mode = call.choice("mode", "linear", ("linear", "circular"))
    steps = np.arange(update.shape[axis]).reshape((-1, *(1,) * (past.type.rank - axis - 1)))
    places: Value = graphc.broadcast_to(graphc.constant(steps), update.shape)
    if call.has(2):
        starts = graphc.cast(call.value(2), "int64")
        starts = graphc.reshape(starts, (-1, *(1,) * (past.type.rank - 1)))
        places = graphc.add(places, starts)
    if mode == "circular":
        places = graphc.remainder(places, past.shape[axis])
    return graphc.scatter_elements(past, places, update, axis)
