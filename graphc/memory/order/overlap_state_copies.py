"""Overlap of copies of states with computation: fetches begin early, write-backs end late.

Problem: `host_states` puts all nodes that copy a state next to its update, so every copy stalls the
step. Copies should run while other nodes run, but each takes bytes on the device meanwhile.

The pass is one walk over the nodes that copy no state, which keep their order. It has three clocks:
nodes, the link to the host, and the link back. Before each node,

- write-backs that have ended free their bytes,
- fetches begin, in the order of the updates that need them, just in time: late enough to take few
  bytes, and early enough that this and all later fetches arrive before their updates. A fetch that
  would exceed the limit of live bytes waits, and later ones with it,
- the oldest write-backs are awaited if their bytes exceed the limit.

The walk places the end of a write-back where the clock says that it has ended. The limit is the
budget of the arena. Without one, it is the arena without overlap plus `GROWTH` of the bytes on the
host. The arena may need more than live bytes. Then the walk is repeated with a lower limit.

Invariant: a fetch precedes the first use of the copy, and the end of a write-back follows its
begin, so each node reads the same values as before.

Cost: O(V²) additions for V nodes in the worst case, and a packing per walk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from graphc.ir.graph import Graph, Node, State
from graphc.memory.allocate import Allocation
from graphc.planner.host_link import HostLink
from graphc.plans.cost_model import CostModel
from graphc.plans.goal import Goal

GROWTH = 1 / 32
"""Without a budget, the arena may grow by this fraction of the bytes of states on the host."""

LESS = (1.0, 0.97, 0.92, 0.8)
"""The fractions of the limit, without the states on the device, that are tried in turn."""


def overlap_state_copies(
    given: Allocation, costs: CostModel, goal: Goal | None = None
) -> Allocation:
    """Return the graph with copies of states that overlap with other nodes.

    Returns `given` if the step would not be faster by the cost model, or if no order found keeps to
    the limit: the budget of a goal, else the arena of `given`, which only grows without a goal.
    """
    link = costs.host_link
    steps = _Steps(given.graph, costs, link)
    if not steps.fetches and not steps.write_backs:
        return given
    arena = given.arena_bytes("packed")
    limit = arena if goal is None or goal.budget is None else goal.budget
    if goal is None:
        limit += int(GROWTH * given.host_state_bytes)
    live = _live(given.in_order(steps.in_order(steps.tight)), steps.others)
    seconds = modeled_seconds(given.graph.nodes, costs, link)
    for part in LESS:
        capacity = given.state_bytes + int(part * (limit - given.state_bytes))
        nodes = steps.in_order(_Walk(steps, live, capacity).run())
        if modeled_seconds(nodes, costs, link) >= seconds:
            break
        found = given.in_order(nodes)
        if found.arena_bytes("packed") <= limit:
            return found
    return given


def modeled_seconds(nodes: Iterable[Node], costs: CostModel, link: HostLink) -> float:
    """Return the seconds of nodes in order, with copies to and from the host beside them."""
    clock = _Clock(link)
    for node in nodes:
        if node.op.copies_to:
            clock.begin(node)
        elif node.host_copy is not None:
            clock.wait(node.host_copy)
        else:
            clock.now += costs.seconds(node)
    return clock.now


class _Clock:
    """The time in a step, and the times at which the link is free and copies end, in seconds."""

    def __init__(self, link: HostLink) -> None:
        self.link = link
        self.now = 0.0
        self.free = {"host": 0.0, "device": 0.0}
        self.ends: dict[Node, float] = {}

    def begin(self, node: Node) -> None:
        """Start the copy of a node once the link is free."""
        to = node.op.copies_to
        start = max(self.now, self.free[to])
        ways = (to,) if self.link.both_ways else tuple(self.free)
        self.ends[node] = start + copy_seconds(node, self.link)
        self.free |= dict.fromkeys(ways, self.ends[node])

    def wait(self, node: Node) -> None:
        """Advance the time to the end of the copy that a node started."""
        self.now = max(self.now, self.ends[node])


def copy_seconds(node: Node, link: HostLink) -> float:
    """Return the seconds of the copy that a node starts."""
    size = node.output.type.bytes
    return link.out_seconds(size) if node.op.copies_to == "host" else link.in_seconds(size)


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy of a state: the nodes that begin and await it, its aligned bytes, and the number of
    the node, among those that copy no state, that needs or computes the copied value."""

    begin: Node
    end: Node
    bytes: int
    at: int


