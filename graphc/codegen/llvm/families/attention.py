"""Fused attention and its gradient: the arguments and workspace of their kernels.

Operands of 16 bits are computed by NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.codegen.llvm.attention.backward import MATRICES, PARTS, write_backward
from graphc.codegen.llvm.attention.forward import write_forward
from graphc.codegen.llvm.attention.heads import STEP, Structure
from graphc.codegen.llvm.attention.product import HEIGHT, panel_width
from graphc.codegen.llvm.attention.sight import BLOCK
from graphc.codegen.llvm.kernel import NativeCall, NativeCalls, kernel_of
from graphc.codegen.llvm.lanes import LANES
from graphc.codegen.llvm.rules import native_rule
from graphc.codegen.node_calls import Scratch
from graphc.codegen.text.operands import Place, Places
from graphc.ir.graph import Node, Value
from graphc.ir.types import DType, TensorType, align, float32, float64
from graphc.ops.random import least_that_stays

COLUMNS = 256
"""The most columns of a tile, whose operands fit a second-level cache."""

PIECES = 8
"""The most pieces of a call. Each has its own workspace, so they bound the threads of a call."""


@native_rule("attention", "dropped_attention")
def _attention(node: Node, places: Places) -> NativeCalls | None:
    q, k, v, *rest = node.inputs
    if q.type.dtype not in (float32, float64):
        return None
    y, stats = node.outputs
    tensors = {"q": q, "k": k, "v": v, "y": y, "stats": stats}
    return _call(node, tensors, rest, places, ("packed", "values", "weights", "sums", "stays"))


@native_rule("attention_gradient", "dropped_attention_gradient")
def _attention_gradient(node: Node, places: Places) -> NativeCalls | None:
    dy, q, k, v, y, stats, *rest = node.inputs
    if q.type.dtype not in (float32, float64):
        return None
    values = (dy, q, k, v, y, *node.outputs)
    tensors = {**dict(zip(MATRICES, values, strict=True)), "stats": stats}
    return _call(node, tensors, rest, places, PARTS)


def _call(
    node: Node, tensors: dict[str, Value], rest: Sequence[Value], places: Places,
    parts: Sequence[str],
) -> NativeCalls:  # fmt: skip
    """Return the call of a node's kernel; `rest` has the counters of dropout and the mask."""
    q, k, v = (tensors[name] for name in "qkv")
    dtype, a = q.type.dtype, node.attributes
    (batch, heads, rows, width), (_, key_heads, columns, value_width) = q.shape, v.shape
    drops, backward = hasattr(a, "rate"), parts is PARTS
    counters, masks = (rest[:2], rest[2:]) if drops else ((), rest)
    block = _block(columns, dtype)
    sizes = _sizes(dtype, rows, block, width, value_width)
    offsets, slot = [], 0
    for name in parts:
        offsets.append(slot)
        slot += align(sizes[name], LANES)
    units = batch * (key_heads if backward else heads)
    pieces = min(units, PIECES)
    shift = a.shift(rows, columns)
    numbers = [
        units, pieces, slot, heads, heads // key_heads, rows, columns, width, value_width, block,
        columns if shift is None else shift, _bits(a.scale),
    ]  # fmt: skip
    for value in tensors.values():
        numbers += _strides(value, places[value])[:3]
    numbers += [number for mask in masks for number in _strides(mask, places[mask])]
    if drops:
        numbers += [a.stream, least_that_stays(a.rate), _bits(1 / (1 - a.rate))]
    kind = None
    if masks:
        step = _strides(masks[0], places[masks[0]])[3]
        kind = masks[0].type.dtype, None if step == 0 else step == 1
    structure = Structure(dtype, kind, drops, min(rows, HEIGHT))
    write = write_backward if backward else write_forward
    kernel = kernel_of(node.op.name, structure, lambda builder: write(builder, structure))
    pointers = (*tensors.values(), *counters, *masks, Scratch(0))
    work = batch * heads * rows * columns * (width + value_width) // LANES
    call = NativeCall(kernel, pointers, (*numbers, *offsets), pieces, work)
    return NativeCalls((call,), (TensorType((pieces, slot), dtype),))


def _block(columns: int, dtype: DType) -> int:
    """Return the columns of a block: a multiple of a panel, in equal parts of at most `COLUMNS`."""
    parts = -(-columns // COLUMNS)
    return align(-(-columns // parts), panel_width(dtype))


def _sizes(
    dtype: DType, rows: int, block: int, width: int, value_width: int
) -> dict[str, int]:  # fmt: skip
    """Return the number of elements of each part of the workspace of a piece."""
    tile = min(rows, STEP) * block
    return {
        "packed": align(width, LANES) * block,
        "packed_values": align(value_width, LANES) * block,
        "keys": align(width, LANES) * block,
        "values": align(value_width, LANES) * block,
        "queries": align(width, LANES) * min(rows, STEP),
        "slopes_of_y": align(value_width, LANES) * min(rows, STEP),
        "weights": tile,
        "slopes": tile,
        "sums": rows,
        "stays": -(-(block + 2 * BLOCK) // dtype.itemsize),
    }


def _strides(value: Value, place: Place) -> list[int]:
    """Return strides in elements, 0 for an axis of extent 1."""
    size = value.type.dtype.itemsize
    return [
        0 if extent == 1 else stride // size
        for extent, stride in zip(value.shape, place.strides, strict=True)
    ]


def _bits(number: float) -> int:
    return int(np.float64(number).view(np.int64))


