"""Differences between two plans of one network, as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphc.byte_sizes import format_bytes
from graphc.ir.graph import Value
from graphc.ir.host_copies import copied_values, original
from graphc.plans.copy_model import model_copies
from graphc.plans.cost_model import CostModel
from graphc.plans.memory_plan import MemoryPlan
from graphc.plans.names import called, count, node_at, node_label
from graphc.view.aliases import Aliases
from graphc.view.matching import pairs
from graphc.view.page_model import PHASES, live_by_kind

LARGEST = 5
"""Maximum number of values listed per category."""


def differences(before: MemoryPlan, after: MemoryPlan) -> list[str]:
    """Return sentences about changes of sizes, peak, recomputation and addresses."""
    matched = list(pairs(before.graph, after.graph))
    both = [(a, b) for a, b in matched if a is not None and b is not None]
    told = [
        *_other_networks(matched, len(both)),
        _change("the arena", before.arena_bytes, after.arena_bytes),
        _change("peak live bytes", before.live_bytes, after.live_bytes),
        _peaks(before, after),
        *_by_kind(before, after),
        *_by_stage(before, after),
        *_copies("recomputed only in the second", after, [b for a, b in matched if a is None]),
        *_copies("recomputed only in the first", before, [a for a, b in matched if b is None]),
        *_host_copies(before, after, both),
        *_ended(before, after, both),
        *_moved(before, after, both),
    ]
    others = [
        (sum(b is None and _is_own(a) for a, b in matched), "first"),
        (sum(a is None and _is_own(b) for a, b in matched), "second"),
    ]
    told += [
        f"{count(number, 'value')} only in the {which} plan" for number, which in others if number
    ]
    return told


def _is_own(value: Value | None) -> bool:
    """Return True if a value is not a copy: neither recomputed nor from or to the host."""
    return value is not None and not _is_copy(value) and original(value) is value


def _other_networks(matched: Sequence[object], both: int) -> list[str]:
    if 2 * both >= len(matched):
        return []
    return [f"the plans are of different networks; {both} of {len(matched)} values are in both"]


def _host_copies(
    before: MemoryPlan, after: MemoryPlan, both: Sequence[tuple[Value, Value]]
) -> Iterator[str]:
    """Compare host memory, stalls, and the values that only one of the plans copies to the host."""
    if not before.host_bytes and not after.host_bytes:
        return
    yield _change("host memory", before.host_bytes, after.host_bytes)
    models = model_copies(before), model_copies(after)
    yield _change("copied to the host", *(model.out_bytes for model in models))
    stalls = _both(*(f"{model.stall_seconds:.3g}" for model in models))
    yield f"stalls of copies: {stalls} seconds by the cost model"
    first, second = (set(copied_values(plan.graph)) for plan in (before, after))
    only = [a for a, b in both if a in first and b not in second]
    yield from _listed("copied to the host only in the first", before, only)
    only = [b for a, b in both if b in second and a not in first]
    yield from _listed("copied to the host only in the second", after, only)


def _change(what: str, before: int, after: int) -> str:
    if before == after:
        return f"{what}: {format_bytes(after)} in both"
    if format_bytes(before) == format_bytes(after):
        return f"{what}: {before:,} → {after:,} bytes"
    part = f", {after / before - 1:+.1%}" if before else ""
    return f"{what}: {format_bytes(before)} → {format_bytes(after)}{part}"


def _peaks(before: MemoryPlan, after: MemoryPlan) -> str:
    places = [
        f"{node_at(plan, plan.peak_step)} of {len(plan.graph.nodes)}" for plan in (before, after)
    ]
    if places[0] == places[1]:
        return f"the peak: at {places[0]}, in both"
    return f"the peak: from {places[0]}, to {places[1]}"


def _by_kind(before: MemoryPlan, after: MemoryPlan) -> list[str]:
    """Compare the live bytes of each kind at each plan's own peak; omit kinds that are equal."""
    first, second = (live_by_kind(plan)[plan.peak_step] for plan in (before, after))
    return [
        _change(f"{kind} bytes at the peak", first.get(kind, 0), second.get(kind, 0))
        for kind in dict.fromkeys((*first, *second))
        if first.get(kind, 0) != second.get(kind, 0)
    ]


def _by_stage(before: MemoryPlan, after: MemoryPlan) -> list[str]:
    """Compare nodes, seconds and peak live bytes of each phase; omit phases that are equal."""
    told = []
    for phase in PHASES:
        first, second = _stage(before, phase), _stage(after, phase)
        if first != second:
            nodes, seconds, live = map(_both, first, second)
            told.append(
                f"{phase}: {nodes} nodes, {seconds} seconds by the cost model, peak {live} live"
            )
    return told


