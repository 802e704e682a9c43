"""Names of values, nodes and buffers in printouts, messages and pages, and the kinds shown there.

A buffer contains one value after another. So its name and kind depend on the node that runs: they
are those of the value that the buffer contains at that time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from graphc.ir.graph import Node, State, Value
from graphc.plans.kinds import kind_of
from graphc.plans.memory_plan import Buffer, Kind, MemoryPlan

LABELS = {
    "mirror": "recomputed", "repeated": "recomputed", "logits": "logits and loss",
    "fetched": "fetched state", "host": "on the host",
}  # fmt: skip
"""Labels of the kinds whose name in views differs from that in plans and torch steps."""


class Span(NamedTuple):
    """A range of nodes `[first, last)` during which a buffer is of one kind."""

    first: int
    last: int
    kind: Kind


def origin(value: Value) -> str:
    """Return scope and op of a value's producer; empty for inputs and states."""
    return value.node.label if value.node is not None else ""


def called(plan: MemoryPlan, value: Value) -> str:
    """Return the name of a value with the scope and op of its producer.

    An example is ``%27 (stage1/unit0/add)``.
    """
    name, place = plan.graph.names[value], origin(value)
    return f"{name} ({place})" if place else name


def node_at(plan: MemoryPlan, step: int) -> str:
    """Return the name of a node, given its number: ``node 16 (stage1/unit0/add)``."""
    return f"node {step} ({node_label(plan, step)})"


def node_of(plan: MemoryPlan, node: Node) -> str:
    """Return the name of a node with its number, as `node_at` does."""
    return node_at(plan, plan.graph.position[node])


def node_label(plan: MemoryPlan, step: int) -> str:
    """Return scope and op of a node by its number; ``start`` for a graph without nodes."""
    return plan.graph.nodes[step].label if plan.graph.nodes else "start"


def born(plan: MemoryPlan, value: Value) -> int:
    """Return the number of the node that computes a value; -1 for inputs and states."""
    return -1 if value.node is None else plan.graph.position[value.node]


def held_at(plan: MemoryPlan, buffer: Buffer, step: int) -> Value | None:
    """Return the value that a buffer contains when node `step` runs: the one written last.

    Returns None for a workspace or a slot. A state's buffer always contains the state, even after
    its update.
    """
    residents = plan.residents.get(buffer.index, [])
    if residents and isinstance(residents[0], State):
        return residents[0]
    found, latest = None, -2
    for value in residents:
        begin = born(plan, value)
        if latest <= begin <= step and plan.placements[value].how != "view":
            found, latest = value, begin
    return found


def buffer_name(plan: MemoryPlan, buffer: Buffer, step: int) -> str:
    """Return the name of a buffer when node `step` runs.

    It is the name of its value, or names the owner of the workspace or slot.
    """
    for slot in plan.slots:
        if slot.buffer is buffer:
            return f"slot of {called(plan, slot.value)}"
    value = held_at(plan, buffer, step)
    if value is None:
        return f"workspace of {node_label(plan, buffer.lifetime.first)}"
    return called(plan, value)


def spans(plan: MemoryPlan, buffer: Buffer) -> list[Span]:
    """Return the kinds of a buffer over its lifetime, each with its range of nodes.

    A gradient that overwrites a feature map makes the buffer a gradient. Values computed by update
    nodes do not change the kind.
    """
    first, end = buffer.lifetime.first, plan.lifetime_end(buffer)
    kinds = {first: buffer.kind}
    for begin, kind in sorted(_written(plan, buffer), key=lambda entry: entry[0]):
        kinds[max(first, begin)] = kind
    found: list[Span] = []
    for begin, kind in kinds.items():
        if found and found[-1].kind == kind:
            continue
        if found:
            found[-1] = found[-1]._replace(last=begin)
        found.append(Span(begin, end, kind))
    return found


def _written(plan: MemoryPlan, buffer: Buffer) -> Iterator[tuple[int, Kind]]:
    """Yield (step, kind) for each value that is written into a buffer.

    Buffers of states, workspaces and slots yield nothing, since their kind never changes.
    """
    if buffer.kind in ("state", "workspace", "slot"):
        return
    for value in plan.residents[buffer.index]:
        is_update = value.node is not None and value.node.phase == "update"
        if not is_update and plan.placements[value].how != "view":
            yield born(plan, value), kind_of(value)


def kind_at(plan: MemoryPlan, buffer: Buffer, step: int) -> Kind:
    """Return the kind of the value that a buffer contains when node `step` runs."""
    return next(span.kind for span in reversed(spans(plan, buffer)) if span.first <= step)


def kind_label(kind: str) -> str:
    """Return the label of a kind in pages and pictures."""
    return LABELS.get(kind, kind)


def listed(parts: list[str], most: int) -> str:
    """Join the first `most` parts with commas, and add the number of omitted ones."""
    more = f" and {len(parts) - most} more" if len(parts) > most else ""
    return ", ".join(parts[:most]) + more


def count(number: int, what: str) -> str:
    """Return a number with a noun, in the plural if needed: ``1 value``, ``2 values``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
