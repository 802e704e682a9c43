"""What a page shows of a plan, as columns of numbers: the page's JSON, and a base for other views.

A column holds one property of all buffers, values or nodes, in their order. Columns are about a
tenth of the text that one object a value would take.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar, get_args

from graphc.ir.graph import Graph, Node, Value
from graphc.ir.types import align
from graphc.plans.memory_plan import RARE, Buffer, How, Kind, MemoryPlan
from graphc.plans.names import spans
from graphc.plans.printout import summary_rows
from graphc.view.clock import Clock, estimated

KINDS: tuple[Kind, ...] = get_args(Kind)
LASTING: tuple[Kind, ...] = ("state", "slot")
"""The kinds of what holds bytes from one step to the next."""

HOWS: tuple[How, ...] = get_args(How)
PHASES = ("forward", "gradient", "mirror", "update")

FIGURES = 4
"""Digits of seconds: no clock has more."""

Item = TypeVar("Item", bound=Hashable)


class Table(Generic[Item]):
    """Things that occur often, each once, and the number of each."""

    def __init__(self) -> None:
        self._numbers: dict[Item, int] = {}

    def number(self, item: Item) -> int:
        """The number of an item, the next one where it is new."""
        return self._numbers.setdefault(item, len(self._numbers))

    def __iter__(self) -> Iterator[Item]:
        return iter(self._numbers)


def kinds_of(*plans: MemoryPlan) -> tuple[Kind, ...]:
    """The kinds that pictures of plans tell apart: rare ones where one of them has any."""
    there = {buffer.kind for plan in plans for buffer in plan.buffers}
    return tuple(kind for kind in KINDS if kind not in RARE or kind in there)


def page_model(plan: MemoryPlan, label: str, clock: Clock | None = None) -> dict[str, Any]:
    """One plan of a page; `label` stands on its tab.

    `clock` gives the seconds of nodes, by default the roofline of the plan's device.
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
        "buffers": _buffers(plan),
        "clock": clock.source,
        "nodes": _nodes(graph, texts, clock),
        "exchanges": _exchanges(graph, clock),
        "values": _values(plan),
        "outputs": _outputs(graph),
        "texts": list(texts),  # last, when all columns have been made
    }


def _buffers(plan: MemoryPlan) -> dict[str, Any]:
    """Columns of all buffers. `kind` is that at `first`; `turns` has later ones, by buffer, and
    `slots` the names of the values that slots are for.

    A turn is a node, and the kind that the buffer is of from there on.
    """
    kinds = {kind: number for number, kind in enumerate(KINDS)}
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
        "phase": [PHASES.index(node.phase) for node in graph.nodes],
        "seconds": [_digits(seconds) for seconds in clock.seconds],
    }


def _exchanges(graph: Graph, clock: Clock) -> dict[str, list[Any]]:
    """Columns of all exchanges with other ranks: the node, begin and length in seconds, bytes."""
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
    """Columns of all values; -1 stands for no node, no operand and no original.

    `strides` are in bytes, of values that do not lie in one piece. `readers` holds the steps of all
    readers, value after value, `reader_counts` how many each has.
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
    """The number of the value that this one is a recomputed copy of."""
    if value.node is None or value.node.copy_of is None:
        return -1
    return number.get(value.node.copy_of.outputs[value.index], -1)


def _outputs(graph: Graph) -> dict[str, str]:
    """Output name → the text form's name of its value."""
    return {name: graph.names[value] for name, value in graph.outputs.items()}


def aligned_bytes(plan: MemoryPlan, buffer: Buffer) -> int:
    """What a buffer counts for in `MemoryPlan.live_profile`."""
    return align(buffer.bytes, plan.alignment)


def live_by_kind(plan: MemoryPlan) -> list[dict[Kind, int]]:
    """Live bytes of each kind at each step, rounded as `live_profile` is, and adding up to it."""
    changes: list[dict[Kind, int]] = [{} for _ in range(len(plan.live_profile) + 1)]
    for buffer in plan.buffers:
        size = aligned_bytes(plan, buffer)
        for first, last, kind in spans(plan, buffer):
            for step, change in (first, size), (last, -size):
                changes[step][kind] = changes[step].get(kind, 0) + change
    live: dict[Kind, int] = dict.fromkeys(kinds_of(plan), 0)
    found = []
    for at_node in changes[:-1]:
        live = {kind: size + at_node.get(kind, 0) for kind, size in live.items()}
        found.append(live)
    return found
