"""Fused attention and its gradient: the calls, arguments and workspace of their kernels.

Operands of 16 bits are computed on float32 copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphc.codegen.elementwise.ops import IDENTITY
from graphc.codegen.elementwise.program import Each
from graphc.codegen.llvm.attention import backward, forward
from graphc.codegen.llvm.attention.heads import STEP, Structure
from graphc.codegen.llvm.attention.product import WIDEST_PANEL, block_height
from graphc.codegen.llvm.attention.sight import BLOCK
from graphc.codegen.llvm.each import each_call
from graphc.codegen.llvm.kernel import NativeCall, NativeCalls, kernel_of
from graphc.codegen.llvm.lanes import LANES
from graphc.codegen.llvm.rules import native_rule
from graphc.codegen.node_calls import Buffer, Scratch
from graphc.codegen.text.operands import Operand, Places, operand, row_major
from graphc.ir.graph import Node, Value
from graphc.ir.types import DType, TensorType, align, compute_dtype
from graphc.ops.dropped_attention import DroppedAttributes
from graphc.ops.random import least_that_stays

COLUMNS = 256
"""The most columns of a tile, so that the tile and its operands fit a second-level cache."""

PIECES = 8
"""The most pieces of a call. Each has its own workspace, so they bound the threads of a call."""


@native_rule("attention", "dropped_attention")
def _attention(node: Node, places: Places) -> NativeCalls:
    q, k, v, *rest = node.inputs
    tensors = dict(zip((*forward.MATRICES, "stats"), (q, k, v, *node.outputs), strict=True))
    return _calls(node, tensors, rest, places, is_backward=False)


@native_rule("attention_gradient", "dropped_attention_gradient")
def _attention_gradient(node: Node, places: Places) -> NativeCalls:
    dy, q, k, v, y, stats, *rest = node.inputs
    values = (dy, q, k, v, y, *node.outputs, stats)
    tensors = dict(zip((*backward.MATRICES, "stats"), values, strict=True))
    return _calls(node, tensors, rest, places, is_backward=True)


def _calls(
    node: Node,
    tensors: Mapping[str, Value],
    rest: Sequence[Value],
    places: Places,
    is_backward: bool,
) -> NativeCalls:
    """Return the calls of a node: copies of 16-bit inputs, the kernel, and copies to 16-bit
    outputs.

    `rest` has the counters of dropout and the mask.
    """
    dtype = compute_dtype(tensors["q"].type.dtype)
    given: list[Operand] = []
    before, after = list[NativeCall](), list[NativeCall]()
    scratch: list[TensorType] = []
    for name, value in tensors.items():
        own = operand(name, value, places[value], value.shape)
        if value.type.dtype != dtype:
            copy = Operand(name, dtype, row_major(value.shape), Scratch(len(scratch)))
            scratch.append(TensorType(value.shape, dtype))
            is_output = value in node.outputs
            pair = (copy, own) if is_output else (own, copy)
            (after if is_output else before).append(_copy(value.shape, *pair))
            own = copy
        given.append(own)
    own_call, slots = _call(node, tensors, given, rest, places, is_backward, len(scratch))
    return NativeCalls((*before, own_call, *after), (*scratch, slots))


def _copy(shape: tuple[int, ...], source: Operand, target: Operand) -> NativeCall:
    x, y = replace(source, name="x"), replace(target, name="y")
    call = each_call(Each("cast", shape, (x,), (y,), {"y": IDENTITY}))
    assert call is not None, "elements of every dtype can be copied"
    return call


def _call(
    node: Node,
    tensors: Mapping[str, Value],
    given: Sequence[Operand],
    rest: Sequence[Value],
    places: Places,
    is_backward: bool,
    slots: int,
) -> tuple[NativeCall, TensorType]:
    """Return the call of a node's kernel, and the type of its scratch number `slots`."""
    q, v, a = tensors["q"], tensors["v"], node.attributes
    dtype = compute_dtype(q.type.dtype)
    (batch, heads, rows, width), (_, key_heads, columns, value_width) = q.shape, v.shape
    drops = isinstance(a, DroppedAttributes)
    counters, masks = (rest[:2], rest[2:]) if drops else ((), rest)
    sizes = _Sizes(dtype, rows, columns, width, value_width)
    parts = backward.PARTS if is_backward else forward.PARTS
    offsets = [sum(map(sizes.part, parts[:number])) for number in range(len(parts) + 1)]
    units = batch * (key_heads if is_backward else heads)
    pieces, shift = min(units, PIECES), a.shift(rows, columns)
    numbers = [
        units, pieces, offsets[-1], heads, heads // key_heads, rows, columns, width, value_width,
        sizes.block, columns if shift is None else shift, _bits(a.scale),
    ]  # fmt: skip
    for each in given:
        numbers += each.strides[:3]
    kind = None
    if masks:
        (mask,) = masks
        strides = operand("mask", mask, places[mask], mask.shape).strides
        numbers += strides
        kind = mask.type.dtype, None if strides[3] == 0 else strides[3] == 1
    if isinstance(a, DroppedAttributes):
        numbers += [a.stream, least_that_stays(a.rate), _bits(1 / (1 - a.rate))]
    is_ragged = any(each % WIDEST_PANEL for each in (width, value_width))
    height = 1 if rows == 1 else block_height(dtype)
    structure = Structure(dtype, kind, drops, is_ragged, height)
    write = backward.write_backward if is_backward else forward.write_forward
    kernel = kernel_of(node.op.name, structure, lambda builder: write(builder, structure))
    buffers: list[Buffer] = [each.buffer for each in given if each.buffer is not None]
    work = batch * heads * rows * columns * (width + value_width) // LANES
    pointers = (*buffers, *counters, *masks, Scratch(slots))
    call = NativeCall(kernel, pointers, (*numbers, *offsets[:-1]), pieces, work)
    return call, TensorType((pieces, offsets[-1]), dtype)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes of the parts of a piece's workspace, in elements."""

    dtype: DType
    rows: int
    columns: int
    width: int
    value_width: int

    @property
    def block(self) -> int:
        """The columns of a block: equal parts of at most `COLUMNS`, rounded up to whole panels."""
        parts = -(-self.columns // COLUMNS)
        return align(-(-self.columns // parts), WIDEST_PANEL)

    def part(self, name: str) -> int:
        """Return the size of one part."""
        step, block = min(self.rows, STEP), self.block
        width, value_width = (align(each, LANES) for each in (self.width, self.value_width))
        sizes = {
            "packed_keys": width * block,
            "packed_values": value_width * block,
            "keys": width * block,
            "values": value_width * block,
            "queries": width * step,
            "slopes_of_y": value_width * step,
            "weights": step * block,
            "slopes": step * block,
            "sums": self.rows,
            "stays": -(-(block + 2 * BLOCK) // self.dtype.itemsize),
        }
        return align(sizes[name], LANES)


def _bits(number: float) -> int:
    return int(np.float64(number).view(np.int64))
