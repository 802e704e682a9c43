"""Data movement without arithmetic: views, concatenation, repetition and slices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

import graphc
from graphc.importing.calls import UnsupportedError, check_numbers
from graphc.importing.shapes import tiled
from graphc.ir.graph import Value
from graphc.ir.types import normalize_axis
from graphc.torch.importing.calls import Operand, TorchCall, rule
from graphc.torch.importing.empty import empty_like, is_empty


@rule(
    "_reshape_alias", "_unsafe_view", "flatten", "ravel", "reshape", "reshape_as", "squeeze",
    "unflatten", "unsqueeze", "view", "view_as",
)  # fmt: skip
def reshape(call: TorchCall) -> Value:
    """Reshape to the shape that torch inferred."""
    if call.operator == "view" and "dtype" in call.arguments:
        raise UnsupportedError("reinterpreting bytes as another dtype is not supported")
    return graphc.reshape(call.value("self"), call.shape)


@rule("permute")
def permute(call: TorchCall) -> Value:
    """Permute axes."""
    x = call.value("self")
    return graphc.transpose(x, [normalize_axis(n, x.type.rank, "permute") for n in call["dims"]])


@rule("transpose", "swapaxes", "swapdims")
def transpose(call: TorchCall) -> Value:
    """Swap two axes."""
    x = call.value("self")
    if x.type.rank == 0:
        return x
    names = ("dim0", "dim1") if "dim0" in call.arguments else ("axis0", "axis1")
    a, b = (normalize_axis(call[name], x.type.rank, call.operator) for name in names)
    order = list(range(x.type.rank))
    order[a], order[b] = b, a
    return graphc.transpose(x, order)


@rule("t", "numpy_T", "mT", "adjoint", "matrix_H")
def turned(call: TorchCall) -> Value:
    """Swap the last two axes, or reverse the order of all axes."""
    x = call.value("self")
    if call.operator in ("t", "numpy_T"):
        return x if x.type.rank < 2 else graphc.transpose(x)
    return graphc.transpose(x, (*range(x.type.rank - 2), x.type.rank - 1, x.type.rank - 2))


@rule("movedim", "moveaxis")
def movedim(call: TorchCall) -> Value:
    """Move axes to other positions."""
    x = call.value("self")
    sources, places = (_listed(call[name], x.type.rank) for name in ("source", "destination"))
    rest = iter(axis for axis in range(x.type.rank) if axis not in sources)
    moved = dict(zip(places, sources, strict=True))
    order = [moved[i] if i in moved else next(rest) for i in range(x.type.rank)]
    return graphc.transpose(x, order)


def _listed(given: int | Sequence[int], rank: int) -> list[int]:
    listed = [given] if isinstance(given, int) else list(given)
    return [normalize_axis(axis, rank, "movedim") for axis in listed]


@rule("expand", "expand_as", "broadcast_to")
def expand(call: TorchCall) -> Value:
    """Broadcast to a shape."""
    return graphc.broadcast_to(call.value("self"), call.shape)


@rule("repeat", "tile")
def repeat(call: TorchCall) -> Value:
    """Tile x along each axis."""
    x = call.value("self")
    given = call["repeats"] if call.operator == "repeat" else call["dims"]
    return tiled(x, (*(1,) * (x.type.rank - len(given)), *given))


@rule("repeat_interleave")
def repeat_each(call: TorchCall) -> Value:
    """Repeat each element along an axis the same number of times."""
    x = call.value("self")
    if not call.has("dim"):
        x = graphc.reshape(x, (-1,))
    axis = normalize_axis(call.get("dim", 0), x.type.rank, "repeat_interleave")
    times = call["repeats"]
    if isinstance(times, torch.Tensor):
        check_numbers(int(times.sum()))
        counts = times.expand(x.shape[axis]).numpy()
        return graphc.take(x, graphc.constant(np.arange(x.shape[axis]).repeat(counts)), axis)
    if not isinstance(times, int):
        raise UnsupportedError("repeats must be constant")
    before, after = x.shape[: axis + 1], x.shape[axis + 1 :]
    each = graphc.reshape(x, (*before, 1, *after))
    return graphc.reshape(graphc.broadcast_to(each, (*before, times, *after)), call.shape)


@rule("cat", "concat", "concatenate")
def cat(call: TorchCall) -> Value:
    """Concatenate operands in torch's dtype, without those that have no elements."""
    parts = [
        graphc.cast(call.as_value(part), call.dtype)
        for part in call["tensors"]
        if not is_empty(part)
    ]
    axis = call.axis(rank=parts[0].type.rank)
    return parts[0] if len(parts) == 1 else graphc.concat(parts, axis)


