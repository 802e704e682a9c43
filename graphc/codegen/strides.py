"""Which strides generated kernels take.

They have strides as constants of their text, and most take any (`Op.any_strides`); the rest takes
what the NumPy kernel takes (`Op.strided_axes`), or what is said here.
"""

from __future__ import annotations

from graphc.codegen.convolution import ops as convolution
from graphc.codegen.convolution.ops import CONVOLUTIONS
from graphc.codegen.text.operands import folded_strides
from graphc.ir.graph import Node, Value
from graphc.ir.op import Strided
from graphc.ir.types import TensorType, outer_axes
from graphc.ops.norm import Norm, NormGradient


def takes_strides(node: Node, name: str, type: TensorType, strides: tuple[int, ...]) -> bool:
    """Whether the node's generated kernel reads or writes the operand `name` where it lies so.

    Nothing is stored twice where it is written.
    """
    if node.op.any_strides:
        return True
    if node.op.name in CONVOLUTIONS:
        return convolution.takes_strides(node, name, type, strides)
    folded = _folded(node, type)
    if folded is not None:
        return folded_strides(type, strides, folded) is not None
    return outer_axes(type, strides) <= node.op.free_axes(node, name)


def copied_first(node: Node, strided: Strided) -> tuple[Value, ...]:
    """Inputs that lie as the kernel does not take them: they are copied into one piece first."""
    found = {
        value: None
        for index, value in enumerate(node.inputs)
        if value in strided
        and not takes_strides(node, node.op.input_name(index), value.type, strided[value])
    }
    return tuple(found)


def _folded(node: Node, type: TensorType) -> tuple[int, ...] | None:
    """The shape in which a norm sees a tensor like its x; None for what is not folded."""
    if isinstance(node.op, Norm):
        frame = node.op.frame(node)
    elif isinstance(node.op, NormGradient):
        frame = node.attributes.frame()
    else:
        return None
    return frame.shape if type.shape == node.inputs[0].shape else type.shape
