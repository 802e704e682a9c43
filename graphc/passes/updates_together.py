"""Small updates side by side, so that a GPU runs many in one launch.

Problem: `place_updates`, and the search for orders behind it, put every update right behind the
gradient that it reads. That needs the fewest bytes, but parts the updates of hundreds of small
parameters from each other, and a launch each costs more than their work.

One walk over the nodes, which keep their order. An update waits, in a batch with those that may
share a launch with it (`Target.launch_key`), until one of these:

- a node comes that reads what the batch writes, or writes what it reads,
- the gradients kept by all batches exceed the bytes allowed: the batch with most goes first,
- the nodes are at an end.

Invariant: no node that overtook a waiting update reads what this writes, nor writes what it reads;
so the update computes the same bits later, and so does the node. Gradients live longer by waiting,
so the order is taken only if its packed arena and its feature maps stay within bounds, see
`updates_together`; otherwise it is made again with less room for waiting.

Cost: O(V B) for V nodes and B batches at one time, and one packing for the order given and for each
that is tried. The paper has no such pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from graphc.allocation.allocate import Allocation, Sizes
from graphc.ir.graph import Graph, Node, State, Value
from graphc.plans.goal import Goal

GROWTH = 0.001
"""The part of the live bytes that waiting gradients may have, and by which the arena may grow."""

LESS = (1.0, 0.1)
"""The parts of that room for gradients that are tried, until the arena stays within its bound."""


def updates_together(given: Allocation, goal: Goal | None = None) -> Allocation:
    """The graph with small updates moved behind each other, or as it is given.

    Nothing else moves. The packed arena grows by at most `GROWTH`; it keeps to a `goal`'s bytes,
    and where a goal has none, it does not grow, since what is proven of such a plan holds for its
    bytes.
    """
    graph, target = given.graph, given.target
    known = {node: key for node in graph.nodes if (key := target.launch_key(node)) is not None}
    if not known:
        return given
    room = int(GROWTH * given.live_bytes)
    most = None
    for part in LESS:
        nodes = tuple(_order(graph, known, int(part * room)))
        if nodes == graph.nodes:
            return given
        if most is None:
            most = _most(given.sizes("packed"), goal)
        found = given.in_order(nodes)
        sizes = found.sizes("packed")
        fits = sizes.feature_map_bytes <= most.feature_map_bytes
        if fits and sizes.arena_bytes <= most.arena_bytes:
            return found
    return given


def _most(sizes: Sizes, goal: Goal | None) -> Sizes:
    """The most that a plan may need after the pass, if it needs `sizes` in the order given."""
    arena, maps = int((1 + GROWTH) * sizes.arena_bytes), sizes.feature_map_bytes
    if goal is None:
        return Sizes(arena, arena)
    if goal.budget is not None:
        return Sizes(min(arena, goal.budget), arena)
    return Sizes(arena if goal.feature_map_budget is not None else sizes.arena_bytes, maps)


@dataclass
class _Batch:
    """Updates that wait for each other, what they read and write, and the bytes kept for them."""

    nodes: list[Node] = field(default_factory=list)
    read: set[Value] = field(default_factory=set)
    written: set[Value] = field(default_factory=set)
    kept_bytes: int = 0

    def add(self, node: Node) -> None:
        """Let another update wait, which keeps its gradient alive."""
        reads = node.reads
        self.nodes.append(node)
        self.kept_bytes += sum(v.type.bytes for v in reads if not isinstance(v, State))
        self.read |= reads
        self.written |= node.writes

    def comes_before(self, reads: set[Value], writes: set[Value]) -> bool:
        """Whether the batch has to run before a node that reads and writes these."""
        return not (reads.isdisjoint(self.written) and writes.isdisjoint(self.read))


def _order(graph: Graph, known: Mapping[Node, Hashable], room: int) -> Iterator[Node]:
    """All nodes of a graph, with updates put off to run with others of the same key in `known`.

    Gradients of updates that wait have at most `room` bytes.
    """
    counts = Counter(known.values())
    waiting: dict[Hashable, _Batch] = {}
    for node in graph.nodes:
        reads, writes = node.reads, node.writes
        for own, batch in list(waiting.items()):
            if batch.comes_before(reads, writes):
                yield from waiting.pop(own).nodes
        if node not in known or counts[known[node]] == 1:
            yield node
            continue
        waiting.setdefault(known[node], _Batch()).add(node)
        while sum(batch.kept_bytes for batch in waiting.values()) > room:
            yield from waiting.pop(max(waiting, key=lambda own: waiting[own].kept_bytes)).nodes
    for batch in waiting.values():
        yield from batch.nodes