@rule("stack")
def stack(call: TorchCall) -> Value:
    """Stack operands along a new axis."""
    parts = [graphc.cast(part, call.dtype) for part in call.values("tensors")]
    return graphc.stack(parts, call.axis(rank=parts[0].type.rank + 1))


@rule("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk")
def split(call: TorchCall) -> Sequence[Operand]:
    """Split along an axis into the extents that torch inferred; those of 0 are known."""
    x, axis, examples = call.value("self"), call.axis(), call.node.meta["val"]
    extents = [n for n in (part.shape[axis] for part in examples) if n]
    parts = iter((x,) if len(extents) == 1 else graphc.split(x, extents, axis))
    return [empty_like(each) if is_empty(each) else next(parts) for each in examples]


@rule("unbind")
def unbind(call: TorchCall) -> Sequence[Value]:
    """Split along an axis into single elements, and remove the axis."""
    x, axis = call.value("self"), call.axis()
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    parts = graphc.split(x, x.shape[axis], axis) if x.shape[axis] > 1 else (x,)
    return [graphc.reshape(part, shape) for part in parts]


def _along(axis: int, part: int | slice) -> tuple[int | slice, ...]:
    return (*(slice(None),) * axis, part)


@rule("select")
def select(call: TorchCall) -> Value:
    """Return one element along an axis, and remove the axis."""
    return graphc.slice(call.value("self"), _along(call.axis(), int(call["index"])))


def _part(call: TorchCall, extent: int) -> slice:
    """Return the part of an axis that a slice selects, clamped as in torch."""
    start, stop = call.get("start", 0), call.get("end", extent)
    start, stop = (max(n + extent, 0) if n < 0 else min(n, extent) for n in (start, stop))
    return slice(start, stop, call["step"])


@rule("slice")
def slice_(call: TorchCall) -> Value:
    """Return a part along an axis."""
    x, axis = call.value("self"), call.axis()
    return graphc.slice(x, _along(axis, _part(call, x.shape[axis])))


@rule("narrow")
def narrow(call: TorchCall) -> Value:
    """Return a number of elements along an axis from a start."""
    x, axis = call.value("self"), call.axis()
    start = int(call["start"]) % x.shape[axis]
    return graphc.slice(x, _along(axis, slice(start, start + int(call["length"]))))


@rule("select_scatter", "slice_scatter")
def put_part(call: TorchCall) -> Value:
    """Replace a part of an operand along an axis."""
    x, axis = call.value("self"), call.axis()
    extent = x.shape[axis]
    if call.operator == "select_scatter":
        place = int(call["index"]) % extent
        places = range(place, place + 1)
    else:
        places = range(*_part(call, extent).indices(extent))
    part = graphc.cast(call.value("src"), x.type.dtype)
    part = graphc.reshape(part, (*x.shape[:axis], len(places), *x.shape[axis + 1 :]))
    if places.step == 1:
        pieces = [(0, places.start), None, (places.stop, extent)]
        parts = [
            part if piece is None else graphc.slice(x, _along(axis, slice(*piece)))
            for piece in pieces
            if piece is None or piece[0] < piece[1]
        ]
        return parts[0] if len(parts) == 1 else graphc.concat(parts, axis)
    behind = x.type.rank - 1 - axis
    indices = np.arange(places.start, places.stop, places.step).reshape((-1, *(1,) * behind))
    where: Value = graphc.broadcast_to(graphc.constant(indices), part.shape)
    return graphc.scatter_elements(x, where, part, axis)


@rule("flip")
def flip(call: TorchCall) -> Value:
    """Reverse the elements along axes."""
    return graphc.reverse(call.value("self"), list(call["dims"]))


@rule("roll")
def roll(call: TorchCall) -> Value:
    """Rotate elements along axes."""
    x = call.value("self")
    axes = list(call["dims"])
    y = x if axes else graphc.reshape(x, (-1,))
    for shift, axis in zip(call["shifts"], axes or [0], strict=True):
        axis = normalize_axis(axis, y.type.rank, "roll")
        cut = -shift % y.shape[axis]
        if cut:
            first, second = graphc.split(y, (cut, y.shape[axis] - cut), axis)
            y = graphc.concat([second, first], axis)
    return graphc.reshape(y, x.shape)


