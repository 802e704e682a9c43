"""Pooling: vectors along channels, or along a row.

Each element of the output iterates over its taps in ascending order. In gradients, taps are the
windows that contain it. So sums have a fixed order, and no two pieces write one element. Vectors
run along channels if these are contiguous, or if rows are too short for vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphc.codegen.families.maps import own_operands
from graphc.codegen.llvm.elements import Lying
from graphc.codegen.llvm.families.pool_kernel import CHANNELS, COLUMNS, Pool, Structure
from graphc.codegen.llvm.families.windows import window_numbers
from graphc.codegen.llvm.kernel import NativeCall, NativeCalls, kernel_of
from graphc.codegen.llvm.pieces import rows_of_piece
from graphc.codegen.llvm.rules import NativeRule, native_rule
from graphc.codegen.text.operands import Operand, Places
from graphc.ir.graph import Node

SHORT = 4
"""Shorter rows are processed by vectors along channels."""


def _rule(back: bool, largest: bool, chosen: bool, mean: bool) -> NativeRule:
    """Return the rule of an op that takes the maximum, the sum or the mean of its taps.

    With `chosen`, only positions that windows have chosen count.
    """

    def rule(node: Node, places: Places) -> NativeCalls:
        inputs, outputs = own_operands(node, places)
        axis = _axis(node, outputs[0])
        stride = node.attributes.stride[1] if axis == COLUMNS else 0
        structure = Structure(
            back, largest, chosen, mean, axis,
            stride if stride in (1, 2) else 0, _plain(node),
            tuple(_lying(o, axis) for o in inputs), tuple(_lying(o, axis) for o in outputs),
        )  # fmt: skip
        return NativeCalls((_call(node, structure, [*inputs, *outputs]),))

    return rule


def _plain(node: Node) -> int:
    """Return the stride of windows along both axes if it is a constant of a kernel's text,
    else 0."""
    stride: int = node.attributes.stride[0]
    is_known = stride in (1, 2) and node.attributes.stride[1] == stride
    return stride if is_known and node.attributes.dilation == (1, 1) else 0


def _axis(node: Node, output: Operand) -> int:
    shape = node.outputs[0].shape
    is_last = output.strides[CHANNELS] == 1 and shape[CHANNELS] > 1
    is_short = shape[COLUMNS] < SHORT and shape[CHANNELS] >= SHORT
    return CHANNELS if is_last or is_short else COLUMNS


def _lying(operand: Operand, axis: int) -> Lying:
    is_unit = operand.strides[axis] == 1  # a repeated operand has stride 0
    return Lying(operand.name, operand.dtype, "unit" if is_unit else "apart", False)


def _call(node: Node, structure: Structure, operands: Sequence[Operand]) -> NativeCall:
    n, c, h, w = node.outputs[0].shape
    extents = (n, h, w, c) if structure.axis == CHANNELS else (n, c, h, w)
    area = math.prod(node.attributes.window)
    read = node.inputs[0].shape
    inner = w * c if structure.axis == CHANNELS else w
    total = n * h if structure.axis == CHANNELS else n * c * h
    rows = rows_of_piece(inner * max(1, area // 4))
    numbers = [stride for o in operands for stride in o.strides]
    numbers += [*window_numbers(node, 0, read[2]), *window_numbers(node, 1, read[3])]
    return NativeCall(
        kernel_of(node.op.name, structure, lambda builder: Pool(builder, structure).write()),
        (*node.inputs, *node.outputs),
        (*numbers, area, *extents, total, rows),
        -(-total // rows),
        sum(value.type.elements for value in (*node.inputs, *node.outputs)),
    )


native_rule("max_pool2d")(_rule(back=False, largest=True, chosen=False, mean=False))
native_rule("max_pool2d_select")(_rule(back=False, largest=False, chosen=True, mean=False))
native_rule("max_pool2d_gradient")(_rule(back=True, largest=False, chosen=True, mean=False))
native_rule("average_pool2d")(_rule(back=False, largest=False, chosen=False, mean=True))
native_rule("average_pool2d_gradient")(_rule(back=True, largest=False, chosen=False, mean=True))
