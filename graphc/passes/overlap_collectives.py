"""Exchanges between ranks begin as early and end as late as they can, so that others run meanwhile.

Problem: orders with the fewest bytes put what waits for a collective right behind its beginning,
and the rank stands still while bytes go over the link.

One walk over the nodes, which keep their order but for these:

- A collective, and what only fills its bucket, runs as soon as its operands are there.
- What depends on an arrival, and what no node but updates and outputs depends on, waits until the
  link has been given the time that the bytes take; the walk has a clock that adds the seconds of
  nodes up, and one for the link, which carries one collective after another.

Invariant: nodes are put off together with all that depends on them, and an update with every reader
of what it replaces, so each node reads what it did. Buckets live longer by it. Where a budget is
given the order is taken only if the arena keeps to it.

Cost: O(V log V) for V nodes, and one packing under a budget. The paper has no such pass.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator

from graphc.allocation.allocate import Allocation
from graphc.ir.graph import Graph, Node, State, Value
from graphc.ir.links import Links
from graphc.ops.collective import Arrival, Collective
from graphc.plans.cost_model import CostModel
from graphc.plans.exchange_times import exchange_seconds
from graphc.plans.goal import Goal


def overlap_collectives(
    given: Allocation, costs: CostModel, links: Links, goal: Goal | None = None
) -> Allocation:
    """The graph with its exchanges beside other nodes, or as it is where a goal forbids that."""
    graph = given.graph
    nodes = tuple(_Walk(graph, costs.seconds, lambda node: exchange_seconds(node, links)).order())
    if nodes == graph.nodes:
        return given
    found = given.of(graph.in_order(nodes))
    if goal is None:
        return found
    before, after = given.sizes("packed"), found.sizes("packed")
    most = before.arena_bytes if goal.budget is None else goal.budget
    maps = goal.feature_map_budget
    fits = after.arena_bytes <= most and (maps is None or after.feature_map_bytes <= maps)
    return found if fits else given


def _fill_only(graph: Graph) -> set[Node]:
    """Collectives, and nodes that nothing but these depends on."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if isinstance(node.op, Collective):
            found.add(node)
        elif not _is_seen(graph, node) and (node.op.views or node.op.gathers):
            users = _users(graph, node)
            if users and users <= found:
                found.add(node)
    return found


def _may_wait(graph: Graph) -> set[Node]:
    """Nodes that depend on an arrival, and that updates and outputs alone depend on."""
    behind: set[Node] = set()
    for node in graph.nodes:
        sources = {value.node for value in node.inputs}
        if isinstance(node.op, Arrival) or not behind.isdisjoint(sources):
            behind.add(node)
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if node in behind and (node.op.has_effect or _users(graph, node) <= found):
            found.add(node)
    return found


def _users(graph: Graph, node: Node) -> set[Node]:
    return {graph.nodes[step] for value in node.outputs for step in graph.uses[value]}


def _is_seen(graph: Graph, node: Node) -> bool:
    return not graph.visible.isdisjoint(node.outputs)


class _Walk:
    """The nodes placed so far, the clock of the rank, and that of its link."""

    def __init__(
        self,
        graph: Graph,
        seconds: Callable[[Node], float],
        exchanging: Callable[[Node], float],
    ) -> None:
        self.graph, self.seconds, self.exchanging = graph, seconds, exchanging
        self.early, self.late = _fill_only(graph), _may_wait(graph)
        self.placed: set[Node] = set()
        self.now = self.link_free = 0.0
        self.there: dict[Value, float] = {}
        """When a value that depends on an exchange is there."""
        self.waiting: list[tuple[float, int]] = []
        self.waited_for: dict[Value, float] = {}
        """State → until when a reader of it waits."""
        self.missing = {
            node: len({v.node for v in node.inputs if v.node is not None}) for node in self.early
        }

    def order(self) -> Iterator[Node]:
        """All nodes, in the order to run them in."""
        for step, node in enumerate(self.graph.nodes):
            if node in self.placed:
                continue
            until = self._until(node)
            if node in self.late or (until > self.now and node.op.has_effect):
                self._put_off(step, node, until)
            else:
                yield from self._place(node)
            yield from self._due(self.now)
        yield from self._due(float("inf"))

    def _until(self, node: Node) -> float:
        """When all that a node needs has arrived, and nobody that waits reads what it replaces."""
        found = max((self.there.get(value, 0.0) for value in node.inputs), default=0.0)
        for state in node.replaced.values():
            found = max(found, self.waited_for.get(state, 0.0))
        return found

    def _put_off(self, step: int, node: Node, until: float) -> None:
        for value in node.outputs:
            self.there[value] = until
        for value in node.reads:
            if isinstance(value, State):
                self.waited_for[value] = max(self.waited_for.get(value, 0.0), until)
        heapq.heappush(self.waiting, (until, step))

    def _due(self, now: float) -> Iterator[Node]:
        while self.waiting and self.waiting[0][0] <= now:
            node = self.graph.nodes[heapq.heappop(self.waiting)[1]]
            if node not in self.placed:
                yield from self._place(node)

    def _place(self, node: Node) -> Iterator[Node]:
        yield node
        self.placed.add(node)
        if isinstance(node.op, Collective):
            self.link_free = max(self.now, self.link_free) + self.exchanging(node)
            self.there[node.output] = self.link_free
        else:
            self.now += self.seconds(node)
        yield from self._filled(_users(self.graph, node))

    def _filled(self, users: Collection[Node]) -> Iterator[Node]:
        for user in sorted(users & self.missing.keys(), key=self.graph.position.__getitem__):
            self.missing[user] -= 1
            if not self.missing[user] and user not in self.placed:
                yield from self._place(user)
