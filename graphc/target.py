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

from graphc.ir.device import CPU, Device
from graphc.ir.graph import Node, Value
from graphc.ir.op import Strided
from graphc.ir.types import Layout, TensorType, contiguous_strides, outer_axes

MOST_PIECES = 4096
"""The maximum number of pieces of memory of a part of a concatenation, if each takes one call."""

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
    """True if the weights of convolutions should too, with their gradients and moments."""
    prefers_heads_inside: ClassVar[bool] = False
    """True if outputs of fused attention should have the layout of its inputs: heads inside
    positions."""
    pads_rows: ClassVar[bool] = False
    """True if rows of 16-bit products should begin at multiples of 16 bytes."""
    fuses: ClassVar[bool] = False
    """True if elementwise nodes are fused by default."""
    has_epilogues: ClassVar[bool] = False
    """True if products apply activations to their sums, and reductions compute their operands."""
    chunks_losses: ClassVar[bool] = False
    """True if losses are by default computed by parts of the rows if that lowers the peak."""
    scales_products: ClassVar[bool] = False
    """True if products accept a factor, see `graphc.passes.scaled_products`."""
    merges_norm_gradients: ClassVar[bool] = False
    """True if one node computes the gradients of a norm, see `graphc.passes.norm_gradients`."""
    shares_launches: ClassVar[bool] = False
    """True if independent nodes may run in one launch, see `launch_key`."""

    def __init_subclass__(cls, kind: str) -> None:
        super().__init_subclass__()
        _CLASSES[kind] = cls

    def takes_strides(
        self, node: Node, name: str, type: TensorType, strides: tuple[int, ...]
    ) -> bool:
        """Return True if the node's kernel reads or writes its operand `name` with these byte
        strides.

        In strides of written operands, no two elements share bytes.
        """
        return outer_axes(type, strides) <= node.op.free_axes(node, name)

    def takes_part(self, node: Node, name: str, type: TensorType, layout: Layout) -> bool:
        """Return True if the kernel accepts that operand as a part of a larger tensor, with this
        layout."""
        return self.takes_strides(node, name, type, layout.strides)

    def is_in_few_pieces(self, type: TensorType, strides: tuple[int, ...]) -> bool:
        """Return True if kernels stay fast on a tensor with these strides inside a larger one."""
        return math.prod(type.shape[: outer_axes(type, strides)]) <= MOST_PIECES

    def copies(self, node: Node, strided: Strided) -> tuple[Value, ...]:
        """Return the inputs copied to a contiguous tensor before the node's kernel is called.

        The copies are the first tensors of its workspace. A kernel that copies internally has none
        here.
        """
        return ()

    def copied_strides(self, node: Node, value: Value, strided: Strided) -> tuple[int, ...]:
        """Return the byte strides of such a copy, which is contiguous."""
        return contiguous_strides(value.type)

    def workspace(self, node: Node, strided: Strided) -> tuple[TensorType, ...]:
        """Return the workspace tensors of the node's kernel, in order.

        `strided` maps values that are not contiguous and row-major to their strides.
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
