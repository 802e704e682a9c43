"""Targets: what planners ask of the machine that a plan is made for.

A planner has to know which strides a kernel takes, what it needs beside its values, and how values
had better lie; it need not know how kernels are written. So it is handed a `Target`. This class
answers for a CPU, from the declarations of ops alone; a subclass for another kind of device answers
from its kernels, and is found by `target_of`.
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
"""Pieces of memory that a part of a concatenation may consist of on a CPU, where each is a call."""


@dataclass(frozen=True)
class Target:
    """A device, and how kernels for it take their operands. Equal devices are equal targets."""

    device: Device = CPU

    KINDS: ClassVar[dict[str, type[Target]]] = {}
    """Kinds of devices, and the class that answers for each."""

    alignment: ClassVar[int] = 1
    """Bytes; what offsets in the arena have to be a multiple of."""
    prefers_channels_last: ClassVar[bool] = False
    """Whether maps and weights of convolutions are to lie with their channels innermost."""
    fuses: ClassVar[bool] = False
    """Whether elementwise nodes run in groups where nothing else is asked for."""
    has_epilogues: ClassVar[bool] = False
    """Whether products apply an activation to their sums, and reductions compute their operands."""

    def __init_subclass__(cls, kind: str) -> None:
        super().__init_subclass__()
        Target.KINDS[kind] = cls

    def takes_strides(
        self, node: Node, name: str, type: TensorType, strides: tuple[int, ...]
    ) -> bool:
        """Whether the node's kernel reads or writes the operand `name` where it lies so.

        `strides` are bytes. Nothing is stored twice where it is written.
        """
        return outer_axes(type, strides) <= node.op.free_axes(node, name)

    def is_in_few_pieces(self, type: TensorType, strides: tuple[int, ...]) -> bool:
        """Whether kernels are still fast on a tensor that lies so inside a larger one."""
        return math.prod(type.shape[: outer_axes(type, strides)]) <= MOST_PIECES

    def workspace(self, node: Node, strided: Strided) -> tuple[TensorType, ...]:
        """Tensors that the node's kernel needs while it runs, in their order; none for most."""
        return node.op.workspace(node, self.device, strided)

    def launch_key(self, node: Node) -> Hashable | None:
        """What nodes share that may run in one launch; None for one that has a launch of its own."""
        return None


Target.KINDS["cpu"] = Target


def target_of(device: Device) -> Target:
    """The target for a device, by its kind."""
    return Target.KINDS[device.kind](device)
