"""Lowering of a node to calls on a GPU, given the places of its values."""

from __future__ import annotations

from collections.abc import Hashable

from graphc.codegen import exchanges
from graphc.codegen.attention import ops as attention
from graphc.codegen.convolution import ops as convolution
from graphc.codegen.elementwise import ops as elementwise
from graphc.codegen.elementwise import step_numbers
from graphc.codegen.elementwise.kernel import elementwise as elementwise_kernel
from graphc.codegen.elementwise.program import Each
from graphc.codegen.families import (
    axis_map,
    interpolate,
    lookup,
    order,
    resample,
    roi_align,
    scan,
    scatter,
)
from graphc.codegen.lines import cross_entropy, extremes, norms, reductions, softmax
from graphc.codegen.lines.long_lines import lines_kernels
from graphc.codegen.lines.program import Along
from graphc.codegen.memo import Memo
from graphc.codegen.node_calls import Buffer, Call, NodeCalls, Slot
from graphc.codegen.products import float8
from graphc.codegen.products import ops as products
from graphc.codegen.random import ops as random
from graphc.codegen.random.kernel import drawn_kernel
from graphc.codegen.random.program import Drawn
from graphc.codegen.rules import ProductOptions, rule_of
from graphc.codegen.text.operands import VECTOR_BYTES, Places
from graphc.codegen.windows import pooling
from graphc.codegen.windows.kernel import windows_kernel
from graphc.codegen.windows.program import Windowed
from graphc.ir.graph import Node, Value
from graphc.ir.op import Op

FAMILIES = (
    attention, axis_map, convolution, cross_entropy, elementwise, exchanges, extremes, float8,
    interpolate, lookup, norms, order, pooling, products, random, reductions, resample, roi_align,
    scan, scatter, softmax, step_numbers,
)  # fmt: skip
"""Modules that register the rules of the package's own ops when they are imported."""

FAR = -1
"""A placeholder for the distance between values that do not overlap."""


def is_generated(op: Op) -> bool:
    """Return true if `calls_of` supports this op."""
    return rule_of(op) is not None


def calls_of(node: Node, places: Places, tf32: bool = False, epilogues: bool = True) -> NodeCalls:
    """Return the calls that compute the node's outputs from its inputs, at these places.

    Raises `NotImplementedError` for an op if `is_generated` is false for it. The kernels' texts
    depend on shapes, dtypes, strides and addresses modulo 16 alone. So equal nodes at equal places
    have equal kernels. `tf32` and `epilogues` are the options of `ProductOptions`.
    """
    options = ProductOptions(tf32, epilogues)
    slots, key = slots_and_key(node, places)
    known = _KNOWN.get((key, options), lambda: _lowered(node, places, options).on(slots))
    return known.on({slot: value for value, slot in slots.items()})


_KNOWN: Memo[NodeCalls] = Memo()


def slots_and_key(node: Node, places: Places) -> tuple[dict[Buffer, Buffer], Hashable]:
    """Map each value of a node to a slot, and return the key of all properties on which its calls
    depend."""
    values = (*node.inputs, *node.outputs)
    slots: dict[Buffer, Buffer] = {}
    for index, value in enumerate(values):
        slots.setdefault(value, Slot(index))
    lying = tuple((slots[v], v.type, places[v].strides, _address(node, v, places)) for v in values)
    return slots, (node.op.name, repr(node.attributes), lying)  # repr, as -0.0 == 0.0


def _address(node: Node, value: Value, places: Places) -> tuple[int, int]:
    """Return a value's address modulo 16, and its distance in bytes from the output if both may
    overlap."""
    own, output = places[value].address, places[node.outputs[0]].address
    is_near = own == output or node.op.gathers is not None
    return own % VECTOR_BYTES, own - output if is_near else FAR


def _lowered(node: Node, places: Places, options: ProductOptions) -> NodeCalls:
    rule = rule_of(node.op)
    if rule is None:
        raise NotImplementedError(
            f"there is no generated kernel for {node.op.name}; register one with kernels_of"
        )
    found = rule(node, places, options)
    calls: list[Call] = []
    scratch = list(found.scratch)
    for call in found.calls:
        written = _written(call, len(scratch))
        calls += written.calls
        scratch += written.scratch
    return NodeCalls(tuple(calls), tuple(scratch))


def _written(call: Call, first_scratch: int) -> NodeCalls:
    """Return the launches of a program; a call that is not a program is returned unchanged.

    The program's own scratch is numbered from `first_scratch` on.
    """
    match call:
        case Each():
            return NodeCalls((elementwise_kernel(call),))
        case Along():
            return lines_kernels(call, first_scratch)
        case Windowed():
            return NodeCalls((windows_kernel(call),))
        case Drawn():
            return NodeCalls((drawn_kernel(call),))
    return NodeCalls((call,))
