"""Contents of a plan's page as columns of numbers, in JSON; also used by the other views.

A column holds one property of all buffers, values or nodes, in order. Columns take about a tenth of
the text of one object per value.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar, get_args

from graphc.ir.graph import Graph, Node, Phase, Value
from graphc.ir.host_copies import original
from graphc.ir.types import align
from graphc.plans.memory_plan import RARE, Buffer, How, Kind, MemoryPlan
from graphc.plans.names import spans
from graphc.plans.printout import summary_rows
from graphc.view.clock import Clock, estimated

KINDS: tuple[Kind, ...] = get_args(Kind)
LASTING: tuple[Kind, ...] = ("state", "slot")
"""Kinds of buffers that exist between steps, too."""

HOWS: tuple[How, ...] = get_args(How)
PHASES = ("forward", "gradient", "mirror", "update")

FIGURES = 4
"""Significant digits of written seconds; no time measurement is more precise."""

Item = TypeVar("Item", bound=Hashable)


class Table(Generic[Item]):
    """A table that assigns a number to each distinct item."""

    def __init__(self) -> None:
        self._numbers: dict[Item, int] = {}

    def number(self, item: Item) -> int:
        """Return the number of an item; a new item gets the next number."""
        return self._numbers.setdefault(item, len(self._numbers))

    def __iter__(self) -> Iterator[Item]:
        return iter(self._numbers)


def kinds_of(*plans: MemoryPlan) -> tuple[Kind, ...]:
    """Return the kinds of buffers that a page shows.

    Rare kinds are included only if a plan has buffers of them.
    """
    there = {buffer.kind for plan in plans for buffer in plan.buffers}
    return tuple(kind for kind in KINDS if kind not in RARE or kind in there)


def arena_kinds(*plans: MemoryPlan) -> tuple[Kind, ...]:
    """Return the kinds of `kinds_of` that buffers in the arena have."""
    return tuple(kind for kind in kinds_of(*plans) if kind != "host")


def page_model(
    plan: MemoryPlan, label: str, clock: Clock | None = None, kinds: Sequence[Kind] = KINDS
) -> dict[str, Any]:
    """Return the model of one plan of a page; `label` is the text of its tab.

    `clock` gives the seconds of nodes, by default the roofline of the plan's device. Kinds of
    buffers are numbered as in `kinds`.
    """
    graph, texts = plan.graph, Table[str]()
    clock = clock or estimated(plan)
    return {
        "label": label,
        "allocate": plan.allocate,
        "recompute": plan.recompute,
        "device": plan.device.name,
        "summary": summary_rows(plan),
        "arena_bytes": plan.arena_bytes,
        "live_bytes": plan.live_bytes,
        "peak_step": plan.peak_step,
        "alignment": plan.alignment,
        "live": plan.live_profile,
        "buffers": _buffers(plan, kinds),
        "clock": clock.source,
        "nodes": _nodes(graph, texts, clock),
        "exchanges": _exchanges(graph, clock),
        **(_on_host(plan, clock) if plan.host_bytes else {}),
        "values": _values(plan),
        "outputs": _outputs(graph),
        "texts": list(texts),  # last, because the columns above fill the table
    }


def _buffers(plan: MemoryPlan, listed: Sequence[Kind]) -> dict[str, Any]:
    """Return the columns of all buffers.

    `kind` is the kind at step `first`. `turns` maps a buffer to its later kinds, as pairs of the
    first node and the kind from that node. `slots` holds the names of the values of slots.
    """
    kinds = {kind: number for number, kind in enumerate(listed)}
    by_kind, names = [spans(plan, buffer) for buffer in plan.buffers], plan.graph.names
    return {
        "offset": [buffer.offset for buffer in plan.buffers],
        "bytes": [buffer.bytes for buffer in plan.buffers],
        "first": [buffer.lifetime.first for buffer in plan.buffers],
        "last": [plan.lifetime_end(buffer) for buffer in plan.buffers],
        "kind": [kinds[found[0].kind] for found in by_kind],
        "slots": {slot.buffer.index: names[slot.value] for slot in plan.slots},
        "turns": {
            index: [(span.first, kinds[span.kind]) for span in found[1:]]
            for index, found in enumerate(by_kind)
            if len(found) > 1
        },
    }


def _nodes(graph: Graph, texts: Table[str], clock: Clock) -> dict[str, list[Any]]:
    return {
        "scope": [texts.number(node.scope) for node in graph.nodes],
        "op": [texts.number(node.op.title(node.attributes)) for node in graph.nodes],
        "phase": [PHASES.index(phase) for phase in phases(graph)],
        "seconds": [_digits(seconds) for seconds in clock.seconds],
    }


def phases(graph: Graph) -> list[Phase]:
    """Return the phase of each node; that of a copy to or from the host is the pass it runs in.

    Nodes of copies have the phase of the value's producer, although values return in another pass.
    """
    found: list[Phase] = []
    last: Phase = "forward"
    for node in graph.nodes:
        if node.host_copy is None and node.phase != "update":
            last = "forward" if node.phase == "forward" else "gradient"
        found.append(node.phase if node.host_copy is None else last)
    return found


def _on_host(plan: MemoryPlan, clock: Clock) -> dict[str, Any]:
    """Return the bytes of host memory, and the columns of all copies.

    ``node`` starts a copy to ``to``, and ``arrival`` waits for it, ``stall`` seconds. ``source`` is
    the value that is copied, ``result`` the copy, and ``original`` the value copied to the host.
    """
    graph, numbers = plan.graph, {value: i for i, value in enumerate(plan.graph.values)}
    arrivals = {node.host_copy: node for node in graph.nodes if node.awaited}
    copies = [(copy, graph.nodes[copy.node]) for copy in clock.copies]
    columns = {
        "node": [copy.node for copy, _ in copies],
        "arrival": [graph.position[arrivals[node]] for _, node in copies],
        "to": [copy.to for copy, _ in copies],
        "bytes": [copy.bytes for copy, _ in copies],
        "begin": [_digits(copy.start) for copy, _ in copies],
        "seconds": [_digits(copy.end - copy.start) for copy, _ in copies],
        "stall": [_digits(copy.stall) for copy, _ in copies],
        "source": [numbers[node.inputs[0]] for _, node in copies],
        "result": [numbers[arrivals[node].output] for _, node in copies],
        "original": [numbers[original(node.output)] for _, node in copies],
    }
    return {"host_start": plan.host_start, "host_bytes": plan.host_bytes, "host_copies": columns}


def _exchanges(graph: Graph, clock: Clock) -> dict[str, list[Any]]:
    """Return the columns of all collectives: node, begin and duration in seconds, bytes sent."""
    senders = [graph.nodes[step] for step, _, _ in clock.exchanges]
    return {
        "node": [step for step, _, _ in clock.exchanges],
        "begin": [_digits(begin) for _, begin, _ in clock.exchanges],
        "seconds": [_digits(seconds) for _, _, seconds in clock.exchanges],
        "sent_bytes": [node.op.sent_bytes(node) for node in senders],
    }


def _digits(seconds: float) -> float:
    return float(f"{seconds:.{FIGURES}g}")


def _values(plan: MemoryPlan) -> dict[str, Any]:
    """Return the columns of all values; -1 means no node, no operand or no original.

    `strides` holds the strides in bytes of non-contiguous values. `readers` concatenates the
    steps of the uses of all values, and `reader_counts` holds the number of uses of each.
    """
    graph = plan.graph
    number = {value: index for index, value in enumerate(graph.values)}
    places = [plan.placements[value] for value in graph.values]
    types = Table[Any]()
    type_numbers = [types.number(value.type) for value in graph.values]
    readers = [graph.uses[value] for value in graph.values]
    return {
        "name": [graph.names[value] for value in graph.values],
        "type": type_numbers,
        "types": [(str(t), list(t.shape), t.dtype.name, t.bytes) for t in types],
        "buffer": [place.buffer for place in places],
        "offset": [place.offset for place in places],
        "strides": {number[value]: list(strides) for value, strides in plan.strided.items()},
        "how": [HOWS.index(place.how) for place in places],
        "over": [-1 if place.over is None else number[place.over] for place in places],
        "node": [_position(graph, value.node) for value in graph.values],
        "copy_of": [_original(value, number) for value in graph.values],
        "reader_counts": [len(steps) for steps in readers],
        "readers": list(itertools.chain.from_iterable(readers)),
    }


def _position(graph: Graph, node: Node | None) -> int:
    return -1 if node is None else graph.position[node]


def _original(value: Value, number: dict[Value, int]) -> int:
    """Return the number of the value that a recomputed copy repeats; -1 for other values."""
    if value.node is None or value.node.copy_of is None:
        return -1
    return number.get(value.node.copy_of.outputs[value.index], -1)


def _outputs(graph: Graph) -> dict[str, str]:
    """Map output names to the names of their values in the text form."""
    return {name: graph.names[value] for name, value in graph.outputs.items()}


def aligned_bytes(plan: MemoryPlan, buffer: Buffer) -> int:
    """Return the size of a buffer rounded up to the alignment, as in `MemoryPlan.live_profile`."""
    return align(buffer.bytes, plan.alignment)


def live_by_kind(plan: MemoryPlan) -> list[dict[Kind, int]]:
    """Return the live bytes of each kind in the arena at each step, aligned.

    They sum to `live_profile`.
    """
    changes: list[dict[Kind, int]] = [{} for _ in range(len(plan.live_profile) + 1)]
    for buffer in plan.arena_buffers:
        size = aligned_bytes(plan, buffer)
        for first, last, kind in spans(plan, buffer):
            for step, change in (first, size), (last, -size):
                changes[step][kind] = changes[step].get(kind, 0) + change
    live: dict[Kind, int] = dict.fromkeys(arena_kinds(plan), 0)
    found = []
    for at_node in changes[:-1]:
        live = {kind: size + at_node.get(kind, 0) for kind, size in live.items()}
        found.append(live)
    return found


def host_profile(plan: MemoryPlan) -> list[int]:
    """Return the live bytes of host memory at each step, aligned."""
    change = [0] * (len(plan.live_profile) + 1)
    for buffer in plan.buffers:
        if buffer.kind == "host":
            change[buffer.lifetime.first] += aligned_bytes(plan, buffer)
            change[plan.lifetime_end(buffer)] -= aligned_bytes(plan, buffer)
    return list(itertools.accumulate(change[:-1]))
