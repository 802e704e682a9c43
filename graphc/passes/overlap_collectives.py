"""Exchanges between ranks begin as early and end as late as they can, so that others run meanwhile.

Problem: orders with the fewest bytes put what waits for a collective right behind its beginning,
and the rank stands still while bytes go over the link.

One walk over the nodes, which keep their order but for these:

- A collective, with what only fills its bucket, runs as soon as its operands are there.
- An arrival, with views of what arrives, runs when the first of its readers does.
- What updates, outputs and other collectives alone depend on waits until its operands have arrived.
  The walk has a clock that adds up the seconds of nodes and of waits at arrivals, and one for the
  link, which carries one collective after another.

Invariant: a node runs behind all that it reads, and an update behind all readers of what it
replaces, so each node reads what it did. Buckets live longer by it. Where a budget is given the
order is taken only if the arena keeps to it.

Cost: O(V log V) for V nodes, and one packing under a budget. The paper has no such pass.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator

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
    found = given.in_order(nodes)
    if goal is None:
        return found
    before, after = given.sizes("packed"), found.sizes("packed")
    most = before.arena_bytes if goal.budget is None else goal.budget
    maps = goal.feature_map_budget
    fits = after.arena_bytes <= most and (maps is None or after.feature_map_bytes <= maps)
    return found if fits else given


def _feeders(graph: Graph) -> set[Node]:
    """Collectives, and nodes that do little and that nothing but collectives depends on."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if isinstance(node.op, Collective):
            found.add(node)
        elif not _is_seen(graph, node) and _does_little(node):
            # An arrival reads what is sent as well, so that it lives until then.
            users = {user for user in _users(graph, node) if not isinstance(user.op, Arrival)}
            if users and users <= found:
                found.add(node)
    return found


def _does_little(node: Node) -> bool:
    """Whether a node lays values side by side, or is made of states alone or of nothing."""
    return bool(node.op.views or node.op.gathers) or not any(value.node for value in node.inputs)


def _asked_for(graph: Graph) -> set[Node]:
    """Arrivals, and views of what arrives."""
    found: set[Node] = set()
    for node in graph.nodes:
        is_view = node.viewed is not None and node.viewed.node in found
        if isinstance(node.op, Arrival) or is_view:
            found.add(node)
    return found


def _may_wait(graph: Graph) -> set[Node]:
    """Nodes that nothing but updates, outputs and collectives depends on."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op.has_effect or isinstance(node.op, Collective) or _users(graph, node) <= found:
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
        self.feeders, self.may_wait = _feeders(graph), _may_wait(graph)
        self.asked_for = _asked_for(graph)
        self.placed: set[Node] = set()
        self.now = self.link_free = 0.0
        self.there: dict[Value, float] = {}
        """When a value is there, as far as that is known."""
        self.waiting: list[tuple[float, int]] = []
        self.missing: dict[Node, int] = {}
        """Collective → how many of the nodes are not placed that it, or what fills it, reads."""
        self.fills: dict[Node, list[Node]] = {}
        """Node → collectives for which it is one of these."""
        self.readers: dict[Value, set[Node]] = {}
        """State → the nodes that read it, or a view of it."""
        for node in graph.nodes:
            for value in node.reads:
                if isinstance(value, State):
                    self.readers.setdefault(value, set()).add(node)
            if isinstance(node.op, Collective):
                needs = self._needs(node)
                self.missing[node] = len(needs)
                for need in needs:
                    self.fills.setdefault(need, []).append(node)

    def _needs(self, collective: Node) -> set[Node]:
        """The nodes that a collective depends on through nothing but feeders."""
        found: set[Node] = set()
        pending = [collective]
        while pending:
            for value in pending.pop().inputs:
                if value.node in self.feeders:
                    pending.append(value.node)
                elif value.node is not None:
                    found.add(value.node)
        return found

    def order(self) -> Iterator[Node]:
        """All nodes, in the order to run them in."""
        for step, node in enumerate(self.graph.nodes):
            if node not in self.placed:
                until = self._until(node)
                if self._runs_later(node, until):
                    self._expect(node, until)
                    if node not in self.feeders and node not in self.asked_for:
                        heapq.heappush(self.waiting, (until, step))
                else:
                    yield from self._place(node)
            yield from self._due(self.now)
        yield from self._due(math.inf)
        for node in self.graph.nodes:
            yield from self._place(node)

    def _runs_later(self, node: Node, until: float) -> bool:
        """Whether a node is left for when others ask for it, or for when its operands arrive."""
        if isinstance(node.op, Collective):
            return self.missing[node] > 0
        if node in self.feeders or node in self.asked_for:
            return True
        return until > self.now and node in self.may_wait

    def _until(self, node: Node) -> float:
        """When all that a node needs has arrived, and nobody that waits reads what it replaces."""
        found = max((self.there.get(value, 0.0) for value in node.inputs), default=0.0)
        for reader in self._readers_of_replaced(node):
            if reader not in self.placed:
                found = max(found, *(self.there.get(value, 0.0) for value in reader.outputs))
        return found

    def _expect(self, node: Node, until: float) -> None:
        if isinstance(node.op, Collective):
            until = max(until, self.link_free) + self.exchanging(node)
        self.there.update(dict.fromkeys(node.outputs, until))

    def _due(self, now: float) -> Iterator[Node]:
        while self.waiting and self.waiting[0][0] <= now:
            yield from self._place(self.graph.nodes[heapq.heappop(self.waiting)[1]])

    def _place(self, asked: Node) -> Iterator[Node]:
        """A node behind all that has to run before it, and the collectives that this fills."""
        pending = [asked]
        while pending:
            node = pending[-1]
            before = [] if node in self.placed else self._before(node)
            pending += before
            if not before:
                pending.pop()
                if node not in self.placed:
                    yield node
                    self._run(node)
                    pending += self._filled(node)

    def _before(self, node: Node) -> list[Node]:
        """What has to run before a node and is not placed, the first of it last."""
        makers = {value.node for value in node.inputs if value.node is not None}
        missing = (makers | self._readers_of_replaced(node)) - self.placed
        return sorted(missing, key=self.graph.position.__getitem__, reverse=True)

    def _readers_of_replaced(self, node: Node) -> set[Node]:
        found = (self.readers.get(state, set()) for state in node.replaced.values())
        return set().union(*found) - {node}

    def _run(self, node: Node) -> None:
        """Move the clocks on."""
        self.placed.add(node)
        if isinstance(node.op, Collective):
            self.link_free = max(self.now, self.link_free) + self.exchanging(node)
        elif isinstance(node.op, Arrival):
            self.now = max(self.now, self.there[node.inputs[0]])
        else:
            self.now += self.seconds(node)
        at = self.link_free if isinstance(node.op, Collective) else self.now
        self.there.update(dict.fromkeys(node.outputs, at))

    def _filled(self, node: Node) -> list[Node]:
        """The collectives whose last operand a node has made, the first of them last."""
        found = self.fills.get(node, [])
        for collective in found:
            self.missing[collective] -= 1
        return [each for each in reversed(found) if not self.missing[each]]
