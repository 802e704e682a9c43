"""Strides that generated kernels accept.

Strides are constants in the text of generated kernels, and most kernels accept any
(`Op.any_strides`). For the others, a stride rule is registered beside the rule of their kernels.
Without one, they accept the strides of the NumPy kernel.
"""

from __future__ import annotations

from graphc.codegen.rules import stride_rule_of
from graphc.ir.graph import Node, Value
from graphc.ir.op import Strided
from graphc.ir.types import TensorType, outer_axes


def takes_strides(node: Node, name: str, type: TensorType, strides: tuple[int, ...]) -> bool:
    """Return true if the node's generated kernel reads or writes its operand `name` with these
    strides.

    Strides are in bytes. If the operand is written, no two elements may share bytes.
    """
    if node.op.any_strides:
        return True
    rule = stride_rule_of(node.op)
    if rule is not None:
        return rule(node, name, type, strides)
    return outer_axes(type, strides) <= node.op.free_axes(node, name)


def copied_first(node: Node, strided: Strided) -> tuple[Value, ...]:
    """Return the inputs whose strides the kernel does not accept; they are copied to be contiguous
    first."""
    found = {
        value: None
        for index, value in enumerate(node.inputs)
        if value in strided
        and not takes_strides(node, node.op.input_name(index), value.type, strided[value])
    }
    return tuple(found)
