"""Dependences between nodes: read-after-write, write-after-read and write-after-write.

A plan runs its nodes in one order. Nodes may run concurrently as long as these dependences hold.
The results are then bitwise equal to those of the plan's order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from graphc.ir.graph import Graph, Node, Value
from graphc.plans.memory_plan import MemoryPlan, Placement

Resource = tuple[int, Value | None]
"""A unit of dependence: (buffer, None), or (buffer, value) for a part of a concatenation in a
buffer."""


@dataclass(slots=True)
class _Accesses:
    """The last node that wrote a resource, and the nodes that have read the resource since then."""

    writer: int | None = None
    readers: list[int] = field(default_factory=list)

    def all(self) -> Iterable[int]:
        return self.readers if self.writer is None else (self.writer, *self.readers)


@dataclass(frozen=True)
class Addresses:
    """Locations of the values and workspaces of a graph.

    They come from the buffers of a plan, or from storages with candidate offsets.
    """

    graph: Graph
    placements: Mapping[Value, Placement]
    spans: Sequence[tuple[int, int]]
    """The byte range of each buffer: its first byte and one past its last."""
    workspaces: Mapping[Node, int]
    """The number of each node's workspace buffer."""

    @classmethod
    def of(cls, plan: MemoryPlan) -> Addresses:
        """Return the addresses in the buffers of a plan."""
        spans = [(buffer.offset, buffer.offset + buffer.bytes) for buffer in plan.buffers]
        scratchs = {node: buffer.index for node, buffer in plan.workspaces.items()}
        return cls(plan.graph, plan.placements, spans, scratchs)

    def runs(self, node: Node) -> bool:
        """Return True if the node does any work; views do none."""
        return any(self.placements[value].how != "view" for value in node.outputs)


def hazards(places: Addresses) -> list[tuple[int, ...]]:
    """Return for each node the earlier nodes that it depends on (RAW, WAR or WAW). Dependences that
    follow from others may be left out. Views have no dependences.
    """
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
        """For each buffer, the nodes that accessed its bytes while earlier buffers used them."""
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
        scratch = self.workspaces.get(node)
        if scratch is not None:
            self.open(scratch)
            found |= self.before[scratch]
            self.accesses[scratch][scratch, None] = _Accesses(number)
        return tuple(sorted(found - {number}))

    def open(self, buffer: int) -> None:
        """Record, on first use of a buffer, the nodes that accessed its bytes before."""
        if buffer in self.accesses:
            return
        self.accesses[buffer] = {}
        cells = self.owners[self.lows[buffer] : self.highs[buffer]]
        before = np.unique(cells[cells >= 0]).tolist()
        cells[:] = buffer
        last = [access for owner in before for access in self.accesses[owner].values()]
        self.before[buffer] = {number for access in last for number in access.all()}

    def touched(self, value: Value) -> list[_Accesses]:
        """Return the access records of all resources that contain bytes of a value."""
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
        """Return the access record of a new resource of a buffer. It starts with the accesses to
        the whole buffer and with earlier accesses to its bytes.
        """
        found = self.accesses[buffer].get((buffer, None), _Accesses())
        return _Accesses(found.writer, [*found.readers, *self.before[buffer]])

    def root(self, value: Value) -> Value:
        """Return the value whose bytes a view or an overwriting output uses. For a part inside
        another part, this is the outermost part.
        """
        chain = []
        while value not in self.roots:
            placement = self.placements[value]
            chain.append(value)
            source = placement.over
            if placement.how == "part" and source is not None:
                # A part is its own root, unless its concatenation is itself a part.
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
