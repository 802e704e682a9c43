"""Import of reshapes, repetition, concatenation and slicing; shapes are known at import."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

import graphc
from graphc.importing.calls import UnsupportedError, check_numbers
from graphc.importing.shapes import tiled
from graphc.importing.weights import Weight, empty, known
from graphc.ir.graph import Value
from graphc.ir.types import normalize_axis
from graphc.onnx.calls import OnnxCall, Operand, rule
from graphc.onnx.fold import MOST_ELEMENTS
from graphc.onnx.model import constant_of


@rule("Shape")
def shape(call: OnnxCall) -> Weight:
    """Return the extents of an operand, or of some of its axes, known at import."""
    extents = call.shape(0)[call.attribute("start", 0) : call.attribute("end")]
    return known(call.node.output[0], np.asarray(extents, np.int64))


@rule("Size")
def size(call: OnnxCall) -> Weight:
    """Return the number of elements of an operand, known at import."""
    return known(call.node.output[0], np.asarray(math.prod(call.shape(0)), np.int64))


@rule("Constant")
def constant(call: OnnxCall) -> Weight:
    """Return the tensor of a Constant node."""
    found = constant_of(call.node, ".")
    if found is None:
        raise UnsupportedError("strings and sparse tensors are not supported")
    return found


@rule("ConstantOfShape")
def constant_of_shape(call: OnnxCall) -> Value:
    """Import ConstantOfShape with a known shape."""
    number = np.asarray(call.attribute("value", np.zeros(1, np.float32))).reshape(())
    return graphc.full(call.integers(0), number.item(), number.dtype)


@rule("Reshape")
def reshape(call: OnnxCall) -> Value:
    """Import Reshape; an extent of 0 keeps the operand's, unless `allowzero` is set."""
    x, target = call.value(0), _target(call)
    count = -math.prod(target) if -1 in target else math.prod(target)
    fits = count > 0 and (x.type.elements % count == 0 if -1 in target else True)
    if not fits or (-1 not in target and count != x.type.elements):
        raise UnsupportedError(
            f"{x.type} cannot be reshaped to {target}, the shape stored in the file; set `dims` "
            "to the extents of the export, or export the batch as -1"
        )
    return graphc.reshape(x, target)


def _target(call: OnnxCall) -> list[int]:
    given = call.attribute("shape") if len(call.arguments) < 2 else call.integers(1)
    if given is None:
        raise UnsupportedError("the target shape is missing")
    if call.attribute("allowzero", 0):
        return list(given)
    shape = call.shape(0)
    if any(n == 0 and i >= len(shape) for i, n in enumerate(given)):
        raise UnsupportedError(f"0 in {given} copies an axis that {list(shape)} does not have")
    return [shape[i] if n == 0 else n for i, n in enumerate(given)]


@rule("Flatten")
def flatten(call: OnnxCall) -> Value:
    """Import Flatten to two axes: those before `axis`, and the rest."""
    x = call.value(0)
    axis = call.attribute("axis", 1)
    before = math.prod(x.shape[:axis])
    return graphc.reshape(x, (before, x.type.elements // before))


@rule("Squeeze")
def squeeze(call: OnnxCall) -> Value:
    """Import Squeeze: remove the given axes of extent 1, or all of them."""
    x, axes = call.value(0), call.axes()
    gone = {
        normalize_axis(axis, x.type.rank, "Squeeze")
        for axis in (axes if axes is not None else [i for i, n in enumerate(x.shape) if n == 1])
    }
    if any(x.shape[axis] != 1 for axis in gone):
        raise UnsupportedError(f"axes {sorted(gone)} of {x.type} must have extent 1")
    return graphc.reshape(x, [n for i, n in enumerate(x.shape) if i not in gone])


@rule("Unsqueeze")
def unsqueeze(call: OnnxCall) -> Value:
    """Import Unsqueeze: insert axes of extent 1."""
    x, axes = call.value(0), call.axes() or []
    rank = x.type.rank + len(axes)
    new = {normalize_axis(axis, rank, "Unsqueeze") for axis in axes}
    if len(new) != len(axes):
        raise UnsupportedError(f"axes must be distinct, got {axes}")
    rest = iter(x.shape)
    return graphc.reshape(x, [1 if i in new else next(rest) for i in range(rank)])


@rule("Transpose")
def transpose(call: OnnxCall) -> Value:
    """Import Transpose."""
    return graphc.transpose(call.value(0), call.attribute("perm"))


@rule("Expand")
def expand(call: OnnxCall) -> Value:
    """Import Expand, with bidirectional broadcasting."""
    x = call.value(0)
    return graphc.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(call.integers(1))))


