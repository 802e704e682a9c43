"""Which bytes of an arena hold nothing, and when: there NaN is put, so that a wrong plan shows."""

from __future__ import annotations

from graphc.plans.memory_plan import MemoryPlan

Range = tuple[int, int]
"""Bytes [first, last) of the arena."""

POISON = 0xFF
"""A byte of which floats of any width are NaN."""


def empty_at_start(plan: MemoryPlan) -> list[Range]:
    """Everything but states, slots and what the feeds fill."""
    kept = sorted(
        (buffer.offset, buffer.offset + buffer.bytes)
        for buffer in plan.buffers
        if buffer.kind in ("state", "input", "slot")
    )
    found: list[Range] = []
    start = 0
    for first, last in [*kept, (plan.arena_bytes, plan.arena_bytes)]:
        if first > start:
            found.append((start, first))
        start = max(start, last)
    return found


def freed_after(plan: MemoryPlan) -> dict[int, list[Range]]:
    """Step → bytes of buffers whose lifetime ends with it."""
    freed: dict[int, list[Range]] = {}
    for buffer in plan.buffers:
        span = (buffer.offset, buffer.offset + buffer.bytes)
        freed.setdefault(buffer.lifetime.last - 1, []).append(span)
    return freed
