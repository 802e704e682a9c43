"""Addresses of the values of a plan in an arena at a given address."""

from __future__ import annotations

from collections.abc import Mapping

from graphc.codegen.text.operands import Place
from graphc.errors import PlanError
from graphc.ir.graph import Value
from graphc.ir.types import Layout, contiguous_strides, span_bytes
from graphc.plans.memory_plan import MemoryPlan, Way

ARENA_ALIGNMENT = 256
"""The alignment in bytes of the address of an arena. cuBLAS requires it of a workspace, and no
access needs more."""


def places_of_plan(
    plan: MemoryPlan, address: int = 0, elsewhere: Mapping[int, int] | None = None
) -> dict[Value, Place]:
    """Return address and byte strides of every value in an arena at `address`.

    No memory is accessed. `elsewhere` maps the indices of buffers outside that arena to their
    addresses.

    Raises `PlanError` for an address that is not a multiple of 256, and for a value that would
    leave the arena.
    """
    if plan.alignment % ARENA_ALIGNMENT:
        raise PlanError(
            f"alignment on a GPU must be a multiple of {ARENA_ALIGNMENT}, but the plan has "
            f"{plan.alignment}"
        )
    if address % ARENA_ALIGNMENT:
        raise PlanError(f"an arena must start at a multiple of {ARENA_ALIGNMENT}, got {address:#x}")
    places, moved = {}, elsewhere or {}
    for value, placement in plan.placements.items():
        first = plan.address(value)
        strides = placement.strides or contiguous_strides(value.type)
        end = first + span_bytes(value.type, Layout(0, strides))
        start = plan.host_start if value.on_host else 0
        size = plan.host_bytes if value.on_host else plan.arena_bytes
        if first < start or end > start + size:
            raise PlanError(
                f"{value.type} at {first - start} to {end - start} exceeds the "
                f"{'host memory' if value.on_host else 'arena'} of {size} bytes"
            )
        index = placement.buffer
        start = moved.get(index, address + plan.buffers[index].offset)
        places[value] = Place(start + placement.offset, strides)
    return places


def slots_of_plan(
    plan: MemoryPlan, places: Mapping[Value, Place], address: int, way: Way
) -> dict[Value, Place]:
    """Return address and strides of the slots of one direction, ``in`` or ``out``, by value.

    A slot holds a copy of an input or output. Its strides are those of the value in `places`.
    """
    return {
        slot.value: Place(address + slot.buffer.offset, places[slot.value].strides)
        for slot in plan.slots
        if slot.way == way
    }
