"""Kernels over maps: one thread for each point (n, c, h, w) of the output."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphc.codegen.node_calls import Launch
from graphc.codegen.text.access import parameters
from graphc.codegen.text.grid import grid_kernel, over_grid
from graphc.codegen.text.operands import (
    Operand,
    Places,
    decompose,
    offset,
    operand,
    order_of,
    widest_index,
)
from graphc.ir.graph import Node

AXES = ("n", "c", "h", "w")


def own_operands(node: Node, places: Places) -> tuple[list[Operand], list[Operand]]:
    """Return a node's inputs and outputs as operands with their own axes, without broadcasting."""
    op = node.op
    inputs = [operand(op.input_name(i), v, places[v], v.shape) for i, v in enumerate(node.inputs)]
    outputs = [
        operand(op.output_name(i), v, places[v], v.shape) for i, v in enumerate(node.outputs)
    ]
    return inputs, outputs


def each_element(
    node: Node,
    inputs: Sequence[Operand],
    outputs: Sequence[Operand],
    body: Sequence[str],
    names: Sequence[str] = AXES,
) -> Launch:
    """Return a launch that runs `body` for each point of the output; `names` are the variables of
    its indices."""
    shapes = [value.shape for value in (*node.inputs, *node.outputs)]
    return over_points(node.op.name, shapes, inputs, outputs, body, names)


def over_points(
    op: str,
    shapes: Sequence[tuple[int, ...]],
    inputs: Sequence[Operand],
    outputs: Sequence[Operand],
    body: Sequence[str],
    names: Sequence[str] = AXES,
) -> Launch:
    """Return a launch that runs `body` for each point of the last of `shapes`. `shapes` has the
    shape of each operand."""
    operands, shape = (*inputs, *outputs), shapes[-1]
    elements = math.prod(shape)
    order = order_of(shape, outputs)
    split, indices = decompose("item", [shape[axis] for axis in order], "o")
    axes = [
        f"const Index {names[axis]} = {index};"
        for axis, index in sorted(zip(order, indices, strict=True))
    ]
    kernel = grid_kernel(
        op,
        elements,
        widest_index(zip(shapes, operands, strict=True)),
        parameters(inputs, outputs),
        [*split, *axes, *body],
    )
    return over_grid(kernel, tuple(o.buffer for o in operands if o.buffer is not None), elements)


def element(operand: Operand, row: str = "h", column: str = "w") -> str:
    """Return C++ for the element of an operand at image n, channel c and this row and column."""
    return f"{operand.name}[{offset(('n', 'c', row, column), operand.strides)}]"
