"""Which strides kernels take.

An op declares what its NumPy kernel takes (`Op.strided_axes`). Generated kernels have strides as
constants of their text and take more: most of them any strides, of all inputs and outputs.
"""

from __future__ import annotations

from graphc.codegen.convolution import ops as convolution
from graphc.codegen.convolution.ops import CONVOLUTIONS
from graphc.codegen.text.operands import folded_strides
from graphc.ir.device import Device
from graphc.ir.graph import Node, Value
from graphc.ir.op import Strided
from graphc.ir.types import TensorType, outer_axes
from graphc.ops.elementwise import Elementwise
from graphc.ops.norm import Norm, NormGradient

ANY_STRIDES = frozenset({
    "adaptive_average_pool2d", "adaptive_average_pool2d_gradient", "average_pool2d",
    "average_pool2d_gradient", "cast", "causal_softmax", "concat", "copy", "fused_reduce",
    "log_softmax",
    "log_softmax_gradient", "max", "max_pool2d", "max_pool2d_gradient", "max_pool2d_select",
    "mean", "pad_slice", "rms_norm", "softmax", "softmax_gradient", "square_sum", "sum",
    "upsample_bilinear2d", "upsample_bilinear2d_gradient", "upsample_nearest2d",
})  # fmt: skip
"""Ops, beside elementwise ones, whose generated kernels take any strides of all operands."""


def takes_strides(
    node: Node, name: str, type: TensorType, strides: tuple[int, ...], device: Device
) -> bool:
    """Whether the node's kernel for a device reads or writes the operand `name` where it lies so.

    Nothing is stored twice where it is written.
    """
    if device.kind == "cuda":
        if isinstance(node.op, Elementwise) or node.op.name in ANY_STRIDES:
            return True
        if node.op.name in CONVOLUTIONS:
            return convolution.takes_strides(node, name, type, strides)
        folded = _folded(node, type)
        if folded is not None:
            return folded_strides(type, strides, folded) is not None
    return outer_axes(type, strides) <= node.op.free_axes(node, name)


def copied_first(node: Node, strided: Strided, device: Device) -> tuple[Value, ...]:
    """Inputs that lie as the kernel does not take them: they are copied into one piece first."""
    found = {
        value: None
        for index, value in enumerate(node.inputs)
        if value in strided
        and not takes_strides(node, node.op.input_name(index), value.type, strided[value], device)
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
