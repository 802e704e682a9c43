"""What a node does on a GPU, for the places of its values."""

from __future__ import annotations

from graphc.codegen import (
    attention,
    elementwise_ops,
    line_ops,
    lookup,
    resample,
    step_numbers,
    windows,
)
from graphc.codegen.calls import NodeCalls
from graphc.codegen.convolution import CONVOLUTIONS, convolution
from graphc.codegen.dropout import dropout
from graphc.codegen.elementwise_ops import Places, scalar_op
from graphc.codegen.product import PRODUCTS, product
from graphc.ir.graph import Node
from graphc.ir.op import Op
from graphc.ir.ops.elementwise import Elementwise

RULES = {
    **attention.RULES,
    **elementwise_ops.RULES,
    **line_ops.RULES,
    **lookup.RULES,
    **resample.RULES,
    **step_numbers.RULES,
    **windows.RULES,
    "dropout": dropout,
}


def is_generated(op: Op) -> bool:
    """Whether `calls_of` knows this op."""
    return isinstance(op, Elementwise) or op.name in {*RULES, *PRODUCTS, *CONVOLUTIONS}


def calls_of(node: Node, places: Places, tf32: bool = False) -> NodeCalls:
    """What computes the node's outputs from its inputs, at these places.

    Raises `NotImplementedError` for an op of which `is_generated` is false. Shapes, dtypes, strides
    and addresses modulo 16 are part of the kernels' texts, nothing else is; equal nodes at
    equal places have equal kernels. `tf32` lets float32 products round their operands to 10 bits of
    mantissa.
    """
    if node.op.name in PRODUCTS:
        return product(node, places, tf32)
    if node.op.name in CONVOLUTIONS:
        return convolution(node, places, tf32)
    if node.op.name in RULES:
        return RULES[node.op.name](node, places)
    if isinstance(node.op, Elementwise):
        return scalar_op(node, places)
    raise NotImplementedError(f"there is no generated kernel for {node.op.name}")