MODES = {
    "constant": "constant",
    "constant_pad_nd": "constant",
    "reflect": "reflect",
    "reflection_pad1d": "reflect",
    "reflection_pad2d": "reflect",
    "reflection_pad3d": "reflect",
    "replicate": "edge",
    "replication_pad1d": "edge",
    "replication_pad2d": "edge",
    "replication_pad3d": "edge",
    "circular": "wrap",
}


@rule("pad", *(name for name in MODES if "_" in name))
def pad(call: TorchCall) -> Value:
    """Pad an operand; torch lists axes from the last."""
    x = call.value("self")
    widths = list(call["padding"] if "padding" in call.arguments else call["pad"])
    pairs = [(widths[i], widths[i + 1]) for i in range(0, len(widths), 2)][::-1]
    around = [(0, 0)] * (x.type.rank - len(pairs)) + pairs
    mode = MODES[call.get("mode", call.operator) if call.operator == "pad" else call.operator]
    return graphc.pad(x, around, mode, float(call.get("value", 0.0)))


@rule("tril", "triu")
def triangle(call: TorchCall) -> Value:
    """Return the lower or upper triangle, with 0 elsewhere."""
    x = call.value("self")
    check_numbers(math.prod(x.shape[-2:]))
    ones = np.ones(x.shape[-2:], bool)
    kept = (np.tril if call.operator == "tril" else np.triu)(ones, call["diagonal"])
    zero = graphc.full((), 0, x.type.dtype)
    return graphc.where(graphc.constant(kept), x, zero)


@rule("diagonal")
def diagonal(call: TorchCall) -> Value:
    """Return the elements of a diagonal along a new last axis."""
    x = call.value("self")
    a, b = (normalize_axis(call[name], x.type.rank, "diagonal") for name in ("dim1", "dim2"))
    rest = [i for i in range(x.type.rank) if i not in (a, b)]
    x = graphc.transpose(x, (*rest, a, b))
    rows, columns = x.shape[-2:]
    offset, length = call["offset"], call.shape[-1]
    first = offset if offset >= 0 else -offset * columns
    flat = graphc.reshape(x, (*x.shape[:-2], rows * columns))
    stop = first + (length - 1) * (columns + 1) + 1
    return graphc.slice(flat, (..., slice(first, stop, columns + 1)))


@rule("diagonal_scatter")
def put_diagonal(call: TorchCall) -> Value:
    """Replace the elements of a diagonal."""
    x, offset = call.value("self"), int(call["offset"])
    a, b = (normalize_axis(call[n], x.type.rank, "diagonal_scatter") for n in ("dim1", "dim2"))
    order = [*(i for i in range(x.type.rank) if i not in (a, b)), a, b]
    x = graphc.transpose(x, order)
    part = graphc.cast(call.value("src"), x.type.dtype)
    rows, columns = x.shape[-2:]
    places = np.clip(np.arange(rows) + min(offset, 0), 0, part.shape[-1] - 1)
    by_row = graphc.take(part, graphc.constant(places), -1)
    is_diagonal = graphc.constant(np.eye(rows, columns, offset, dtype=bool))
    y = graphc.where(is_diagonal, graphc.reshape(by_row, (*by_row.shape, 1)), x)
    return graphc.transpose(y, [order.index(i) for i in range(x.type.rank)])


@rule("pixel_shuffle")
def pixel_shuffle(call: TorchCall) -> Value:
    """Rearrange channels into blocks of positions."""
    return graphc.depth_to_space(call.value("self"), call["upscale_factor"], "CRD")


@rule("unfold")
def unfold(call: TorchCall) -> Value:
    """Return windows along an axis as a new last axis."""
    x = call.value("self")
    axis = normalize_axis(call["dimension"], x.type.rank, "unfold")
    size, step = call["size"], call["step"]
    starts = np.arange(0, x.shape[axis] - size + 1, step)[:, None] + np.arange(size)
    windows = graphc.take(x, graphc.constant(starts.astype(np.int64)), axis)
    order = [i for i in range(x.type.rank + 1) if i != axis + 1]
    return graphc.transpose(windows, (*order, axis + 1))