@rule("Tile")
def tile(call: OnnxCall) -> Operand:
    """Import Tile: repeat the tensor along each axis.

    A result without elements is returned as a known tensor.
    """
    x, repeats = call.value(0), call.integers(1)
    if len(repeats) != x.type.rank:
        raise UnsupportedError(f"repeats must have one number per axis of {x.type}, got {repeats}")
    if 0 in repeats:
        return empty([n * m for n, m in zip(x.shape, repeats, strict=True)], x.type.dtype)
    return tiled(x, repeats)


@rule("Concat")
def concat(call: OnnxCall) -> Value:
    """Import Concat; operands without elements are skipped."""
    axis = call.required("axis")
    parts = [
        call.value(index)
        for index in range(len(call.arguments))
        if math.prod(call.shape(index)) or len(call.arguments) == 1
    ]
    return parts[0] if len(parts) == 1 else graphc.concat(parts, axis)


@rule("Split")
def split(call: OnnxCall) -> Sequence[Operand]:
    """Import Split along an axis, with given or nearly equal extents."""
    x = call.value(0)
    axis = normalize_axis(call.attribute("axis", 0), x.type.rank, "Split")
    if call.has(1) or call.attribute("split"):
        sizes = call.integers(1) if call.has(1) else list(call.attribute("split"))
    else:
        count = call.attribute("num_outputs", len(call.node.output))
        most = -(-x.shape[axis] // max(count, 1))
        if count < 1 or most * (count - 1) > x.shape[axis]:
            raise UnsupportedError(f"axis {axis} of {x.type} cannot be split into {count} parts")
        sizes = [most] * (count - 1) + [x.shape[axis] - most * (count - 1)]
    if min(sizes) < 0 or sum(sizes) != x.shape[axis]:
        raise UnsupportedError(
            f"the sizes {sizes} do not sum to the extent of axis {axis} of {x.type}"
        )
    parts = iter(graphc.split(x, [n for n in sizes if n], axis))
    return [next(parts) if n else _empty(x, axis) for n in sizes]


def _empty(x: Value, axis: int) -> Weight:
    """Return a known tensor with extent 0 along an axis, since values must have elements."""
    return empty([0 if i == axis else n for i, n in enumerate(x.shape)], x.type.dtype)


@rule("Slice")
def slice_(call: OnnxCall) -> Operand:
    """Import Slice along some axes, with steps of either sign."""
    x = call.value(0)
    if len(call.arguments) > 1:
        starts, ends = call.integers(1), call.integers(2)
        axes = call.integers(3, range(len(starts)))
        steps = call.integers(4, [1] * len(starts))
    else:
        starts, ends = call.required("starts"), call.required("ends")
        axes = call.attribute("axes", list(range(len(starts))))
        steps = [1] * len(starts)
    index = [slice(None)] * x.type.rank
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        axis = normalize_axis(axis, x.type.rank, "Slice")
        index[axis] = _part(start, end, step, x.shape[axis])
        if not range(*index[axis].indices(x.shape[axis])):
            return _empty(x, axis)
    return graphc.slice(x, tuple(index))


def _part(start: int, end: int, step: int, extent: int) -> slice:
    """Return a slice with bounds clamped as in ONNX.

    If the end is before the first element, it is None.
    """
    if step == 0:
        raise UnsupportedError("the step of a slice must not be 0")
    start, end = (n + extent if n < 0 else n for n in (start, end))
    if step > 0:
        return slice(min(max(start, 0), extent), min(max(end, 0), extent), step)
    start = min(max(start, 0), extent - 1)
    end = min(max(end, -1), extent - 1)
    return slice(start, None if end < 0 else end, step)


@rule("DepthToSpace")
def depth_to_space(call: OnnxCall) -> Value:
    """Import DepthToSpace: move channels to spatial blocks."""
    return graphc.depth_to_space(
        call.value(0), call.required("blocksize"), call.attribute("mode", "DCR")
    )


@rule("SpaceToDepth")
def space_to_depth(call: OnnxCall) -> Value:
    """Import SpaceToDepth: move spatial blocks to channels."""
    return graphc.space_to_depth(
        call.value(0), call.required("blocksize"), call.attribute("mode", "DCR")
    )


@rule("EyeLike")
def eye_like(call: OnnxCall) -> Weight:
    """Import EyeLike: ones on a diagonal."""
    rows, columns = call.shape(0)
    check_numbers(rows, columns)
    number = call.attribute("dtype")
    dtype = call.dtype(0).numpy if number is None else numpy_dtype(number)
    return known(call.node.output[0], np.eye(rows, columns, call.attribute("k", 0), dtype))


def numpy_dtype(number: int) -> np.dtype[np.generic]:
    """Return the NumPy dtype of an ONNX element type."""
    from onnx import helper

    return np.dtype(helper.tensor_dtype_to_np_dtype(number))


@rule("Cast")
def cast(call: OnnxCall) -> Value:
    """Import Cast."""
    return graphc.cast(call.value(0), numpy_dtype(call.required("to")))


@rule("BitCast")
def bitcast(call: OnnxCall) -> Value:
    """Import BitCast: reinterpret the bits as another dtype."""
    return graphc.bitcast(call.value(0), numpy_dtype(call.required("to")))


@rule("CastLike")
def cast_like(call: OnnxCall) -> Operand:
    """Import CastLike: cast to the dtype of another operand."""
    x, dtype = call.operand(0), call.dtype(1)
    if isinstance(x, Weight) and x.elements <= MOST_ELEMENTS:
        return known(x.name, x.read().astype(dtype.numpy))
    return graphc.cast(call.value(0), dtype)


@rule("Trilu")
def trilu(call: OnnxCall) -> Value:
    """Import Trilu: the upper or lower triangle, with zeros elsewhere."""
    x, offset = call.value(0), int(call.number(1, 0))
    rows, columns = x.shape[-2:]
    check_numbers(rows, columns)
    upper = call.attribute("upper", 1)
    ones = np.ones((rows, columns), bool)
    kept = np.triu(ones, offset) if upper else np.tril(ones, offset)
    zero = graphc.full((), 0, x.type.dtype)
    return graphc.where(graphc.constant(kept), x, zero)


@rule("ReverseSequence")
def reverse_sequence(call: OnnxCall) -> Value:
    """Import ReverseSequence: reverse the first `lengths[i]` elements of row i."""
    x, lengths = call.value(0), call.integers(1)
    time, batch = call.attribute("time_axis", 0), call.attribute("batch_axis", 1)
    if {time, batch} != {0, 1}:
        raise UnsupportedError(f"the time and batch axes must be 0 and 1, got {time} and {batch}")
    steps, rows = x.shape[time], x.shape[batch]
    check_numbers(steps, rows)
    order = np.arange(steps)[:, None].repeat(rows, 1)
    for row, length in enumerate(lengths):
        order[:length, row] = np.arange(length)[::-1]
    flat = order * rows + np.arange(rows) if time == 0 else (order + np.arange(rows) * steps).T
    table = graphc.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))
    return graphc.gather(table, graphc.constant(flat.astype(np.int64)))


@rule("CenterCropPad")
def center_crop_pad(call: OnnxCall) -> Operand:
    """Import CenterCropPad: crop or zero-pad to given extents around the center."""
    x, extents = call.value(0), call.integers(1)
    axes = call.attribute("axes", list(range(x.type.rank)))
    index, widths = [slice(None)] * x.type.rank, [(0, 0)] * x.type.rank
    for axis, wanted in zip(axes, extents, strict=True):
        axis = normalize_axis(axis, x.type.rank, "CenterCropPad")
        surplus = x.shape[axis] - wanted
        if surplus > 0:
            index[axis] = slice(surplus // 2, surplus // 2 + wanted)
        elif surplus < 0:
            widths[axis] = (-surplus // 2, -surplus - (-surplus // 2))
    cut = graphc.slice(x, tuple(index))
    return graphc.pad(cut, widths) if any(map(any, widths)) else cut