class _Steps:
    """The nodes of a graph that copy no state, in order, and the copies of states.

    `fetches` are ordered by the nodes that need them, `write_backs` by those that compute them.
    """

    def __init__(self, graph: Graph, costs: CostModel, link: HostLink) -> None:
        self.link = link
        self.others = [node for node in graph.nodes if not _copies_state(node)]
        self.seconds = [
            0.0 if node.host_copy is not None else costs.seconds(node) for node in self.others
        ]
        number = {node: at for at, node in enumerate(self.others)}
        fetches: list[_Copy] = []
        self.write_backs: list[_Copy] = []
        for node in graph.nodes:
            begin = node.host_copy
            if begin is None or begin is node or not _copies_state(node):
                continue
            size = begin.output.type.bytes
            if begin.op.has_effect:
                at = number[begin.inputs[0].producer]
                self.write_backs.append(_Copy(begin, node, size, at))
            else:
                at = number[graph.nodes[graph.uses[node.output][0]]]
                fetches.append(_Copy(begin, node, size, at))
        self.fetches = sorted(fetches, key=lambda copy: copy.at)
        self.write_backs.sort(key=lambda copy: copy.at)

    @property
    def tight(self) -> _Places:
        """The places at which fetches begin at their first use and write-backs end at once."""
        return _Places(
            [copy.at for copy in self.fetches], [copy.at + 1 for copy in self.write_backs]
        )

    def in_order(self, places: _Places) -> list[Node]:
        """Return all nodes, with the copies at these places."""
        count = len(self.others) + 1
        before: list[list[Node]] = [[] for _ in range(count)]
        after: list[list[Node]] = [[] for _ in range(count)]
        for copy, at in zip(self.write_backs, places.ends, strict=True):
            after[copy.at].append(copy.begin)
            before[at].append(copy.end)
        for copy, at in zip(self.fetches, places.begins, strict=True):
            before[at].append(copy.begin)
        for copy in self.fetches:
            before[copy.at].append(copy.end)
        found: list[Node] = []
        for at, node in enumerate(self.others):
            found += [*before[at], node, *after[at]]
        return found + before[-1]


def _copies_state(node: Node) -> bool:
    """Return True if a node begins or awaits a copy of a state on the host."""
    begin = node.host_copy
    return begin is not None and (begin.op.has_effect or isinstance(begin.inputs[0], State))


@dataclass(frozen=True, slots=True)
class _Places:
    """The number of the node before which each fetch begins, and each write-back is awaited."""

    begins: Sequence[int]
    ends: Sequence[int]


def _live(
    allocation: Allocation, nodes: Sequence[Node]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the live bytes of the arena at each of the nodes, and 0 at the end."""
    graph = allocation.graph
    change = np.zeros(len(graph.nodes) + 2, np.int64)
    for tenant in allocation.tenants("packed"):
        change[tenant.first] += tenant.bytes
        change[tenant.last] -= tenant.bytes
    live = allocation.fixed_bytes(allocation.storages("packed")) + change.cumsum()
    return np.append(live[[graph.position[node] for node in nodes]], 0)


class _Walk:
    """The walk of this module over `steps`, within `capacity` live bytes.

    `live` has the live bytes at each node without overlap.
    """

    def __init__(
        self, steps: _Steps, live: np.ndarray[tuple[int], np.dtype[np.int64]], capacity: int
    ) -> None:
        self.steps, self.capacity = steps, capacity
        self.live = live.copy()
        """The live bytes at each node, with the fetches that have begun before it."""
        self.clock = _Clock(steps.link)
        self.begins: list[int] = []
        self.ends: list[int] = []
        self.pending: deque[_Copy] = deque()
        """Write-backs that have begun and not ended, oldest first."""
        self.pending_bytes = 0
        self.latest = list(self._latest())

    def _latest(self) -> Iterator[float]:
        """Yield the latest begin of each fetch such that no update waits, in seconds without
        stalls."""
        start = np.cumsum([0.0, *self.steps.seconds]).tolist()
        due = float("inf")
        found = []
        for copy in reversed(self.steps.fetches):
            due = min(due, start[copy.at]) - copy_seconds(copy.begin, self.steps.link)
            found.append(due)
        yield from reversed(found)

    def run(self) -> _Places:
        """Return the places of all copies."""
        steps, clock = self.steps, self.clock
        written = deque(steps.write_backs)
        arriving = deque(steps.fetches)
        busy = 0.0
        for at, node in enumerate(steps.others):
            self._end_written(at)
            busy += steps.seconds[at]
            self._begin_fetches(at, busy)
            while arriving and arriving[0].at == at:
                clock.wait(arriving.popleft().begin)
            self._run(node, steps.seconds[at])
            while written and written[0].at == at:
                copy = written.popleft()
                clock.begin(copy.begin)
                self.pending.append(copy)
                self.pending_bytes += copy.bytes
        while self.pending:
            self._end_oldest(len(steps.others))
        return _Places(self.begins, self.ends)

    def _run(self, node: Node, seconds: float) -> None:
        if node.op.copies_to:  # a copy of another value
            self.clock.begin(node)
        elif node.host_copy is not None:
            self.clock.wait(node.host_copy)
        else:
            self.clock.now += seconds

    def _end_written(self, at: int) -> None:
        """Await the write-backs that have ended, and those whose bytes do not fit at a node."""
        while self.pending and (
            self.clock.ends[self.pending[0].begin] <= self.clock.now
            or self.live[at] + self.pending_bytes > self.capacity
        ):
            self._end_oldest(at)

    def _end_oldest(self, at: int) -> None:
        copy = self.pending.popleft()
        self.pending_bytes -= copy.bytes
        self.clock.wait(copy.begin)
        self.ends.append(at)

    def _begin_fetches(self, at: int, busy: float) -> None:
        """Begin the fetches that are due before the next node, `busy` seconds after the start, or
        needed by this node."""
        fetches = self.steps.fetches
        while (number := len(self.begins)) < len(fetches):
            copy = fetches[number]
            if copy.at > at:
                span = self.live[at : copy.at]
                most = max(int(span.max()), int(span[0]) + self.pending_bytes)
                if self.latest[number] >= busy or most + copy.bytes > self.capacity:
                    return
                span += copy.bytes
            self.clock.begin(copy.begin)
            self.begins.append(at)
