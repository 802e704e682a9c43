"""Which stream runs what, and what waits for what.

A plan is for one order. Work may run at the same time as other work as long as everything that
reads or writes bytes keeps its order with what writes them: then the bits are those of the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from graphc.ir.graph import Node, Value
from graphc.plans.memory_plan import MemoryPlan
from graphc.runtime.gpu.bind import Work

Resource = tuple[int, Value | None]
"""What works wait for: a buffer, or the part of a concatenation in it."""


LEAST_SECONDS = 2e-6
"""A kernel that does next to nothing."""


@dataclass(frozen=True, slots=True)
class StreamSlot:
    """Where one work runs, and the earlier works on other streams that it waits for."""

    stream: int
    waits: tuple[int, ...]


@dataclass(slots=True)
class _Accesses:
    """The work that wrote a resource last, and the works that have read it since."""

    writer: int | None = None
    readers: list[int] = field(default_factory=list)

    def all(self) -> Iterable[int]:
        return self.readers if self.writer is None else (self.writer, *self.readers)


def hazards(plan: MemoryPlan, works: Sequence[Work]) -> list[tuple[int, ...]]:
    """For each work the earlier ones that it must come after, because they touch the same bytes
    and one of the two writes them. What other hazards imply may be left out."""
    tracker = _Tracker(plan)
    return [
        tuple(sorted(set().union(*(tracker.visit(number, node) for node in work.nodes))))
        for number, work in enumerate(works)
    ]


class _Tracker:
    def __init__(self, plan: MemoryPlan) -> None:
        self.plan = plan
        self.accesses: dict[int, dict[Resource, _Accesses]] = {}
        ends = [buffer.offset + buffer.bytes for buffer in plan.buffers]
        offsets = [buffer.offset for buffer in plan.buffers]
        marks = np.unique([*offsets, *ends])
        self.lows = np.searchsorted(marks, offsets).tolist()
        self.highs = np.searchsorted(marks, ends).tolist()
        self.owners = np.full(len(marks), -1)
        self.roots: dict[Value, Value] = {}

    def visit(self, number: int, node: Node) -> tuple[int, ...]:
        found: set[int] = set()
        written = [value for value in node.outputs if self.plan.placements[value].how != "view"]
        for value in dict.fromkeys(node.inputs):
            found |= self.opened(self.plan.placements[value].buffer)
            for access in self.touched(value):
                found |= set() if access.writer is None else {access.writer}
                access.readers.append(number)
        for value in written:
            found |= self.opened(self.plan.placements[value].buffer)
            for access in self.touched(value):
                found |= set(access.all())
                access.writer, access.readers = number, []
        room = self.plan.workspaces.get(node)
        if room is not None:
            found |= self.opened(room.index)
            self.accesses[room.index][room.index, None] = _Accesses(number)
        return tuple(sorted(found - {number}))

    def opened(self, buffer: int) -> set[int]:
        """Who touched the bytes of a buffer that is met for the first time, under earlier ones."""
        if buffer in self.accesses:
            return set()
        self.accesses[buffer] = {}
        cells = self.owners[self.lows[buffer] : self.highs[buffer]]
        before = np.unique(cells[cells >= 0]).tolist()
        cells[:] = buffer
        last = [access for owner in before for access in self.accesses[owner].values()]
        return {number for access in last for number in access.all()}

    def touched(self, value: Value) -> list[_Accesses]:
        """The resources that a value lies in."""
        buffer = self.plan.placements[value].buffer
        own = self.accesses[buffer]
        root = self.root(value)
        if self.plan.placements[root].how == "part":
            return [own.setdefault((buffer, root), self.whole(buffer))]
        own.setdefault((buffer, None), _Accesses())
        return list(own.values())

    def whole(self, buffer: int) -> _Accesses:
        """A new part of a buffer, which all that touched the whole buffer has touched."""
        found = self.accesses[buffer].get((buffer, None), _Accesses())
        return _Accesses(found.writer, list(found.readers))

    def root(self, value: Value) -> Value:
        """The value whose bytes a view lies in, or an overwriting output took."""
        chain = []
        while value not in self.roots:
            placement = self.plan.placements[value]
            chain.append(value)
            source = placement.over
            if placement.how == "view" and value.node is not None:
                source = value.node.viewed
            if source is None:
                self.roots[value] = value
                break
            value = source
        for each in chain:
            self.roots[each] = self.roots[value]
        return self.roots[value]


def assign_streams(plan: MemoryPlan, works: Sequence[Work], count: int) -> list[StreamSlot]:
    """Slots on `count` streams: each work where it can start first, by estimated seconds."""
    free = [0.0] * count
    done = [0.0] * len(works)
    known = [[-1] * count for _ in range(count)]
    """The last work of every stream that a stream has waited for, for each stream."""
    seen = [[-1] * count for _ in range(len(works))]
    slots: list[StreamSlot] = []
    for number, needed in enumerate(hazards(plan, works)):
        ready = max((done[other] for other in needed), default=0.0)
        latest = max(needed, key=lambda other: done[other], default=None)
        home = slots[latest].stream if latest is not None else 0
        stream = min(range(count), key=lambda s: (max(free[s], ready), s != home, s))
        waits = []
        for other in sorted(needed, reverse=True):
            theirs = slots[other].stream
            if theirs != stream and known[stream][theirs] < other:
                waits.append(other)
                known[stream] = [max(pair) for pair in zip(known[stream], seen[other], strict=True)]
        known[stream][stream] = number
        seen[number] = list(known[stream])
        done[number] = free[stream] = max(free[stream], ready) + _seconds(plan, works[number])
        slots.append(StreamSlot(stream, tuple(waits)))
    return slots


def _seconds(plan: MemoryPlan, work: Work) -> float:
    costs = [node.op.cost(node) for node in work.nodes]
    moved = sum(cost.bytes_read + cost.bytes_written for cost in costs)
    return max(LEAST_SECONDS, plan.device.seconds(sum(cost.flops for cost in costs), moved))
