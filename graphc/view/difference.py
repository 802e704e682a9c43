"""What differs between two plans of one network, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.ir.graph import Value
from graphc.ir.plan import Buffer, MemoryPlan
from graphc.ir.types import format_bytes
from graphc.view.matching import called, pairs

LARGEST = 5
"""Values listed of each sort."""


def differences(before: MemoryPlan, after: MemoryPlan) -> list[str]:
    """Sentences: sizes, where the peak went, what is computed again, what moved."""
    matched = list(pairs(before.graph, after.graph))
    both = [(a, b) for a, b in matched if a is not None and b is not None]
    told = [
        _change("the arena", before.arena_bytes, after.arena_bytes),
        _change("the most live bytes", before.live_bytes, after.live_bytes),
        _peaks(before, after),
        *_by_kind(before, after),
        *_copies("computed again only in the second", after, [b for a, b in matched if a is None]),
        *_copies("computed again only in the first", before, [a for a, b in matched if b is None]),
        *_ended(before, after, both),
        *_moved(before, after, both),
    ]
    others = [
        (len([a for a, b in matched if b is None and not _is_copy(a)]), "first"),
        (len([b for a, b in matched if a is None and not _is_copy(b)]), "second"),
    ]
    told += [f"{count} values are only in the {which} plan" for count, which in others if count]
    return told


def _change(what: str, before: int, after: int) -> str:
    if before == after:
        return f"{what}: {format_bytes(after)} in both"
    if format_bytes(before) == format_bytes(after):
        return f"{what}: {before} → {after} bytes"
    part = f", {after / before - 1:+.1%}" if before else ""
    return f"{what}: {format_bytes(before)} → {format_bytes(after)}{part}"


def _peaks(before: MemoryPlan, after: MemoryPlan) -> str:
    places = [
        f"node {plan.peak_step} of {len(plan.graph.nodes)}, {_node_label(plan, plan.peak_step)}"
        for plan in (before, after)
    ]
    if places[0] == places[1]:
        return f"the peak: at {places[0]}, in both"
    return f"the peak: from {places[0]}, to {places[1]}"


def _node_label(plan: MemoryPlan, step: int) -> str:
    return plan.graph.nodes[step].label if plan.graph.nodes else "start"


def _by_kind(before: MemoryPlan, after: MemoryPlan) -> list[str]:
    """Bytes live at each plan's own peak, for kinds in which they differ."""
    totals = []
    for plan in (before, after):
        alive: dict[str, int] = {}
        for buffer in plan.live_at(plan.peak_step):
            alive[buffer.kind] = alive.get(buffer.kind, 0) + buffer.bytes
        totals.append(alive)
    first, second = totals
    return [
        _change(f"{kind} bytes at the peak", first.get(kind, 0), second.get(kind, 0))
        for kind in sorted(first | second)
        if first.get(kind, 0) != second.get(kind, 0)
    ]


def _is_copy(value: Value | None) -> bool:
    return value is not None and value.node is not None and value.node.phase == "mirror"


def _copies(what: str, plan: MemoryPlan, alone: Sequence[Value | None]) -> list[str]:
    found = [value for value in alone if value is not None and _is_copy(value)]
    if not found:
        return []
    total = format_bytes(sum(value.type.bytes for value in found))
    largest = sorted(found, key=lambda value: -value.type.bytes)[:LARGEST]
    listed = ", ".join(f"{called(plan, v)} ({format_bytes(v.type.bytes)})" for v in largest)
    return [f"{what}: {len(found)} values of {total} together, the largest {listed}"]


def _buffer(plan: MemoryPlan, value: Value) -> Buffer:
    return plan.buffers[plan.placements[value].buffer]


def _ended(before: MemoryPlan, after: MemoryPlan, both: Sequence[tuple[Value, Value]]) -> list[str]:
    """Values whose own readers come to an end earlier or later, as parts of the step."""
    found: dict[str, list[tuple[int, str]]] = {"earlier": [], "later": []}
    for a, b in both:
        ends = [_last_reader(plan, value) for plan, value in ((before, a), (after, b))]
        labels = [_node_label(plan, end) for plan, end in zip((before, after), ends, strict=True)]
        if labels[0] == labels[1]:
            continue
        parts = [
            end / len(plan.graph.nodes) for plan, end in zip((before, after), ends, strict=True)
        ]
        text = (
            f"{called(before, a)} ({format_bytes(a.type.bytes)}, "
            f"last read by {labels[0]} → {labels[1]})"
        )
        found["earlier" if parts[1] < parts[0] else "later"].append((a.type.bytes, text))
    told = []
    for which, values in found.items():
        values.sort(key=lambda entry: -entry[0])
        if values:
            total = format_bytes(sum(size for size, _ in values))
            listed = ", ".join(text for _, text in values[:LARGEST])
            told.append(
                f"needed no longer than an {which} node: {len(values)} values of {total}, {listed}"
                if which == "earlier"
                else f"needed until a later node: {len(values)} values of {total}, {listed}"
            )
    return told


def _last_reader(plan: MemoryPlan, value: Value) -> int:
    uses = plan.graph.uses[value]
    if uses:
        return uses[-1]
    return plan.graph.position[value.node] if value.node is not None else 0


def _moved(before: MemoryPlan, after: MemoryPlan, both: Sequence[tuple[Value, Value]]) -> list[str]:
    moved = [(a, b) for a, b in both if before.address(a) != after.address(b)]
    if not moved:
        return [f"no value moved: {len(both)} are at the same address in both"]
    moved.sort(key=lambda pair: -pair[0].type.bytes)
    listed = ", ".join(
        f"{called(before, a)} ({format_bytes(a.type.bytes)}, "
        f"{before.address(a):#x} → {after.address(b):#x})"
        for a, b in moved[:LARGEST]
    )
    return [f"moved: {len(moved)} of {len(both)} values, the largest {listed}"]
