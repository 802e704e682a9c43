"""What the forward pass keeps, and what makes the peak: in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from graphc.ir.graph import Node, State, Value
from graphc.ir.types import format_bytes
from graphc.plans.cost_model import CostModel
from graphc.plans.memory_plan import Buffer, MemoryPlan
from graphc.plans.names import born, buffer_name, called, count, held_at, kind_at, node_at
from graphc.view.aliases import Aliases, is_forward
from graphc.view.explain import BEHIND
from graphc.view.page_model import live_by_kind

KEPT = 40
"""Values of the forward pass that are listed."""

AT_PEAK = 10
"""Values that are listed at the peak."""

OPS = 6
"""Ops whose values at the peak are listed."""


def explain_kept(plan: MemoryPlan) -> list[str]:
    """Sentences: what the forward pass keeps for the gradient and for recomputation, largest first.

    A value stands for its views and for the parts of it that are computed in their place: their
    bytes are its bytes, are kept with it, and count once.
    """
    aliases, nodes = Aliases(plan), plan.graph.nodes
    kept: dict[Value, list[int]] = {}
    for value in filter(is_forward, plan.graph.values):
        steps = [step for step in plan.graph.uses[value] if nodes[step].phase in BEHIND]
        root = aliases.root(value)
        if steps and not isinstance(root, State):
            kept.setdefault(root, []).extend(steps)
    found = sorted(kept.items(), key=lambda entry: -entry[0].type.bytes)
    told = [
        f"The forward pass keeps {count(len(found), 'value')}, {_together(plan, kept)}, for the "
        f"gradient and recomputation; recomputation is {plan.recompute}."
    ]
    for value, steps in found[:KEPT]:
        first, last = (node_at(plan, step) for step in (min(steps), max(steps)))
        readers = f"for {first}" if first == last else f"for {first} to {last}"
        told.append(f"  {format_bytes(value.type.bytes)}, {called(plan, value)}: {readers}")
    rest = [value.type.bytes for value, _ in found[KEPT:]]
    if rest:
        told.append(f"  {format_bytes(sum(rest))} in {count(len(rest), 'smaller value')}")
    return told


def _together(plan: MemoryPlan, kept: Mapping[Value, Sequence[int]]) -> str:
    """All bytes that are kept, and how many of them at one time: micro-batches take turns."""
    total = sum(value.type.bytes for value in kept)
    change = [0] * (len(plan.live_profile) + 1)
    for value, steps in kept.items():
        change[max(0, born(plan, value))] += value.type.bytes
        change[max(steps) + 1] -= value.type.bytes
    most = max(accumulate(change))
    if most == total:
        return f"{format_bytes(total)} together"
    return f"{format_bytes(total)}, at most {format_bytes(most)} of it at one time"


def explain_peak(plan: MemoryPlan, costs: CostModel | None = None) -> list[str]:
    """Sentences: where the peak is, its kinds, its largest values and who holds them.

    `costs` says what computing them again takes, by default the roofline of the plan's device.
    """
    step = plan.peak_step
    totals = {kind: size for kind, size in live_by_kind(plan)[step].items() if size}
    shares = ", ".join(
        f"{kind} {format_bytes(size)} ({size / plan.live_bytes:.0%})"
        for kind, size in sorted(totals.items(), key=lambda entry: -entry[1])
    )
    return [
        f"Most bytes are live at {node_at(plan, step)} of {len(plan.graph.nodes)}: "
        f"{format_bytes(plan.live_bytes)}. The arena is {format_bytes(plan.arena_bytes)}.",
        f"They are {shares}." if shares else "Nothing is live there.",
        *(f"  {line}" for line in _largest(plan, step)),
        *_by_op(plan, step, costs or CostModel(plan.device)),
    ]


def _largest(plan: MemoryPlan, step: int) -> Iterator[str]:
    """What is live at a step but the states, which no plan can drop."""
    alive = [buffer for buffer in plan.live_at(step) if buffer.kind != "state"]
    for buffer in alive[:AT_PEAK]:
        size, kind = format_bytes(buffer.bytes), kind_at(plan, buffer, step)
        line = f"{size}, {kind}, {buffer_name(plan, buffer, step)}"
        value = held_at(plan, buffer, step)
        yield line if value is None else f"{line}: {_held(plan, buffer.index, step, value)}"
    if len(alive) > AT_PEAK:
        rest = sum(buffer.bytes for buffer in alive[AT_PEAK:])
        yield f"{format_bytes(rest)} in {count(len(alive) - AT_PEAK, 'smaller buffer')}"


def _held(plan: MemoryPlan, buffer: int, step: int, value: Value) -> str:
    """What a buffer is still needed for at a step, by the last reader of what it holds then.

    Values that are yet to be written into the buffer hold it, too, but not for what it has now.
    """
    written = [v for v in plan.residents[buffer] if born(plan, v) <= step]
    outputs = [name for name, v in plan.graph.outputs.items() if v in written]
    if outputs:
        return f"held to the end, as the output {outputs[0]!r}"
    reads = [(plan.graph.uses[v][-1], v) for v in written if plan.graph.uses[v]]
    last, holder = max(reads, key=lambda read: read[0], default=(-1, value))
    if last < step:
        end = plan.lifetime_end(plan.buffers[buffer]) - 1
        return f"its buffer is held until {node_at(plan, end)}"
    if last == step:
        return "read by the node itself"
    through = "" if holder is value else f", which reads {called(plan, holder)} there"
    return f"held for {node_at(plan, last)}{through}"


def _makers(plan: MemoryPlan, buffer: Buffer, step: int) -> Iterator[tuple[Node, int]]:
    """What computed a buffer's bytes: the nodes of parts, or the one that wrote it last."""
    places, residents = plan.placements, plan.residents.get(buffer.index, [])
    wholes = {places[value].over for value in residents if places[value].how == "part"}
    parts = [
        value
        for value in residents
        if places[value].how == "part" and value not in wholes and born(plan, value) <= step
    ]
    if parts:
        yield from ((value.producer, value.type.bytes) for value in parts)
        return
    value = held_at(plan, buffer, step)
    if value is not None and value.node is not None:
        yield value.node, buffer.bytes


def _by_op(plan: MemoryPlan, step: int, costs: CostModel) -> list[str]:
    """Forward values at the peak by the op that computes them, and what it costs to do so again."""
    sizes: dict[Node, int] = {}
    for buffer in plan.live_at(step):
        for node, size in _makers(plan, buffer, step):
            if node.phase == "forward":
                sizes[node] = sizes.get(node, 0) + size
    totals: dict[str, tuple[int, float]] = {}
    for node, size in sizes.items():
        others, seconds = totals.get(node.op.name, (0, 0.0))
        totals[node.op.name] = (others + size, seconds + costs.seconds(node))
    if not totals:
        return []
    step_seconds = sum(costs.seconds(node) for node in plan.graph.nodes) or 1.0
    ordered = sorted(totals.items(), key=lambda entry: (-entry[1][0], entry[0]))[:OPS]
    lines = [
        f"  {format_bytes(size)} of {op}: {seconds / step_seconds:.1%} of the step's seconds"
        for op, (size, seconds) in ordered
    ]
    return ["Values of the forward pass there by op, and what they cost to compute again:", *lines]
