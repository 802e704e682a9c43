"""Products of few rows with a parameter: the conditions for kernels that read it in place.

The condition depends on the types of a node, its attributes and its workspace alone, so every plan
of a network computes the same bits.
"""

from __future__ import annotations

from dataclasses import replace

from graphc.codegen.elementwise.ops import IDENTITY
from graphc.codegen.elementwise.program import Each
from graphc.codegen.llvm.each import each_call
from graphc.codegen.llvm.few_rows import DEPTH, MOST_ROWS, WIDTH, times_columns, times_rows
from graphc.codegen.llvm.kernel import NativeCall
from graphc.codegen.llvm.lanes import LANES
from graphc.codegen.node_calls import Buffer, Scratch
from graphc.codegen.text.operands import Operand, Places, operand
from graphc.ir.graph import Node, State, Value
from graphc.ir.types import contiguous_strides, float32

LEAST_ELEMENTS = 1 << 18
"""Minimum elements of the parameter: a smaller one stays in the caches, and packing it is cheap."""


def few_rows_calls(node: Node, places: Places, scratch_bytes: int) -> tuple[NativeCall, ...] | None:
    """Return the calls of a matmul or linear node whose second operand is a large parameter.

    Their scratch is a transposed part of the first operand, of at most `scratch_bytes` bytes.
    Returns None if the node is computed by oneDNN.
    """
    if not _is_supported(node, places):
        return None
    (a, b), y = node.inputs[:2], node.output
    (rows, inner), columns = a.shape, y.shape[-1]
    line = places[y].strides[0] // float32.itemsize
    scratch, part = Scratch(0), scratch_bytes // (rows * float32.itemsize)
    if node.op.name == "linear" or node.attributes.transpose_b:
        if part < inner or columns < LANES:
            return None
        buffers: tuple[Buffer, ...] = (scratch, b, y, *node.inputs[2:])
        turned = _turned(a, places, 0, inner, scratch)
        return (turned, times_columns(rows, inner, columns, line, buffers))
    part = inner if part >= inner else part // DEPTH * DEPTH
    if part == 0 or columns % WIDTH:
        return None
    calls: list[NativeCall] = []
    for first in range(0, inner, part):
        depth = min(part, inner - first)
        calls.append(_turned(a, places, first, depth, scratch))
        adds = first > 0
        calls.append(times_rows(rows, depth, columns, line, adds, (scratch, b, y), first))
    return tuple(calls)


def _is_supported(node: Node, places: Places) -> bool:
    (a, b), y = node.inputs[:2], node.output
    flags = node.attributes
    if node.op.name == "linear":
        is_plain = flags.activation == "none"
    else:
        is_plain = not (flags.transpose_a or flags.accumulate)
    if not is_plain or not _is_parameter(b) or a.type.rank != 2:
        return False
    if any(value.type.dtype != float32 for value in (*node.inputs, y)):
        return False
    rows = a.shape[0]
    return (
        0 < rows <= MOST_ROWS
        and rows % LANES == 0
        and b.type.elements >= LEAST_ELEMENTS
        and all(places[v].strides == contiguous_strides(v.type) for v in (b, *node.inputs[2:]))
        and places[y].strides[-1] == float32.itemsize
    )


def _is_parameter(value: Value) -> bool:
    """Return true for a view of a state, or of states that were gathered from all ranks.

    Their strides are the same in every plan.
    """
    root = value.root
    return isinstance(root, State) or (root.node is not None and root.node.op.awaits)


def _turned(a: Value, places: Places, first: int, depth: int, scratch: Scratch) -> NativeCall:
    """Return the call that copies columns `first` to `first` + `depth` of a to aᵀ in scratch."""
    rows, whole = a.shape[0], operand("x", a, places[a], a.shape)
    source = replace(whole, start=first * whole.strides[1])
    target = Operand("y", float32, (1, rows), scratch)
    call = each_call(Each("copy", (rows, depth), (source,), (target,), {"y": IDENTITY}))
    assert call is not None, "elements of every dtype can be copied"
    return call
