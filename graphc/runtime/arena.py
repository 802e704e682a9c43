"""The arena: one allocation for all buffers of a plan, and views into it.

A plan with values on the host has a second allocation for them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphc.byte_sizes import format_bytes
from graphc.devices.device import ALIGNMENT
from graphc.errors import ArenaError, PlanError
from graphc.ir.graph import Value
from graphc.ir.types import Layout, TensorType, align, contiguous_strides, span_bytes
from graphc.plans.memory_plan import MemoryPlan

Array = np.ndarray[Any, np.dtype[Any]]


def aligned_bytes(size: int, alignment: int = ALIGNMENT) -> Array:
    """Allocate uninitialized bytes whose first address is a multiple of `alignment`."""
    raw = np.empty(size + alignment, np.uint8)
    skip = -raw.ctypes.data % alignment
    return raw[skip : skip + size]


def check_outputs(plan: MemoryPlan) -> None:
    """Raise `ArenaError` unless the outputs of a step fit into the memory of this machine.

    Outputs are returned as contiguous arrays, so an output that repeats elements may be far larger
    than the arena.
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


@dataclass(frozen=True)
class Unallocated:
    """The first `bytes` of a plan's arena, which are not allocated.

    They belong to states that the program uses in another program's arena. The other states move to
    the bytes that follow: `offsets` maps their buffer indices to new offsets, and `end` is the end
    of the last one. All other buffers keep their offsets in the plan.
    """

    bytes: int = 0
    offsets: Mapping[int, int] = field(default_factory=dict)
    end: int = 0


def unallocated(plan: MemoryPlan, lent: Collection[int]) -> Unallocated:
    """Return the part of the arena that is not needed if buffers `lent` are in another arena."""
    if not lent:
        return Unallocated()
    states = [buffer for buffer in plan.buffers if buffer.kind == "state"]
    others = (buffer.offset for buffer in plan.buffers if buffer.kind != "state")
    first = min(others, default=plan.arena_bytes)
    own = [buffer for buffer in states if buffer.index not in lent]
    end = first - sum(align(buffer.bytes, plan.alignment) for buffer in own)
    if end < 0:  # not a plan of graphc, which places states first
        return Unallocated()
    skipped, offsets = end, {}
    for buffer in own:
        offsets[buffer.index] = end
        end += align(buffer.bytes, plan.alignment)
    return Unallocated(skipped, offsets, first)


class Arena:
    """The memory of a plan: an array `bytes`, an array `host` for values on the host, nothing else.

    `lent` maps the indices of state buffers to bytes of another arena, which are used instead.
    `memory` is the memory of another arena for the whole plan; without it, memory is allocated.
    """

    def __init__(
        self,
        plan: MemoryPlan,
        lent: Mapping[int, Array] | None = None,
        memory: Array | None = None,
    ) -> None:
        self._plan, self._lent = plan, lent or {}
        self._unallocated = unallocated(plan, self._lent)
        size = plan.arena_bytes - self._unallocated.bytes
        self.bytes = self._allocated(size, "an arena") if memory is None else memory
        self.host = self._allocated(plan.host_bytes, "an arena on the host")

    def _allocated(self, size: int, what: str) -> Array:
        try:
            return aligned_bytes(size, self._plan.alignment)
        except (MemoryError, ValueError):
            raise ArenaError(
                f"this machine cannot allocate {what} of {size} bytes ({format_bytes(size)}); "
                "print graphc.plan(...), which allocates nothing, to see the largest values"
            ) from None

    @property
    def address(self) -> int:
        """The memory address that corresponds to offset 0 of the plan."""
        return int(self.bytes.ctypes.data) - self._unallocated.bytes

    def buffer(self, index: int) -> Array:
        """Return the bytes of a buffer, which may be in another arena."""
        if index in self._lent:
            return self._lent[index]
        buffer = self._plan.buffers[index]
        if buffer.kind == "host":
            first = buffer.offset - self._plan.host_start
            return self.host[first : first + buffer.bytes]
        first = self._unallocated.offsets.get(index, buffer.offset) - self._unallocated.bytes
        return self.bytes[first : first + buffer.bytes]

    def address_of(self, value: Value) -> int:
        """Return the address of the first element of a value."""
        placement = self._plan.placements[value]
        return int(self.buffer(placement.buffer).ctypes.data) + placement.offset

    def array(self, value: Value) -> Array:
        """Return an array that is a view of a value's bytes."""
        placement = self._plan.placements[value]
        if placement.buffer in self._lent or value.on_host:
            memory = self.buffer(placement.buffer)
            return _view(value.type, placement.offset, placement.strides, memory)
        buffer = self._plan.buffers[placement.buffer]
        offset = self._unallocated.offsets.get(buffer.index, buffer.offset) + placement.offset
        return self.view(value.type, offset, placement.strides)

    def free(self, first: int, last: int) -> Array:
        """Return the bytes at plan offsets `[first, last)`, in which no value is live.

        They are bytes of the arena, or of the host if `first` is not below `MemoryPlan.host_start`.
        If states are lent, the result excludes the region of states, which have other offsets then.
        """
        start, moved = self._plan.host_start, self._unallocated
        if first >= start:
            return self.host[first - start : last - start]
        return self.bytes[max(first, moved.end) - moved.bytes : max(last, moved.end) - moved.bytes]

    def view(self, type: TensorType, offset: int, strides: tuple[int, ...] | None = None) -> Array:
        """Return an array at a plan offset; raises `PlanError` if it would exceed the arena."""
        return _view(type, offset - self._unallocated.bytes, strides, self.bytes)


def _view(type: TensorType, offset: int, strides: tuple[int, ...] | None, memory: Array) -> Array:
    layout = Layout(offset, strides or contiguous_strides(type))
    end = offset + span_bytes(type, layout)
    if offset < 0 or end > memory.size:
        raise PlanError(f"{type} at {offset} to {end} exceeds the arena of {memory.size} bytes")
    return np.ndarray(type.shape, type.dtype.numpy, memory.data, offset, layout.strides)
