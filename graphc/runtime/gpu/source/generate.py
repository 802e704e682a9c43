"""The kernels of a node, for the places of its values."""

from __future__ import annotations

from collections.abc import Mapping

from graphc.ir.graph import Node, Value
from graphc.ir.op import Op
from graphc.ir.ops.elementwise import Elementwise
from graphc.runtime.gpu.source import elementwise_ops, line_ops, lookup, step_numbers, windows
from graphc.runtime.gpu.source.dropout import dropout
from graphc.runtime.gpu.source.elementwise_ops import Places, scalar_op
from graphc.runtime.gpu.source.kernel import NodeKernels

RULES = {
    **elementwise_ops.RULES,
    **line_ops.RULES,
    **lookup.RULES,
    **step_numbers.RULES,
    **windows.RULES,
    "dropout": dropout,
}


def is_generated(op: Op) -> bool:
    """Whether kernels of this op can be generated."""
    return isinstance(op, Elementwise) or op.name in RULES


def kernels_of(node: Node, places: Places) -> NodeKernels:
    """The launches that compute the node's outputs from its inputs, at these places.

    Raises `NotImplementedError` for an op of which `is_generated` is false. Shapes, dtypes, strides
    and addresses modulo 16 are part of the kernels' texts, nothing else is; equal nodes at
    equal places have equal kernels.
    """
    if node.op.name in RULES:
        return RULES[node.op.name](node, places)
    if isinstance(node.op, Elementwise):
        return scalar_op(node, places)
    raise NotImplementedError(f"there is no generated kernel for {node.op.name}")


def contiguous_inputs(node: Node, strided: Mapping[Value, int]) -> tuple[Value, ...]:
    """Inputs that kernels see as copies in one piece, in the node's workspace.

    `strided` says of each value that does not lie in one piece how many of its first axes have
    strides of their own. Unlike on the CPU, 16-bit operands need no copies.
    """
    found = {
        value: None
        for index, value in enumerate(node.inputs)
        if strided.get(value, 0) > node.op.free_axes(node, node.op.input_name(index))
    }
    return tuple(found)
