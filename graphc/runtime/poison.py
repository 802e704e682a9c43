"""Poisoning: the byte ranges of an arena without a live value, which are filled with NaN.

Ranges on the host have offsets from `MemoryPlan.host_start` on.

A step that reads such bytes computes NaN, which exposes a wrong plan.
"""

from __future__ import annotations

from graphc.plans.memory_plan import MemoryPlan

Range = tuple[int, int]
"""The bytes `[first, last)` of the arena."""

POISON = 0xFF
"""A byte value such that a float of any width that consists of it is NaN."""


def empty_at_start(plan: MemoryPlan) -> list[Range]:
    """Return the byte ranges of the arena and the host that hold no value when a step begins.

    These are all bytes except those of states, slots and inputs. Gaps of a whole alignment unit
    between states are also excluded: in a family of plans, they hold constants of other plans.
    """
    end = plan.arena_bytes
    rest = min((b.offset for b in plan.buffers if b.kind != "state"), default=end)
    kept = sorted(
        (buffer.offset, buffer.offset + buffer.bytes)
        for buffer in plan.buffers
        if buffer.kind in ("state", "input", "slot")
    )
    found: list[Range] = []
    start = 0
    for first, last in sorted([*kept, (rest, rest), (end, end)]):
        if first > start and (start >= rest or first - start < plan.alignment):
            found.append((start, first))
        start = max(start, last)
    if plan.host_bytes > plan.host_state_bytes:
        first = plan.host_start + plan.host_state_bytes
        found.append((first, plan.host_start + plan.host_bytes))
    return found


def freed_after(plan: MemoryPlan) -> dict[int, list[Range]]:
    """Map each step to the byte ranges of the buffers whose lifetimes end with that step."""
    freed: dict[int, list[Range]] = {}
    for buffer in plan.buffers:
        span = (buffer.offset, buffer.offset + buffer.bytes)
        freed.setdefault(buffer.lifetime.last - 1, []).append(span)
    return freed
