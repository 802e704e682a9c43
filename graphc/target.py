"""Targets: what planners ask of the machine that a plan is made for.

A planner has to know which strides a kernel takes, what it needs beside its values, and how values
had better lie; it need not know how kernels are written. So it is handed a `Target`. This class
answers for a CPU, from the declarations of ops alone. Other kinds of devices have subclasses, which
`target_of` finds.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from graphc.ir.device import CPU, Device
from graphc.ir.graph import Node
from graphc.ir.op import Strided
from graphc.ir.types import TensorType, outer_axes

MOST_PIECES = 4096
"""Pieces of memory that a part of a concatenation may consist of where each takes a call."""

_CLASSES: dict[str, type[Target]] = {}
"""Kinds of devices, and the class that answers for each."""


@dataclass(frozen=True)
class Target:
    """A device, and how its kernels take their operands. Equal devices are equal targets."""

    device: Device = CPU

    least_alignment: ClassVar[int] = 1
    """Bytes; the alignment of a plan is a multiple of it."""
    prefers_channels_last: ClassVar[bool] = False
    """Whether maps and weights of convolutions had better lie with their channels innermost."""
    fuses: ClassVar[bool] = False
    """Whether elementwise nodes run in groups where nothing else was asked for."""
    has_epilogues: ClassVar[bool] = False
    """Whether products apply activations to their sums, and reductions compute their operands."""
    shares_launches: ClassVar[bool] = False
    """Whether nodes side by side may run in one launch, see `launch_key`."""

    def __init_subclass__(cls, kind: str) -> None:
        super().__init_subclass__()
        _CLASSES[kind] = cls

    def takes_strides(
        self, node: Node, name: str, type: TensorType, strides: tuple[int, ...]
    ) -> bool:
        """Whether the node's kernel reads or writes the operand `name` where it lies so.

        Strides are bytes. Nothing is stored twice where it is written.
        """
        return outer_axes(type, strides) <= node.op.free_axes(node, name)

    def is_in_few_pieces(self, type: TensorType, strides: tuple[int, ...]) -> bool:
        """Whether kernels stay fast on a tensor that lies so inside a larger one."""
        return math.prod(type.shape[: outer_axes(type, strides)]) <= MOST_PIECES

    def workspace(self, node: Node, strided: Strided) -> tuple[TensorType, ...]:
        """The tensors that the node's kernel needs while it runs, in their order.

        `strided` has the strides of values that do not lie in one piece, row-major.
        """
        return node.op.workspace(node, self.device, strided)

    def launch_key(self, node: Node) -> Hashable | None:
        """What nodes have in common that may share a launch; None for one that shares none."""
        return None


_CLASSES["cpu"] = Target

CPU_TARGET = Target(CPU)


def target_of(device: Device) -> Target:
    """The target that a device is, by its kind."""
    return _CLASSES[device.kind](device)
