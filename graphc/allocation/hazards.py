"""What has to wait for what: nodes that touch the same bytes, and one of them writes.

A plan is for one order. Nodes may run side by side as long as everything that reads or writes bytes
keeps its order with what writes them: then the bits are those of the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from graphc.ir.graph import Graph, Node, Value
from graphc.plans.memory_plan import MemoryPlan, Placement

Resource = tuple[int, Value | None]
"""What nodes wait for: a buffer, or the part of a concatenation in it."""


@dataclass(slots=True)
class _Accesses:
    """The work that wrote a resource last, and the works that have read it since."""

    writer: int | None = None
    readers: list[int] = field(default_factory=list)

    def all(self) -> Iterable[int]:
        return self.readers if self.writer is None else (self.writer, *self.readers)


@dataclass(frozen=True)
class Addresses:
    """Where the values of a graph lie, and the workspaces of its nodes: in a plan's buffers, or in
    storages that are given bytes of their own."""

    graph: Graph
    placements: Mapping[Value, Placement]
    spans: Sequence[tuple[int, int]]
    """The first byte of each buffer, and the one behind its last."""
    workspaces: Mapping[Node, int]
    """The numbers of buffers that are workspaces."""

    @classmethod
    def of(cls, plan: MemoryPlan) -> Addresses:
        """That of a plan."""
        spans = [(buffer.offset, buffer.offset + buffer.bytes) for buffer in plan.buffers]
        rooms = {node: buffer.index for node, buffer in plan.workspaces.items()}
        return cls(plan.graph, plan.placements, spans, rooms)

    def runs(self, node: Node) -> bool:
        """Whether a step does anything for a node, which it does not for views."""
        return any(self.placements[value].how != "view" for value in node.outputs)


def hazards(places: Addresses) -> list[tuple[int, ...]]:
    """For each node the earlier ones that it must come after, because they touch the same bytes
    and one of the two writes them. What other hazards imply may be left out; views have none."""
    tracker = _Tracker(places)
    return [
        tracker.visit(number, node) if places.runs(node) else ()
        for number, node in enumerate(places.graph.nodes)
    ]


class _Tracker:
    def __init__(self, places: Addresses) -> None:
        self.placements, self.workspaces = places.placements, places.workspaces
        self.accesses: dict[int, dict[Resource, _Accesses]] = {}
        spans = np.array(places.spans, np.int64).reshape(-1, 2)
        marks = np.unique(spans)
        self.lows, self.highs = (np.searchsorted(marks, ends).tolist() for ends in spans.T)
        self.owners = np.full(len(marks), -1)
        self.before: dict[int, set[int]] = {}
        """Who touched the bytes of a buffer before it was met."""
        self.roots: dict[Value, Value] = {}

    def visit(self, number: int, node: Node) -> tuple[int, ...]:
        found: set[int] = set()
        written = [value for value in node.outputs if self.placements[value].how != "view"]
        for value in dict.fromkeys(node.inputs):
            for access in self.touched(value):
                found |= set() if access.writer is None else {access.writer}
                access.readers.append(number)
        for value in written:
            for access in self.touched(value):
                found |= set(access.all())
                access.writer, access.readers = number, []
        room = self.workspaces.get(node)
        if room is not None:
            self.open(room)
            found |= self.before[room]
            self.accesses[room][room, None] = _Accesses(number)
        return tuple(sorted(found - {number}))

    def open(self, buffer: int) -> None:
        """Note who touched the bytes of a buffer that is met for the first time, under earlier
        ones."""
        if buffer in self.accesses:
            return
        self.accesses[buffer] = {}
        cells = self.owners[self.lows[buffer] : self.highs[buffer]]
        before = np.unique(cells[cells >= 0]).tolist()
        cells[:] = buffer
        last = [access for owner in before for access in self.accesses[owner].values()]
        self.before[buffer] = {number for access in last for number in access.all()}

    def touched(self, value: Value) -> list[_Accesses]:
        """The resources that a value lies in."""
        buffer = self.placements[value].buffer
        self.open(buffer)
        own = self.accesses[buffer]
        root = self.root(value)
        is_part = self.placements[root].how == "part"
        resource = buffer, root if is_part else None
        if resource not in own:
            own[resource] = self.untouched(buffer)
        return [own[resource]] if is_part else list(own.values())

    def untouched(self, buffer: int) -> _Accesses:
        """A new resource of a buffer: what touched the whole of it, and its bytes before, has
        touched it."""
        found = self.accesses[buffer].get((buffer, None), _Accesses())
        return _Accesses(found.writer, [*found.readers, *self.before[buffer]])

    def root(self, value: Value) -> Value:
        """The value whose bytes a view lies in, or an overwriting output took: of parts within
        parts the outermost."""
        chain = []
        while value not in self.roots:
            placement = self.placements[value]
            chain.append(value)
            source = placement.over
            if placement.how == "part" and source is not None:
                # A part stands for itself, unless what it is a part of lies in another part.
                source = source if self.placements[source].how == "part" else None
            if placement.how == "view" and value.node is not None:
                source = value.node.viewed
            if source is None:
                self.roots[value] = value
                break
            value = source
        for each in chain:
            self.roots[each] = self.roots[value]
        return self.roots[value]
