"""The arena: one allocation for all buffers of a plan, and views into it."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphc.errors import ArenaError, PlanError
from graphc.ir.device import ALIGNMENT
from graphc.ir.types import Layout, TensorType, contiguous_strides, format_bytes, span_bytes
from graphc.plans.memory_plan import MemoryPlan

Array = np.ndarray[Any, np.dtype[Any]]


def aligned_bytes(size: int, alignment: int = ALIGNMENT) -> Array:
    """Allocate uninitialized bytes whose first address is a multiple of `alignment`."""
    raw = np.empty(size + alignment, np.uint8)
    skip = -raw.ctypes.data % alignment
    return raw[skip : skip + size]


def check_outputs(plan: MemoryPlan) -> None:
    """Raise `ArenaError` unless the outputs of a step fit into the memory of this machine.

    Outputs are contiguous arrays, so a view that repeats elements may be far larger than its arena.
    """
    outputs = plan.graph.outputs.values()
    size = sum(value.type.bytes for value in outputs)
    try:
        np.empty(size, np.uint8)
    except (MemoryError, ValueError):
        raise ArenaError(
            f"the outputs of a step need {size} bytes ({format_bytes(size)}) besides the arena, "
            "more than this machine can allocate; return a sum, or values before broadcasting"
        ) from None


class Arena:
    """The memory of a plan. `bytes` is all of it; nothing else is allocated."""

    def __init__(self, plan: MemoryPlan) -> None:
        self.alignment = plan.alignment
        try:
            self.bytes = aligned_bytes(plan.arena_bytes, plan.alignment)
        except (MemoryError, ValueError):
            raise ArenaError(
                f"this machine cannot allocate an arena of {plan.arena_bytes} bytes "
                f"({format_bytes(plan.arena_bytes)}); print graphc.plan(...), which allocates "
                "nothing, to see the largest values"
            ) from None

    def view(self, type: TensorType, offset: int, strides: tuple[int, ...] | None = None) -> Array:
        """Return an array at a byte offset; raises `PlanError` if it would leave the arena."""
        layout = Layout(offset, strides or contiguous_strides(type))
        end = offset + span_bytes(type, layout)
        if offset < 0 or end > self.bytes.size:
            raise PlanError(
                f"{type} at {offset} to {end} exceeds the arena of {self.bytes.size} bytes"
            )
        return np.ndarray(type.shape, type.dtype.numpy, self.bytes.data, offset, layout.strides)