def _stage(plan: MemoryPlan, phase: str) -> tuple[str, str, str]:
    """Return the node count, the seconds and the peak live bytes of a phase."""
    costs, nodes = CostModel.of(plan), plan.graph.nodes
    steps = [step for step, node in enumerate(nodes) if node.phase == phase and not node.host_copy]
    seconds = sum(costs.seconds(nodes[step]) for step in steps)
    live = max((plan.live_profile[step] for step in steps), default=0)
    return str(len(steps)), f"{seconds:.3g}", format_bytes(live)


def _both(first: str, second: str) -> str:
    return first if first == second else f"{first} → {second}"


def _is_copy(value: Value | None) -> bool:
    return value is not None and value.node is not None and value.node.phase == "mirror"


def _copies(what: str, plan: MemoryPlan, alone: Sequence[Value | None]) -> list[str]:
    found = [v for v in alone if v is not None and _is_copy(v) and _has_own_bytes(plan, v)]
    return _listed(what, plan, found)


def _listed(what: str, plan: MemoryPlan, found: Sequence[Value]) -> list[str]:
    """Return a sentence with the number and bytes of values, and the largest of them, if any."""
    if not found:
        return []
    total = format_bytes(sum(value.type.bytes for value in found))
    largest = sorted(found, key=lambda value: -value.type.bytes)[:LARGEST]
    listed = ", ".join(f"{called(plan, v)} ({format_bytes(v.type.bytes)})" for v in largest)
    return [f"{what}: {count(len(found), 'value')} of {total} in total, the largest {listed}"]


def _has_own_bytes(plan: MemoryPlan, value: Value) -> bool:
    """Return True if a value is neither a view nor a part of another value."""
    return plan.placements[value].how not in ("view", "part")


def _ended(before: MemoryPlan, after: MemoryPlan, both: Sequence[tuple[Value, Value]]) -> list[str]:
    """Describe the values whose last use is by another node, earlier or later in the step."""
    found: dict[str, list[tuple[int, str]]] = {"an earlier": [], "a later": []}
    aliases = Aliases(before), Aliases(after)
    for a, b in both:
        if not _has_own_bytes(before, a):
            continue
        first, second = (_end(each, value) for each, value in zip(aliases, (a, b), strict=True))
        readers = _reader(before, first), _reader(after, second)
        if readers[0] == readers[1]:
            continue
        is_earlier = second * len(before.live_profile) < first * len(after.live_profile)
        text = (
            f"{called(before, a)} ({format_bytes(a.type.bytes)}, "
            f"last read by {readers[0]} → {readers[1]})"
        )
        found["an earlier" if is_earlier else "a later"].append((a.type.bytes, text))
    told = []
    for which, values in found.items():
        values.sort(key=lambda entry: -entry[0])
        if values:
            total = format_bytes(sum(size for size, _ in values))
            largest = ", ".join(text for _, text in values[:LARGEST])
            told.append(
                f"last use in {which} part of the step: {count(len(values), 'value')} of {total}, "
                f"{largest}"
            )
    return told


def _reader(plan: MemoryPlan, step: int) -> str:
    """Return the scope, op and phase of a node, and for a recomputed copy its level."""
    if not plan.graph.nodes:
        return node_label(plan, step)
    node = plan.graph.nodes[step]
    copy = f" {node.level}" if node.copy_of is not None else ""
    return f"{node.label} ({node.phase}{copy})"


def _end(aliases: Aliases, value: Value) -> int:
    """Return the last step that reads a value's bytes; without uses, the step that writes them."""
    readers = aliases.readers(value)
    if readers:
        return readers[-1].step
    return aliases.graph.position[value.node] if value.node is not None else 0


def _moved(before: MemoryPlan, after: MemoryPlan, both: Sequence[tuple[Value, Value]]) -> list[str]:
    moved = [(a, b) for a, b in both if _place(before, a) != _place(after, b)]
    if not both:
        return []
    if not moved:
        return [f"no value moved: {len(both)} are at the same address in both"]
    moved.sort(key=lambda pair: -pair[0].type.bytes)
    listed = ", ".join(
        f"{called(before, a)} ({format_bytes(a.type.bytes)}, "
        f"{_place(before, a)} → {_place(after, b)})"
        for a, b in moved[:LARGEST]
    )
    return [f"moved: {len(moved)} of {len(both)} values, the largest {listed}"]


def _place(plan: MemoryPlan, value: Value) -> str:
    """Return the address of a value in the arena, or in host memory."""
    address = plan.address(value)
    return f"{address - plan.host_start:#x} on the host" if value.on_host else f"{address:#x}"
