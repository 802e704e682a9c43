"""Lookups and writes by integer indices; negative indices count from the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

import graphc
from graphc.importing.calls import UnsupportedError
from graphc.ir.graph import Value
from graphc.ir.types import bool_, broadcast_shapes
from graphc.torch.importing.calls import TorchCall, rule


@rule("gather", "take_along_dim")
def gather(call: TorchCall) -> Value:
    """Return one element along an axis for each index."""
    x, indices = call.value("self"), call.value("index" if call.has("index") else "indices")
    if not call.has("dim"):
        return graphc.gather_elements(graphc.reshape(x, (-1,)), graphc.reshape(indices, (-1,)), 0)
    if call.operator == "take_along_dim":
        axis = call.axis()
        shapes = [(*v.shape[:axis], 1, *v.shape[axis + 1 :]) for v in (x, indices)]
        shape = broadcast_shapes("take_along_dim", *shapes)
        x, indices = (
            graphc.broadcast_to(v, (*shape[:axis], v.shape[axis], *shape[axis + 1 :]))
            for v in (x, indices)
        )
    return graphc.gather_elements(x, indices, call.axis())


@rule("index_select")
def index_select(call: TorchCall) -> Value:
    """Return slices along an axis by index."""
    return graphc.take(call.value("self"), call.value("index"), call.axis())


@rule("one_hot")
def one_hot(call: TorchCall) -> Value:
    """Return 1 at the index along a new last axis, else 0."""
    return graphc.one_hot(call.value("self"), call.shape[-1], call.dtype)


def _entries(call: TorchCall) -> list[tuple[int, Value]]:
    """Return indexed axes with their indices; a known mask becomes the indices where it is true."""
    entries: list[tuple[int, Value]] = []
    axis = 0
    for given in call["indices"]:
        if given is None:
            axis += 1
            continue
        if isinstance(given, torch.Tensor) and given.dtype in (torch.bool, torch.uint8):
            columns = torch.nonzero(given, as_tuple=True)
            entries += [(axis + i, call.as_value(column)) for i, column in enumerate(columns)]
            axis += given.dim()
            continue
        numbers = call.as_value(given)
        if numbers.type.dtype == bool_:
            raise UnsupportedError(
                "a computed mask selects a number of elements that is unknown before the step; "
                "use where instead"
            )
        entries.append((axis, numbers))
        axis += 1
    return entries


@rule("index", "_unsafe_index")
def index(call: TorchCall) -> Value:
    """Return elements by indices along one or several axes."""
    x, numbers = call.value("self"), dict(_entries(call))
    return graphc.slice(x, tuple(numbers.get(axis, slice(None)) for axis in range(x.type.rank)))


def _are_neighbours(axes: Sequence[int]) -> bool:
    return list(axes) == list(range(axes[0], axes[0] + len(axes)))


@rule("index_put", "_unsafe_index_put")
def index_put(call: TorchCall) -> Value:
    """Replace or add to elements by indices, or write one number where a mask is true."""
    x, values = call.value("self"), call.value("values")
    masked = _by_mask(call, x, values)
    if masked is not None:
        return masked
    axes, numbers = zip(*_entries(call), strict=True)
    shape = broadcast_shapes("index_put", *(given.shape for given in numbers))
    rest = [i for i in range(x.type.rank) if i not in axes]
    first = axes[0] if _are_neighbours(axes) else 0
    behind = [x.shape[i] for i in rest]
    shown = (*behind[:first], *shape, *behind[first:])
    values = graphc.broadcast_to(values, shown)
    places = range(first, first + len(shape))
    others = [i for i in range(len(shown)) if i not in places]
    updates = graphc.transpose(values, (*places, *others))
    order = (*axes, *rest)
    tuples = _tuples(numbers, shape)
    front = graphc.transpose(x, order)
    found = graphc.scatter_nd(front, tuples, updates, "add" if call.get("accumulate") else "none")
    return graphc.transpose(found, [order.index(i) for i in range(x.type.rank)])


def _by_mask(call: TorchCall, x: Value, values: Value) -> Value | None:
    """Return x with one number where a mask of its leading axes is true; None if not one."""
    given = [each for each in call["indices"] if each is not None]
    if len(given) != 1 or len(call["indices"]) != 1 or call.get("accumulate"):
        return None
    mask = call.as_value(given[0])
    if mask.type.dtype != bool_ or values.type.elements != 1:
        return None
    behind = (1,) * (x.type.rank - mask.type.rank)
    return graphc.where(graphc.reshape(mask, (*mask.shape, *behind)), graphc.reshape(values, ()), x)


def _tuples(numbers: Sequence[Value], shape: tuple[int, ...]) -> Value:
    columns = [
        graphc.reshape(graphc.broadcast_to(graphc.cast(given, "int64"), shape), (*shape, 1))
        for given in numbers
    ]
    return columns[0] if len(columns) == 1 else graphc.concat(columns, -1)


@rule("masked_scatter")
def masked_scatter(call: TorchCall) -> Value:
    """Replace the elements where a mask is true by the first elements of a source, in order."""
    mask = graphc.broadcast_to(call.value("mask"), call.shape)
    source = graphc.reshape(call.value("source"), (-1,))
    flat = graphc.cast(graphc.reshape(mask, (-1,)), "int64")
    places = graphc.cumsum(flat, 0, exclusive=True)
    found = graphc.gather(source, graphc.minimum(places, source.type.elements - 1))
    return graphc.where(mask, graphc.reshape(found, call.shape), call.value("self"))


@rule("index_add", "index_copy", "index_fill", "index_reduce")
def index_write(call: TorchCall) -> Value:
    """Replace slices along an axis by index, or combine them with others."""
    x, axis = call.value("self"), call.axis()
    indices = graphc.reshape(call.value("index"), (-1, 1))
    order = (axis, *(i for i in range(x.type.rank) if i != axis))
    shape = (indices.shape[0], *(x.shape[i] for i in order[1:]))
    if call.operator == "index_fill":
        value = call["value"]
        filling = value if isinstance(value, int | float) else None
        updates = (
            graphc.full(shape, float(filling), x.type.dtype)
            if filling is not None
            else graphc.broadcast_to(call.value("value"), shape)
        )
    else:
        updates = graphc.transpose(call.value("source"), order)
        if call.get("alpha", 1) != 1:
            updates = graphc.mul(updates, call["alpha"])
    reduction = "sum" if call.operator == "index_add" else call.get("reduce")
    rows = graphc.transpose(x, order)

    def write(to: Value, updates: Value, reduction: str) -> Value:
        return graphc.scatter_nd(to, indices, updates, reduction)

    found = _reduced(call, write, rows, updates, reduction)
    return graphc.transpose(found, [order.index(i) for i in range(x.type.rank)])


REDUCTIONS = {
    "add": "add",
    "amax": "max",
    "amin": "min",
    "mean": "add",
    "multiply": "mul",
    "prod": "mul",
    "sum": "add",
}
NEUTRAL = {"add": 0.0, "mul": 1.0, "max": float("-inf"), "min": float("inf")}

Write = Callable[[Value, Value, str], Value]
"""Combines a tensor with updates at the indices of a call, by a reduction."""


def _reduced(call: TorchCall, write: Write, x: Value, updates: Value, given: str | None) -> Value:
    """Return x with updates written by a reduction of torch, or in place of its elements."""
    if given is None:
        return write(x, updates, "none")
    if given not in REDUCTIONS:
        raise UnsupportedError(
            f"the reduction must be one of {', '.join(REDUCTIONS)}, got {given!r}"
        )
    reduction, dtype = REDUCTIONS[given], x.type.dtype
    includes = call.get("include_self", True) is not False
    if not includes:
        x = write(x, graphc.full(updates.shape, NEUTRAL[reduction], dtype), "none")
    found = write(x, updates, reduction)
    if given != "mean":
        return found
    ones = graphc.full(updates.shape, 1.0, dtype)
    count = write(graphc.full(x.shape, float(includes), dtype), ones, "add")
    count = count if includes else graphc.maximum(count, graphc.full((), 1.0, dtype))
    return graphc.div(found, count) if dtype.kind == "float" else graphc.floor_divide(found, count)


@rule("scatter", "scatter_add", "scatter_reduce")
def scatter(call: TorchCall) -> Value:
    """Replace elements along an axis, or combine them with updates."""
    x, indices, axis = call.value("self"), call.value("index"), call.axis()
    if call.has("value"):
        updates = graphc.full(indices.shape, float(call["value"]), x.type.dtype)
    else:
        updates = call.value("src")
        if updates.shape != indices.shape:
            updates = graphc.slice(updates, tuple(slice(0, n) for n in indices.shape))

    def write(to: Value, updates: Value, reduction: str) -> Value:
        return graphc.scatter_elements(to, indices, updates, axis, reduction)

    reduction = "add" if call.operator == "scatter_add" else call.get("reduce")
    return _reduced(call, write, x, updates, reduction)
