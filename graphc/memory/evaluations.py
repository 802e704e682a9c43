"""Cache of evaluated variants of one graph: allocations, better orders, points."""

from __future__ import annotations

from operator import attrgetter

from graphc.ir.graph import Graph
from graphc.memory.allocate import Allocation
from graphc.memory.points import Measure, Point
from graphc.memory.reorder import with_least_peak
from graphc.memory.trials import Trials
from graphc.plans.cost_model import CostModel, recomputation
from graphc.plans.memory_plan import Allocate

ORDER_SAVES = 1.5
"""Ratio of live bytes to a budget above which no node order is expected to help."""


class Evaluations:
    """Cache of the evaluated variants of a graph, under one allocation strategy. With `reorders`,
    graphs are also evaluated in node orders of fewer live bytes. Limits bound the bytes of
    `measure`. `trials` reports every point.
    """

    def __init__(
        self,
        allocation: Allocation,
        costs: CostModel,
        strategy: Allocate,
        reorders: bool,
        measure: Measure = "arena",
    ) -> None:
        self.allocation, self.costs, self.strategy = allocation, costs, strategy
        self.reorders, self.measure = reorders, measure
        self.trials = Trials("the fewest bytes")
        self._allocations: dict[Graph, Allocation] = {}
        self._orders: dict[Graph, Graph] = {}
        self._points: dict[Graph, Point] = {}
        self.add(allocation)

    def add(self, allocation: Allocation) -> None:
        """Add an existing allocation to the cache."""
        self._allocations.setdefault(allocation.graph, allocation)

    def allocation_of(self, graph: Graph) -> Allocation:
        """Return the allocation of a variant of the graph, from the cache if possible."""
        if graph not in self._allocations:
            self._allocations[graph] = self.allocation.of(graph)
        return self._allocations[graph]

    def point(self, graph: Graph) -> Point:
        """Return the point of a variant in its own node order: bytes, extra time and extra
        flops."""
        if graph not in self._points:
            again = recomputation(graph, self.costs)
            extra = again.extra_time_fraction, again.extra_flops_fraction
            allocation = self.allocation_of(graph)
            self._points[graph] = Point(allocation, self.strategy, *extra, self.measure)
        self.trials.record(self._points[graph])
        return self._points[graph]

    def fastest(self, budget: int) -> Point | None:
        """Return the evaluated point of least extra time within the budget, or None."""
        fitting = [point for point in self._points.values() if point.bytes <= budget]
        return min(fitting, key=lambda p: (p.extra_time, p.bytes), default=None)

    def least_bytes(self, graph: Graph) -> int:
        """Return a lower bound on the bytes of a graph in its own node order, without packing."""
        return self.allocation_of(graph).live_bytes if self.measure == "arena" else 0

    def point_within(self, graph: Graph, budget: int) -> Point | None:
        """Return a point within the budget, of the graph as given or in a better order, or None.

        A graph is packed only if its live bytes fit. It is reordered only if the given order does
        not fit and another order may help.
        """
        if self.least_bytes(graph) > ORDER_SAVES * budget:
            return None
        return self._fitting(graph, budget) or self._fitting(self.with_least_peak(graph), budget)

    def _fitting(self, graph: Graph, budget: int) -> Point | None:
        """Return the point of a graph in its own node order if it is within the budget, else
        None."""
        if self.least_bytes(graph) > budget:
            return None
        point = self.point(graph)
        return point if point.bytes <= budget else None

    def best(self, graph: Graph) -> Point:
        """Return the point of a variant, in the given or the better order, whichever has the
        smaller arena."""
        found = self.point(self.with_least_peak(graph))
        # An arena is never below the live bytes. So the given order is packed only if it may be
        # smaller.
        if found.graph is graph or self.allocation_of(graph).live_bytes > found.arena_bytes:
            return found
        return min(self.point(graph), found, key=attrgetter("arena_bytes"))

    def ordered(self, point: Point) -> Point:
        """Return the point of the reordered graph if its arena is smaller; else return the given
        point."""
        graph = self.with_least_peak(point.graph)
        if graph is point.graph:
            return point
        found = self.point(graph)
        # An order with fewer live bytes may still pack worse, also under another strategy.
        return found if found.arena_bytes < point.arena_bytes else point

    def with_least_peak(self, graph: Graph) -> Graph:
        """Return the graph in an order with fewer live bytes, or the same graph."""
        if not self.reorders:
            return graph
        if graph not in self._orders:
            found = with_least_peak(self.allocation_of(graph))
            self._orders[graph] = self._orders[found.graph] = found.graph
            self.add(found)
        return self._orders[graph]
