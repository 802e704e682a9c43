"""Targets: what planners ask of the machine that a plan is made for.

A planner has to know which strides a kernel takes, what it needs beside its values, and how values
had better lie; it need not know how kernels are written. So it is handed a `Target`. This class
answers for a CPU with NumPy's kernels, from the declarations of ops alone. Other kinds of kernels
have subclasses, which `target_of` finds.
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
"""The most pieces of memory that a part of a concatenation may lie in, where each takes a call."""

_CLASSES: dict[str, type[Target]] = {}
"""Kind of kernels → the class that answers for them."""


@dataclass(frozen=True)
class Target:
    """A device, and how its kernels take their operands. Equal devices are equal targets."""

    device: Device = CPU

    least_alignment: ClassVar[int] = 1
    """The bytes that the alignment of a plan must be a multiple of."""
    prefers_channels_last: ClassVar[bool] = False
    """Whether maps of convolutions had better lie with their channels innermost."""
    prefers_filters_last: ClassVar[bool] = False
    """Whether their weights had better, too, with the gradients and moments of these."""
    prefers_heads_inside: ClassVar[bool] = False
    """Whether what fused attention writes had better lie as what it reads, heads inside of
    positions."""
    pads_rows: ClassVar[bool] = False
    """Whether rows of 16-bit products had better begin at multiples of 16 bytes."""
    fuses: ClassVar[bool] = False
    """Whether elementwise nodes run in groups where nothing else was asked for."""
    has_epilogues: ClassVar[bool] = False
    """Whether products apply activations to their sums, and reductions compute their operands."""
    chunks_losses: ClassVar[bool] = False
    """Whether losses are computed by parts of the rows where that lowers the peak and nothing else
    was asked for."""
    scales_products: ClassVar[bool] = False
    """Whether products take a factor, see `graphc.passes.scaled_products`."""
    merges_norm_gradients: ClassVar[bool] = False
    """Whether one node makes the gradients of a norm, see `graphc.passes.norm_gradients`."""
    shares_launches: ClassVar[bool] = False
    """Whether nodes side by side may run in one launch, see `launch_key`."""

    def __init_subclass__(cls, kind: str) -> None:
        super().__init_subclass__()
        _CLASSES[kind] = cls

    def takes_strides(
        self, node: Node, name: str, type: TensorType, strides: tuple[int, ...]
    ) -> bool:
        """Whether the node's kernel reads or writes its operand `name` with these byte strides.

        Of strides that are written to, no two elements share bytes.
        """
        return outer_axes(type, strides) <= node.op.free_axes(node, name)

    def takes_part(self, node: Node, name: str, type: TensorType, layout: Layout) -> bool:
        """Whether it reads or writes that operand as a part of a larger tensor that lies so."""
        return self.takes_strides(node, name, type, layout.strides)

    def is_in_few_pieces(self, type: TensorType, strides: tuple[int, ...]) -> bool:
        """Whether kernels stay fast on a tensor with these strides inside a larger one."""
        return math.prod(type.shape[: outer_axes(type, strides)]) <= MOST_PIECES

    def copies(self, node: Node, strided: Strided) -> tuple[Value, ...]:
        """The inputs that are copied into one piece before the node's kernel is called.

        They are the first tensors of its workspace; a kernel that copies by itself has none here.
        """
        return ()

    def copied_strides(self, node: Node, value: Value, strided: Strided) -> tuple[int, ...]:
        """The byte strides of such a copy, which lies in one piece."""
        return contiguous_strides(value.type)

    def workspace(self, node: Node, strided: Strided) -> tuple[TensorType, ...]:
        """The tensors that the node's kernel needs while it runs, in their order.

        `strided` has the strides of values that do not lie in one piece, row-major.
        """
        return node.op.workspace(node, self.device, strided)

    def launch_key(self, node: Node) -> Hashable | None:
        """What nodes have in common that may share a launch; None for one that shares none."""
        return None


_CLASSES["numpy"] = Target

CPU_TARGET = Target(CPU)


def target_of(device: Device) -> Target:
    """The target for a device, of the class that answers for its kernels."""
    return _CLASSES["cuda" if device.kind == "cuda" else device.kernels](device)
