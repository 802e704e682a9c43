"""Plans for several streams: a trade-off of arena bytes and concurrency.

MXNet's note on memory names two ways under "allocation for parallel operations". In the first,
values share bytes as on one stream, and nodes that touch the same bytes wait. In the second, values
that may be live together in some legal order get separate bytes. That takes more bytes and fewer
waits. Between the two, only values up to some size get separate bytes.

The values that may be live together follow from a schedule in which all values have separate bytes.
A storage ends before another one begins under one condition: all nodes that touch the first are
certain to have run when the first node that touches the other starts. The dependences of the final
plan follow from its bytes alone (hazards.py), so its results do not depend on that schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from graphc.byte_sizes import exact_bytes
from graphc.errors import BudgetError, OptionError
from graphc.ir.graph import Graph, Input, Node
from graphc.memory.allocate import Allocation, Places
from graphc.memory.hazards import Addresses, hazards
from graphc.memory.side_by_side import (
    NOBODY,
    VIEW,
    Launches,
    Needs,
    Schedule,
    longest_paths_first,
    scheduled,
)
from graphc.memory.storages import Storage
from graphc.planner.pack.by_conflicts import pack_by_conflicts
from graphc.plans.cost_model import CostModel
from graphc.plans.goal import Goal
from graphc.plans.memory_plan import Allocate, MemoryPlan
from graphc.plans.streams import StreamChoice, Streams
from graphc.target import Target

LEAST_SECONDS = 2e-6
"""Minimum time of a kernel, in seconds."""

MOST_TENANTS = 8000
"""Maximum number of tenants for separate bytes, since all pairs are compared. Above it, values
share bytes as on one stream."""

PARTS_APART = (1.0, 0.95, 0.9, 0.8, 0.6, 0.3)
"""Fractions of the tenants that get separate bytes, taken from the smallest tenants up."""

BEFORE_ALL, BEHIND_ALL = NOBODY - 1, 2**62
"""Clock values before and after all nodes, at which inputs are written and outputs are read."""


@dataclass(frozen=True)
class _Way:
    """A candidate: offsets for the tenants of an allocation, and the stream schedule that they
    allow."""

    allocation: Allocation
    places: Places
    schedule: Schedule
    seconds: list[float | None]
    """The seconds of each launch at its first node; None for other nodes."""

    @cached_property
    def choice(self) -> StreamChoice:
        storages = self.allocation.storages("packed")
        size = self.allocation.fixed_bytes(storages) + self.places.height
        return StreamChoice(size, self.schedule.seconds)

    @property
    def feature_map_bytes(self) -> int:
        """Bytes of feature maps as Chen et al. (2016) count them, for execution on one stream."""
        return self.allocation.feature_map_bytes("packed")


def on_streams(plan: MemoryPlan, costs: CostModel, count: int) -> MemoryPlan:
    """Return the plan for `count` streams, with unchanged offsets; nodes that share bytes wait.

    Raises `OptionError` for a graph with copies between device and host.
    """
    _check_copies(plan.graph)
    places = Addresses.of(plan)
    needs, seconds = hazards(places), _seconds(places, costs)
    launches = _launches(places, needs, plan.target)
    schedule = _scheduled(needs, seconds, launches, count)
    seconds = launches.seconds(seconds)
    choice = StreamChoice(plan.arena_bytes, schedule.seconds)
    streams = _streams(plan.graph, schedule, seconds, count, [choice])
    return replace(plan, streams=streams, settings={**plan.settings, "streams": count})


def planned_on_streams(
    allocation: Allocation,
    strategy: Allocate,
    recompute: str,
    costs: CostModel,
    count: int,
    goal: Goal,
    reorders: bool,
) -> MemoryPlan:
    """Return the fastest plan on `count` streams, by the cost model, within the goal's budgets.

    Without an arena budget, the limit is the arena of one stream. On one stream, returns the
    allocation's own plan. Only ``packed`` spends bytes on concurrency. Nodes keep their order
    unless `reorders`. Raises `BudgetError` if nothing fits, and `OptionError` for a graph with
    copies between device and host.
    """
    if count == 1 or strategy != "packed":
        plan = allocation.plan(strategy, recompute, costs)
        return plan if count == 1 else on_streams(plan, costs, count)
    _check_copies(allocation.graph)
    ways = list(_ways(allocation, costs, count, reorders))
    if goal.feature_map_budget is not None:
        ways = [way for way in ways if way.feature_map_bytes <= goal.feature_map_budget]
    frontier = _frontier(ways)
    limit = ways[0].choice.arena_bytes if goal.budget is None else goal.budget
    fitting = [way for way in frontier if way.choice.arena_bytes <= limit]
    if not fitting:
        least = frontier[0].choice.arena_bytes
        raise BudgetError(
            f"the smallest arena found for {count} streams is {exact_bytes(least, up=True)}, above "
            f"the budget of {exact_bytes(limit)}; raise the budget to that size",
            least,
            allocation.live_bytes,
        )
    best = fitting[-1]
    plan = best.allocation.plan(strategy, recompute, costs, best.places)
    choices, seconds = [way.choice for way in frontier], best.seconds
    return replace(plan, streams=_streams(plan.graph, best.schedule, seconds, count, choices))


def _check_copies(graph: Graph) -> None:
    """Raise `OptionError` for a graph with copies between device and host."""
    if any(node.op.copies_to for node in graph.nodes):
        raise OptionError(
            "streams cannot be combined with copies to the host, which have streams of their own; "
            "omit streams"
        )


def _frontier(ways: list[_Way]) -> list[_Way]:
    """Return the Pareto-optimal candidates, by increasing bytes and decreasing seconds."""
    found: list[_Way] = []
    for way in sorted(ways, key=lambda way: (way.choice.arena_bytes, way.choice.seconds)):
        if not found or way.choice.seconds < found[-1].choice.seconds:
            found.append(way)
    return found


def _streams(
    graph: Graph,
    schedule: Schedule,
    seconds: list[float | None],
    count: int,
    choices: list[StreamChoice],
) -> Streams:
    pairs = zip(graph.nodes, schedule.slots, strict=True)
    slots = {node: slot for node, slot in pairs if slot is not None}
    alone = sum(own or 0.0 for own in seconds)
    return Streams(count, slots, schedule.seconds, alone, tuple(choices))


def _seconds(places: Addresses, costs: CostModel) -> list[float | None]:
    """Return the estimated seconds of each node; None for views, which do no work."""
    return [
        max(LEAST_SECONDS, costs.seconds(node)) if places.runs(node) else None
        for node in places.graph.nodes
    ]


def _launches(places: Addresses, needs: Needs, target: Target) -> Launches:
    """Return the groups of successive nodes that the target may launch together."""
    nodes = places.graph.nodes
    keys = [target.launch_key(node) if places.runs(node) else VIEW for node in nodes]
    return Launches.of(needs, keys)


def _scheduled(
    needs: Needs, seconds: list[float | None], launches: Launches, count: int
) -> Schedule:
    """Return a schedule of all nodes, with the nodes of a launch one after another."""
    together = launches.seconds(seconds)
    return launches.apart(scheduled(launches.needs(needs), together, count))


def _ways(allocation: Allocation, costs: CostModel, count: int, reorders: bool) -> Iterator[_Way]:
    """Yield all candidates; the first has the offsets of one stream.

    Candidates use the order of the graph, and with `reorders` also critical-path order.
    """
    by_graph = _Width(allocation, costs, count)
    yield from by_graph.ways()
    if not reorders:
        return
    ordered = by_graph.longest_paths_first()
    if ordered is not allocation.graph:
        yield from _Width(allocation.of(ordered), costs, count).ways()


class _Width:
    """Generator of candidate offsets for the values of a graph, in the order of its nodes."""

    def __init__(self, allocation: Allocation, costs: CostModel, count: int) -> None:
        self.allocation, self.count = allocation, count
        self.graph = allocation.graph
        self.storages = allocation.storages("packed")
        self.tenants = allocation.tenants("packed")
        self.sizes = np.array([tenant.bytes for tenant in self.tenants], np.int64)
        apart = np.concatenate([[0], np.cumsum(self.sizes)])[:-1]
        places = self._addresses(apart.tolist(), int(self.sizes.sum()))
        self.seconds = _seconds(places, costs)
        self.needs: Needs = hazards(places)
        """For each node, the nodes that it depends on if all values have separate bytes."""
        self.launches = _launches(places, self.needs, allocation.target)

    def ways(self) -> Iterator[_Way]:
        """Yield the candidate with the offsets of one stream, then candidates with fewer and fewer
        values in separate bytes."""
        yield self._way(self.allocation.placed("packed"))
        if len(self.tenants) > MOST_TENANTS or not len(self.sizes):
            return
        together, unordered = self._conflicts()
        durations = [tenant.last - tenant.first for tenant in self.tenants]
        ranks, tried = np.sort(self.sizes), set()
        for part in PARTS_APART:
            most = int(ranks[max(0, int(part * len(ranks)) - 1)])
            if most in tried:
                continue
            tried.add(most)
            is_apart = self.sizes <= most
            conflict = together | (unordered & is_apart & is_apart[:, np.newaxis])
            offsets, height = pack_by_conflicts(self.sizes.tolist(), conflict, durations)
            yield self._way(Places(self.tenants, offsets, height))

    def longest_paths_first(self) -> Graph:
        """Return the graph in critical-path order, or the graph itself if that is its order."""
        positions = self.graph.position
        needs = [
            {*needed, *(positions[v.node] for v in node.inputs if v.node is not None)}
            for needed, node in zip(self.needs, self.graph.nodes, strict=True)
        ]
        launches = self.launches
        together = launches.needs([sorted(n) for n in needs])
        seconds = launches.seconds(self.seconds)
        order = launches.in_order(longest_paths_first(together, seconds, self.count))
        if order == list(range(len(order))):
            return self.graph
        return self.graph.in_order(self.graph.nodes[number] for number in order)

    def _way(self, places: Places) -> _Way:
        addresses = self._addresses(places.offsets, places.height)
        needs = hazards(addresses)
        launches = _launches(addresses, needs, self.allocation.target)
        schedule = _scheduled(needs, self.seconds, launches, self.count)
        return _Way(self.allocation, places, schedule, launches.seconds(self.seconds))

    def _addresses(self, offsets: list[int], height: int) -> Addresses:
        """Return the addresses of all storages and workspaces. States get addresses after the
        tenants."""
        spans = []
        for storage in self.storages.storages:
            spans.append((height, height + storage.bytes))
            height += storage.bytes
        workspaces = {}
        for tenant, offset in zip(self.tenants, offsets, strict=True):
            if isinstance(tenant.owner, Storage):
                spans[tenant.owner.index] = (offset, offset + tenant.bytes)
            else:
                workspaces[tenant.owner] = len(spans)
                spans.append((offset, offset + tenant.bytes))
        return Addresses(self.graph, self.storages.placements, spans, workspaces)

    def _conflicts(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return two boolean matrices over pairs of tenants. The first is true for pairs that are
        live at the same step in the order of the graph. The second is true for pairs that the
        schedule with separate bytes does not order.
        """
        first = np.array([tenant.first for tenant in self.tenants])
        last = np.array([tenant.last for tenant in self.tenants])
        together = (first[:, np.newaxis] < last) & (first < last[:, np.newaxis])
        begin, end = self._clocks()
        ends_first = np.ones_like(together)
        for stream in range(self.count):
            ends_first &= end[:, stream, np.newaxis] <= begin[np.newaxis, :, stream]
        return together, ~(ends_first | ends_first.T)

    def _clocks(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return vector clocks of the begin and end of each tenant, by tenant and stream.

        `begin` has the last node that is certain to have run when any node that accesses the tenant
        starts. `end` has the last node that accesses the tenant.
        """
        schedule = _scheduled(self.needs, self.seconds, self.launches, self.count)
        shape = (len(self.tenants), self.count)
        begin, end = np.full(shape, BEHIND_ALL, np.int64), np.full(shape, NOBODY, np.int64)
        row_of: dict[int | Node, int] = {
            tenant.owner.index if isinstance(tenant.owner, Storage) else tenant.owner: row
            for row, tenant in enumerate(self.tenants)
        }
        placements = self.storages.placements
        for number, node in enumerate(self.graph.nodes):
            slot = schedule.slots[number]
            if slot is None:
                continue
            values = (*node.inputs, *node.outputs)
            touched: list[int | Node] = [node, *(placements[value].buffer for value in values)]
            for owner in touched:
                row = row_of.get(owner)
                if row is not None:  # states have no tenant
                    begin[row] = np.minimum(begin[row], schedule.before[number])
                    end[row, slot.stream] = max(end[row, slot.stream], number)
        for row, tenant in enumerate(self.tenants):
            if isinstance(tenant.owner, Storage) and isinstance(tenant.owner.root, Input):
                begin[row] = BEFORE_ALL
        for value in self.graph.outputs.values():
            row = row_of.get(placements[value].buffer)
            if row is not None:
                end[row] = BEHIND_ALL
        return begin, end
