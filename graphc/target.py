"""Targets: what planners need to know about the kernels of the device of a plan.

A planner needs the strides that a kernel accepts, its workspace, and preferred layouts. It does not
need to know how kernels are implemented. So it is passed a `Target`. This class describes a CPU
with NumPy kernels, using only the declarations of ops. Other kinds of kernels have subclasses,
which `target_of` selects.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from graphc.devices.device import CPU, Device
from graphc.ir.graph import Node, Value
from graphc.ir.op import Strided
from graphc.ir.types import Layout, TensorType, contiguous_strides, outer_axes

MOST_PIECES = 4096
"""A part of a concatenation may consist of at most this many contiguous pieces of memory, since
some kernels make one call per piece."""

_CLASSES: dict[str, type[Target]] = {}
"""Kind of kernels → the class for them."""


@dataclass(frozen=True)
class Target:
    """A device and the layouts its kernels accept. Equal devices give equal targets."""

    device: Device = CPU

    least_alignment: ClassVar[int] = 1
    """The alignment of a plan must be a multiple of these bytes."""
    prefers_channels_last: ClassVar[bool] = False
    """True if the feature maps of convolutions should have channels innermost."""
    prefers_filters_last: ClassVar[bool] = False
    """True if weights of convolutions, their gradients and moments should have channels
    innermost."""
    prefers_heads_inside: ClassVar[bool] = False
    """True if outputs of fused attention should have the axis order of its inputs, in which the
    heads of a position are adjacent."""
    pads_rows: ClassVar[bool] = False
    """True if rows of 16-bit products should begin at multiples of 16 bytes."""
    fuses: ClassVar[bool] = False
    """True if elementwise nodes are fused by default."""
    has_epilogues: ClassVar[bool] = False
    """True if product kernels can apply an activation and sum the columns of an operand, and
    reduction kernels can compute their operands."""
    chunks_losses: ClassVar[bool] = False
    """True if losses are by default computed in chunks of rows, if that lowers the peak."""
    scales_products: ClassVar[bool] = False
    """True if product kernels accept a scale factor, see `graphc.passes.scaled_products`."""
    merges_norm_gradients: ClassVar[bool] = False
    """True if one node computes the gradients of a norm, see `graphc.passes.norm_gradients`."""
    shares_launches: ClassVar[bool] = False
    """True if independent nodes may run in one kernel launch, see `launch_key`."""

    def __init_subclass__(cls, kind: str) -> None:
        super().__init_subclass__()
        _CLASSES[kind] = cls

    def takes_strides(
        self, node: Node, name: str, type: TensorType, strides: tuple[int, ...]
    ) -> bool:
        """Return True if the node's kernel accepts these byte strides for its operand `name`.

        `name` may be an input or an output. In strides of outputs, no two elements share bytes.
        """
        return outer_axes(type, strides) <= node.op.free_axes(node, name)

    def takes_part(self, node: Node, name: str, type: TensorType, layout: Layout) -> bool:
        """Return True if the node's kernel accepts operand `name` inside a larger tensor.

        `layout` is the layout of the operand in that tensor.
        """
        return self.takes_strides(node, name, type, layout.strides)

    def is_in_few_pieces(self, type: TensorType, strides: tuple[int, ...]) -> bool:
        """Return True if a tensor with these strides has at most `MOST_PIECES` pieces of memory."""
        return math.prod(type.shape[: outer_axes(type, strides)]) <= MOST_PIECES

    def copies(self, node: Node, strided: Strided) -> tuple[Value, ...]:
        """Return the inputs that are copied to contiguous workspace before the node's kernel runs.

        The copies are the first tensors of the workspace. The result omits inputs that the kernel
        itself copies.
        """
        return ()

    def copied_strides(self, node: Node, value: Value, strided: Strided) -> tuple[int, ...]:
        """Return the byte strides of the contiguous workspace copy of an input; see `copies`."""
        return contiguous_strides(value.type)

    def workspace(self, node: Node, strided: Strided) -> tuple[TensorType, ...]:
        """Return the workspace tensors of the node's kernel, in order.

        `strided` has the byte strides of the values that are not contiguous and row-major.
        """
        return node.op.workspace(node, self.device, strided)

    def launch_key(self, node: Node) -> Hashable | None:
        """Return a key shared by nodes that may share a launch; None for a node that cannot."""
        return None


_CLASSES["numpy"] = Target

CPU_TARGET = Target(CPU)


def target_of(device: Device) -> Target:
    """Return the target for a device, of the class for its kernels."""
    return _CLASSES["cuda" if device.kind == "cuda" else device.kernels](device)
