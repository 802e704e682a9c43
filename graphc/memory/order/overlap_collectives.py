"""Overlap of collectives with computation: collectives begin early, and waits come late.

Problem: in an order with the fewest bytes, the node that waits for a collective follows right after
the node that begins it. The rank is then idle while bytes go over the link.

The pass is one walk over the nodes. They keep their order, with these exceptions:

- A collective runs as soon as its operands are available, together with the nodes that only copy
  these operands into its bucket.
- An arrival, the node that waits for a collective, runs just before the first of its consumers,
  together with views of its result.
- A node waits until its operands have arrived if only updates, outputs and other collectives depend
  on it.

The walk has two clocks. One adds up the seconds of nodes and of waits at arrivals. The other one is
for the link, which carries one collective after another.

Invariant: a node runs after the producers of its operands, and an update after all other uses of
the state that it replaces. So each node reads the same values as before. Live ranges of buckets
become longer. With a budget, the order is used only if the arena keeps to it.

Cost: O(V log V) for V nodes, and one packing with a budget.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator

from graphc.devices.links import Links
from graphc.ir.graph import Graph, Node, Value
from graphc.memory.allocate import Allocation
from graphc.ops.collective import Arrival, Collective
from graphc.plans.cost_model import CostModel
from graphc.plans.exchange_times import exchange_seconds
from graphc.plans.goal import Goal


def overlap_collectives(
    given: Allocation, costs: CostModel, links: Links, goal: Goal | None = None
) -> Allocation:
    """Return the graph with overlapped collectives, or `given` if a goal forbids the change."""
    graph = given.graph
    nodes = tuple(_Walk(graph, costs.seconds, lambda node: exchange_seconds(node, links)).order())
    if nodes == graph.nodes:
        return given
    found = given.in_order(nodes)
    if goal is None:
        return found
    most = given.arena_bytes("packed") if goal.budget is None else goal.budget
    maps = goal.feature_map_budget
    fits = found.arena_bytes("packed") <= most
    return found if fits and (maps is None or found.feature_map_bytes("packed") <= maps) else given


def _feeders(graph: Graph) -> set[Node]:
    """Return the collectives, and the cheap nodes on which only collectives depend."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if isinstance(node.op, Collective):
            found.add(node)
        elif not _is_seen(graph, node) and _does_little(node):
            # An arrival also reads the sent value, to extend its live range.
            users = {user for user in _users(graph, node) if not isinstance(user.op, Arrival)}
            if users and users <= found:
                found.add(node)
    return found


def _does_little(node: Node) -> bool:
    """Return True if a node is a view or a concatenation, or has no computed operands."""
    return bool(node.op.views or node.op.gathers) or not any(value.node for value in node.inputs)


def _asked_for(graph: Graph) -> set[Node]:
    """Return the arrivals, which wait for collectives, and the views of their results."""
    found: set[Node] = set()
    for node in graph.nodes:
        is_view = node.viewed is not None and node.viewed.node in found
        if isinstance(node.op, Arrival) or is_view:
            found.add(node)
    return found


def _may_wait(graph: Graph) -> set[Node]:
    """Return the nodes on which only updates, outputs and collectives depend."""
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
    """State of the walk: the nodes placed so far, and the clocks of the rank and its link.

    Clocks are in seconds from the start of the step.
    """

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
        """Value → the time in seconds at which it is available, if known."""
        self.waiting: list[tuple[float, int]] = []
        self.missing: dict[Node, int] = {}
        """Collective → the number of nodes not placed yet that must precede it or its feeders.
        Feeders are the cheap nodes that fill its bucket."""
        self.fills: dict[Node, list[Node]] = {}
        """Node → the collectives that need its result, directly or through feeders."""
        self.readers: dict[Value, set[Node]] = {}
        """Replaced value → the nodes that read it or a view of it."""
        for node in graph.nodes:
            for value in node.reads:
                if value in graph.replaced:
                    self.readers.setdefault(value, set()).add(node)
            if isinstance(node.op, Collective):
                needs = self._needs(node)
                self.missing[node] = len(needs)
                for need in needs:
                    self.fills.setdefault(need, []).append(node)

    def _needs(self, collective: Node) -> set[Node]:
        """Return the nodes whose results a collective needs, directly or through feeders.

        Feeders are cheap nodes on which only collectives depend.
        """
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
        """Yield all nodes in the order in which collectives overlap with computation."""
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
        """Return True if a node is placed later: before its consumers, or when its operands arrive.

        `until` is the time at which its operands are available.
        """
        if isinstance(node.op, Collective):
            return self.missing[node] > 0
        if node in self.feeders or node in self.asked_for:
            return True
        return until > self.now and node in self.may_wait

    def _until(self, node: Node) -> float:
        """Return the time in seconds at which all operands of a node are available.

        If the node replaces a state, nodes that read the state must be able to run by then, too.
        """
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
        """Yield a node after all nodes that must precede it.

        The collectives whose last operand it computes follow.
        """
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
        """Return the nodes not placed yet that must precede a node, in reverse order."""
        makers = {value.node for value in node.inputs if value.node is not None}
        missing = (makers | self._readers_of_replaced(node)) - self.placed
        return sorted(missing, key=self.graph.position.__getitem__, reverse=True)

    def _readers_of_replaced(self, node: Node) -> set[Node]:
        found = (self.readers.get(state, set()) for state in node.replaced.values())
        return set().union(*found) - {node}

    def _run(self, node: Node) -> None:
        """Mark a node as placed, and advance the clock of the rank or the link accordingly."""
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
        """Return the collectives that can begin once `node` has run, in reverse order."""
        found = self.fills.get(node, [])
        for collective in found:
            self.missing[collective] -= 1
        return [each for each in reversed(found) if not self.missing[each]]
