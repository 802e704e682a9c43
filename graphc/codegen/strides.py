"""Which strides generated kernels take.

Generated kernels have strides as constants of their text, and most take any (`Op.any_strides`);
what the others take is said by a rule beside the rule of their kernels, or else it is what the
NumPy kernel takes.
"""

from __future__ import annotations

from graphc.codegen.rules import stride_rule_of
from graphc.ir.graph import Node, Value
from graphc.ir.op import Strided
from graphc.ir.types import TensorType, outer_axes


def takes_strides(node: Node, name: str, type: TensorType, strides: tuple[int, ...]) -> bool:
    """Whether the node's generated kernel reads or writes its operand `name` with these strides.

    Strides are in bytes. Of strides that are written to, no two elements share bytes.
    """
    if node.op.any_strides:
        return True
    rule = stride_rule_of(node.op)
    if rule is not None:
        return rule(node, name, type, strides)
    return outer_axes(type, strides) <= node.op.free_axes(node, name)


def copied_first(node: Node, strided: Strided) -> tuple[Value, ...]:
    """The inputs with strides that a kernel does not take: they are copied into one piece first."""
    found = {
        value: None
        for index, value in enumerate(node.inputs)
        if value in strided
        and not takes_strides(node, node.op.input_name(index), value.type, strided[value])
    }
    return tuple(found)
