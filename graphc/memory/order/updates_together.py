"""Adjacent small updates, so that a GPU runs many of them in one launch.

Problem: `place_updates`, and the order search after it, put every update right after the gradient
that it reads. That needs the fewest bytes, but it separates the updates of hundreds of small
parameters. A launch for each costs more than their work.

The pass is one walk over the nodes, which keep their order. An update waits, in a batch with those
that may share a launch with it (`Target.launch_key`), until one of these:

- a node comes that reads what the batch writes, or writes what it reads,
- the gradients saved for all batches exceed the bytes allowed: the batch with most runs first,
- there are no more nodes.

Invariant: no node that overtakes a waiting update reads what the update writes, or writes what it
reads. So both compute the same bits. Waiting makes live ranges of gradients longer. So the order is
used only if its packed arena and its feature maps stay within bounds, see `updates_together`.
Otherwise the walk is repeated with fewer bytes for waiting gradients.

Cost: O(V B) for V nodes and B batches at one time, and one packing each for the given order and for
every candidate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from graphc.ir.graph import Graph, Node, State, Value
from graphc.memory.allocate import Allocation
from graphc.plans.goal import Goal

GROWTH = 0.001
"""Gradients of waiting updates may take this fraction of the live bytes, and the arena may grow by
this fraction of its size."""

LESS = (1.0, 0.1)
"""The fractions of the bytes for waiting gradients that are tried in turn, until the arena does not
grow too much."""


def updates_together(given: Allocation, goal: Goal | None = None) -> Allocation:
    """Return the graph with small updates moved next to each other, or `given` unchanged.

    Nothing else moves. The packed arena grows by at most `GROWTH` and keeps to the bytes of a
    `goal`. If the goal has neither an arena budget nor a feature map budget, the arena does not
    grow, since proven bounds of such a plan refer to its size.
    """
    graph, target = given.graph, given.target
    known = {node: key for node in graph.nodes if (key := target.launch_key(node)) is not None}
    if not known:
        return given
    workspace = int(GROWTH * given.live_bytes)
    for part in LESS:
        nodes = tuple(_order(graph, known, int(part * workspace)))
        if nodes == graph.nodes:
            return given
        found = given.in_order(nodes)
        if _fits(found, given, goal):
            return found
    return given


def _fits(found: Allocation, given: Allocation, goal: Goal | None) -> bool:
    """Return True if an allocation keeps to the limits after the pass; `given` is that before."""
    most = given.arena_bytes("packed")
    if goal is None or goal.budget is not None or goal.feature_map_budget is not None:
        most = int((1 + GROWTH) * most)
    if goal is not None and goal.budget is not None:
        most = min(most, goal.budget)
    if found.live_bytes > most or found.arena_bytes("packed") > most:
        return False
    if goal is None or goal.feature_map_budget is None:
        return True
    return found.feature_map_bytes("packed") <= given.feature_map_bytes("packed")


@dataclass
class _Batch:
    """Updates that wait for one launch, and the values that they read and write.

    `kept_bytes` is the size of the gradients that are live until the launch.
    """

    nodes: list[Node] = field(default_factory=list)
    read: set[Value] = field(default_factory=set)
    written: set[Value] = field(default_factory=set)
    kept_bytes: int = 0

    def add(self, node: Node) -> None:
        """Add a waiting update; its gradient stays live until the batch runs."""
        reads = node.reads
        self.nodes.append(node)
        self.kept_bytes += sum(v.type.bytes for v in reads if not isinstance(v, State))
        self.read |= reads
        self.written |= node.writes

    def comes_before(self, reads: set[Value], writes: set[Value]) -> bool:
        """Return True if the batch must run before a node with these reads and writes.

        This holds if the node reads what the batch writes, or writes what the batch reads.
        """
        return not (reads.isdisjoint(self.written) and writes.isdisjoint(self.read))


def _order(graph: Graph, known: Mapping[Node, Hashable], workspace: int) -> Iterator[Node]:
    """Yield all nodes in a new order: updates wait for others with the same key in `known`.

    Gradients of waiting updates have at most `workspace` bytes.
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
        while sum(batch.kept_bytes for batch in waiting.values()) > workspace:
            yield from waiting.pop(max(waiting, key=lambda own: waiting[own].kept_bytes)).nodes
    for batch in waiting.values():
        yield from batch.nodes
