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
from graphc.codegen.calls import Buffer, NodeCalls, Slot
from graphc.codegen.convolution import CONVOLUTIONS, convolution
from graphc.codegen.dropout import dropout
from graphc.codegen.elementwise_ops import Places, scalar_op
from graphc.codegen.layout import ALIGNMENT
from graphc.codegen.memo import Memo
from graphc.codegen.product import PRODUCTS, product
from graphc.ir.graph import Node, Value
from graphc.ir.op import Op
from graphc.ops.elementwise import Elementwise

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


def calls_of(node: Node, places: Places, tf32: bool = False, epilogues: bool = True) -> NodeCalls:
    """What computes the node's outputs from its inputs, at these places.

    Raises `NotImplementedError` for an op of which `is_generated` is false. Shapes, dtypes, strides
    and addresses modulo 16 are part of the kernels' texts, nothing else is; equal nodes at
    equal places have equal kernels. `tf32` lets float32 products round their operands to 10 bits of
    mantissa; without `epilogues`, biases and activations are kernels of their own.
    """
    values = (*node.inputs, *node.outputs)
    slots: dict[Buffer, Buffer] = {}
    for index, value in enumerate(values):
        slots.setdefault(value, Slot(index))
    lying = tuple((slots[v], v.type, places[v].strides, _address(node, v, places)) for v in values)
    key = (node.op.name, repr(node.attributes), lying, tf32, epilogues)  # -0.0 equals 0.0
    known = _KNOWN.get(key, lambda: _made(node, places, tf32, epilogues).on(slots))
    return known.on({slot: value for value, slot in slots.items()})


_KNOWN: Memo[NodeCalls] = Memo()


def _address(node: Node, value: Value, places: Places) -> tuple[int, int]:
    """What calls depend on of an address: its alignment, and where the output lies from there if
    that may be under it or in it."""
    own, output = places[value].address, places[node.outputs[0]].address
    is_near = own == output or node.op.gathers is not None
    return own % ALIGNMENT, own - output if is_near else FAR


FAR = -1
"""Bytes between what does not overlap."""


def _made(node: Node, places: Places, tf32: bool, epilogues: bool) -> NodeCalls:
    if node.op.name in PRODUCTS:
        return product(node, places, tf32, epilogues)
    if node.op.name in CONVOLUTIONS:
        return convolution(node, places, tf32)
    if node.op.name in RULES:
        return RULES[node.op.name](node, places)
    if isinstance(node.op, Elementwise):
        return scalar_op(node, places)
    raise NotImplementedError(f"there is no generated kernel for {node.op.name}")
