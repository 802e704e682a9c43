"""Search for plans: fastest within a budget, fewest bytes, knee or frontier of the trade-off curve.

A solver (solver.py) bounds live bytes; a budget bounds the packed arena. The two differ by packing
losses, by parts inside concatenations, and by what a better node order saves after recomputation
has been decided. For a budget of B bytes the search does the following:

    1. solve for a capacity of B live bytes in the given node order, or layer by layer if layers
       recur over time, and take the cheapest schedule
    2. reorder its nodes for fewer live bytes (graphc.planner.order) and convert the order back to a
       schedule
    3. set the capacity to B · (peak of the schedule) / (live bytes of its allocation), improve the
       schedule for it by local search, pack it, and scale the capacity by B / (its arena); repeat
       for up to four schedules, or eight if none of the first four fits (search.py)
    4. on a small graph, repeat this for nearby budgets, and take the fastest plan that fits

The policies of Chen et al. (2016) are candidates if they fit and cost less. Arenas are not smooth,
so a larger budget may give a slightly slower plan (docs/recomputation.md).
If nothing fits, the error names the smallest arena found, which works as a budget.

`max_extra_flops` requests the fewest bytes within an amount of recomputed work. Without any goal,
the capacity is the knee of the curve that eviction and filling estimate. Bounds hold for every
order and every packing (lower_bound.py on `bounding_steps`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from operator import attrgetter

from graphc.byte_sizes import format_bytes
from graphc.errors import BudgetError
from graphc.ir.graph import Graph
from graphc.memory.allocate import Allocation
from graphc.memory.evaluations import ORDER_SAVES, Evaluations
from graphc.memory.host_plans import HostPlans
from graphc.memory.order.overlap_state_copies import modeled_seconds, overlap_state_copies
from graphc.memory.points import Measure, Point, faster
from graphc.memory.policies import POLICIES, sequence_of
from graphc.memory.reorder import by_layers
from graphc.memory.search import Search
from graphc.memory.training_graph import flops
from graphc.memory.trials import Trials, does_not_fit
from graphc.planner.goals import between, knee_of, undominated
from graphc.planner.host_link import HostLink
from graphc.planner.recompute.lower_bound import least_bytes, least_extra_cost
from graphc.planner.recompute.solver import Schedule
from graphc.plans.cost_model import CostModel
from graphc.plans.goal import Goal
from graphc.plans.memory_plan import Allocate, Certificate

LEAST_RATE = 0.1
"""The fraction of a link's rate that planning assumes at least beside copies of states."""

MOST_PRICED = 2_000
"""Maximum number of nodes of a graph for which an error searches for lower prices."""

CHEAPER = 0.8
"""Largest part of the price of the smallest plan at which an error names a larger plan, too."""

POINTS = 16
"""Number of points of a frontier."""

SMALL, RUNG, ABOVE, IN_VAIN = 200, 0.97, 3, 4
"""Maximum number of nodes of a graph that is searched at nearby budgets, too; the ratio of two of
these budgets; how many larger ones are searched; and the number of searches in a row without a
faster plan after which they end."""


class BudgetPlanner:
    """Planner for one training graph without recomputed nodes, under one allocation strategy. With
    `reorders`, plans may have other node orders than the graph. `plain` is the same graph with
    larger fused groups, for plans without recomputation. Limits bound the bytes of `measure`; for
    those of feature maps, the order of the graph is kept.
    """

    def __init__(
        self,
        allocation: Allocation,
        costs: CostModel,
        strategy: Allocate = "packed",
        reorders: bool = False,
        plain: Graph | None = None,
        measure: Measure = "arena",
    ) -> None:
        self.allocation, self.costs, self.strategy = allocation, costs, strategy
        self.graph, self.measure = allocation.graph, measure
        self.evaluations = Evaluations(allocation, costs, strategy, reorders, measure)
        self._plain = plain or self.graph
        self._found: dict[int, Point | None] = {}
        self._policy_graphs: dict[int, Graph] = {}

    def plan(self, goal: Goal) -> tuple[Allocation, Certificate]:
        """Return the graph with recomputed nodes, as its allocation, and a certificate; raises
        `BudgetError` if none fits."""
        least = self.bound_bytes
        trials = self.evaluations.trials = Trials(str(goal), goal.budget, bound_bytes=least)
        if goal.budget is not None:
            trials.time_bound = bound = self.extra_time_bound(goal.budget, goal.host_budget)
            point = self._with_host(goal.budget, goal.host_budget, bound)
        elif (most := goal.feature_map_budget) is not None:
            point, bound = self._within_feature_maps(most, str(goal))
        else:
            part = goal.max_extra_flops
            point = self.knee() if part is None else self.least_with(part)
            bound = self.extra_time_bound(point.arena_bytes)
        # A plan without recomputation may have other fused groups than the bounds assume.
        least = min(least, point.allocation.live_bytes)
        return point.allocation, Certificate(str(goal), least, min(bound, point.extra_time))

    def _within_feature_maps(self, most: int, asked: str) -> tuple[Point, float]:
        """Return the fastest point found whose feature maps take at most `most` bytes, and a lower
        bound on its extra time. It has an order with a smaller arena if its feature maps fit."""
        other = BudgetPlanner(
            self.allocation, self.costs, self.strategy, False, self._plain, "feature maps"
        )
        bound = other.extra_time_bound(most)
        other.evaluations.trials = Trials(asked, most, time_bound=bound)
        point = other.within(most)
        if not self.evaluations.reorders:
            return point, bound
        ordered = self.evaluations.ordered(self.evaluations.point(point.graph))
        return ordered if ordered.feature_map_bytes <= most else point, bound

    def _link(self, host_budget: int | None) -> HostLink | None:
        """Return the link to host memory for values, of `host_budget` bytes less those of states;
        None without such memory."""
        left = (host_budget or 0) - self.allocation.host_state_bytes
        return replace(self.costs.host_link, host_bytes=left) if left > 0 else None

    def _beside_states(self, link: HostLink) -> HostLink:
        """Return the link at the rates that copies of states leave on average."""
        step = self._orders[0].solver.cost
        moved = self.allocation.host_state_bytes / step
        to_host, to_device = (
            max(rate - moved, LEAST_RATE * rate) for rate in (link.to_host, link.to_device)
        )
        return replace(link, to_host=to_host, to_device=to_device)

    def _with_host(self, budget: int, host_budget: int | None, bound: float) -> Point:
        """Return the fastest point found within `budget` bytes, whose copies take at most
        `host_budget` bytes on the host; raises `BudgetError` if none fits."""
        link = self._link(host_budget)
        if link is None:
            return self.within(budget)
        alone, refusal = None, None
        try:
            alone = self.within(budget, priced=False)
        except BudgetError as error:
            refusal = error
        if alone is not None and alone.extra_time <= bound:
            return alone
        search, moves_states = self._orders[0], self.allocation.host_state_bytes > 0
        links = [link, self._beside_states(link)] if moves_states else [link]
        points = [alone, *(HostPlans(search, each).within(budget, bound) for each in links)]
        found = [point for point in points if point is not None]
        if not found:
            assert refusal is not None, "there is a plan without copies, or a reason"
            raise refusal
        if moves_states:
            return min(found, key=lambda point: self._seconds_with_states(point, budget))
        return min(found, key=lambda point: point.extra_time)

    def _seconds_with_states(self, point: Point, budget: int) -> float:
        """Return the modeled seconds of a point, with copies of states that overlap with nodes."""
        graph = overlap_state_copies(point.allocation, self.costs, Goal(budget=budget)).graph
        return modeled_seconds(graph.nodes, self.costs, self.costs.host_link)

    def within(self, budget: int, priced: bool = True) -> Point:
        """Return the point of least extra time found within `budget` bytes; raises `BudgetError` if
        none fits. If the error is `priced`, it names the fastest plans found for a little more;
        a budget of 0 asks for the fewest bytes only."""
        for graph in self._groupings:
            point = self.evaluations.point_within(graph, budget)
            if point is not None:
                return self.evaluations.ordered(point)
        best = self._fastest(budget) if budget >= self.bound_bytes else None
        if best is not None:
            nearby = self._is_small and self.measure == "arena"
            return self._fastest_nearby(best, budget) if nearby else best
        least = self.least
        if least.bytes <= budget:
            return least
        plain = min(point.bytes for point in self._plain_points())
        further = None
        if priced and budget and len(self.graph.nodes) <= MOST_PRICED:
            least = self._cheapest_least()
            further = self._fastest(min(least.bytes * 11 // 10, (least.bytes + plain) // 2))
            if (known := self.evaluations.fastest(budget)) is not None:
                return known  # the last search has found it
            if further is not None and further.extra_time >= CHEAPER * least.extra_time:
                further = None
        # The least plan may have larger fused groups than the bound assumes.
        raise does_not_fit(budget, least, min(self.bound_bytes, least.bytes), plain, further)

    def _fastest(self, budget: int) -> Point | None:
        """Return the fastest plan found within the budget, of the search, the tightest schedules,
        plans of earlier searches, and the policies."""
        best = self._searched(budget)
        if best is None and self._tightest.bytes <= budget:
            best = self._tightest
        best = faster(best, self.evaluations.fastest(budget))
        for number, schedule in enumerate(self._by_policies):
            extra = self._search.extra_time(schedule)
            if extra > 0 and (best is None or extra < best.extra_time):
                graph = self._policy_graph(number)
                best = faster(best, self.evaluations.point_within(graph, budget))
        return best

    def _fastest_nearby(self, best: Point, budget: int) -> Point:
        """Return the fastest plan found within the budget by searches within other budgets, at most
        as slow as `best`: arenas are not smooth."""
        in_vain = 0
        for rung in self._rungs(budget, ABOVE):
            self._searched(rung)
            found = faster(best, self.evaluations.fastest(budget))
            in_vain = in_vain + 1 if found is best else 0
            best = found or best
            if in_vain == IN_VAIN:
                break
        return best

    @property
    def _is_small(self) -> bool:
        """True if searches are short, and one allocation changes the arena by percents."""
        return len(self.graph.nodes) <= SMALL

    def _rungs(self, budget: int, above: int = 1) -> Iterator[int]:
        """Yield the next `above` larger and all smaller budgets of a series that does not depend on
        the budget, so that plans for several budgets share their searches."""
        rung = self._plain_point.arena_bytes
        while rung > self.bound_bytes:
            if RUNG**above * rung < budget:
                yield rung
            rung = int(RUNG * rung)

    def _searched(self, budget: int) -> Point | None:
        """Return a packed plan within the budget, or None."""
        if budget not in self._found:
            self._found[budget] = self._search_orders(budget)
        return self._found[budget]

    def _search_orders(self, budget: int) -> Point | None:
        """Return a packed plan within the budget, or None. Node orders are tried by the cost of
        their schedules, cheapest first, until a plan fits."""
        started: list[tuple[float, int, Search, Schedule]] = []
        for number, search in enumerate(self._orders):
            schedule = search.solver.schedule(budget)
            if schedule is not None:
                started.append((search.extra_time(schedule), number, search, schedule))
        for _, _, search, schedule in sorted(started, key=lambda each: each[:2]):
            found = search.packed_within(schedule, budget)
            if found is not None:
                return found
        return None

    @property
    def _orders(self) -> list[Search]:
        """A search for each node order: layer by layer if layers recur."""
        return self._by_layers or [self._search]

    @cached_property
    def _by_layers(self) -> list[Search]:
        """Searches in layer-by-layer orders, each with a single forward pass; empty if no layers
        recur."""
        found = []
        for allocation in by_layers(self.allocation) if self.evaluations.reorders else []:
            self.evaluations.add(allocation)
            found.append(Search(allocation, self.costs.seconds, self.evaluations, True))
        return found

    @cached_property
    def _tightest(self) -> Point:
        """The point of the fewest bytes found among schedules of the lowest peaks."""
        return min(self._orders, key=lambda order: order.solver.least.peak_bytes).least()

    @cached_property
    def least(self) -> Point:
        """The point of the fewest bytes found, at any cost."""
        points = [self._tightest, *self._plain_points(self._tightest.bytes)]
        return min([*points, *self._policy_points(points)], key=attrgetter("bytes"))

    def _cheapest_least(self) -> Point:
        """Return the point of the least extra time found within the fewest bytes found."""
        return faster(self.least, self._fastest(self.least.bytes)) or self.least

    def least_with(self, max_extra_flops: float) -> Point:
        """Return the point of the fewest bytes that recomputes at most this fraction of a step's
        flops."""
        search = Search(self.allocation, flops, self.evaluations)
        allowed = max_extra_flops * search.solver.cost
        schedule = search.solver.least_costing(allowed)
        points = [
            search.best_point(each) for each in (schedule, search.improved(schedule, allowed))
        ]
        points += self._plain_points(min(point.arena_bytes for point in points))
        for other in self._by_layers:
            affordable = partial(self._affordable, other, max_extra_flops)
            found = other.solver.lowest(other.solver.no_recompute, affordable)
            points.append(other.best_point(found))
        points += self._policy_points(points)
        within = [point for point in points if point.extra_flops <= max_extra_flops]
        return min(within, key=attrgetter("arena_bytes"))

    def _affordable(self, search: Search, max_extra_flops: float, capacity: int) -> Schedule | None:
        found = search.solver.schedule(capacity)
        if found is None:
            return None
        point = self.evaluations.point(search.graph_of(found))
        return found if point.extra_flops <= max_extra_flops else None

    def knee(self) -> Point:
        """Return the plan at the knee of the trade-off curve."""
        plain = self._plain_point
        curve = [p for p in self._search.solver.curve() if p[0] < plain.arena_bytes]
        if not curve:
            return plain
        budget = knee_of(curve, plain.arena_bytes)
        point = self._searched(budget)
        return point if point is not None and point.arena_bytes < plain.arena_bytes else plain

    def frontier(self, host_budget: int | None = None) -> list[Point]:
        """Return the points of the frontier, by increasing bytes. It starts at the fewest bytes
        found without copies and ends at the smallest plan without recomputation. Copies take at
        most `host_budget` bytes on the host."""
        least = self._cheapest_least()
        plain = self._plain_point
        points = [least, plain]
        budgets = between(least.arena_bytes, plain.arena_bytes, POINTS)
        if self._is_small:  # a plan within the bytes of a point makes the same searches
            budgets = (next(self._rungs(budget), budget) for budget in budgets)
        for number, budget in enumerate(budgets, start=len(points) + 1):
            asked = f"point {number} of {POINTS}, within {format_bytes(budget)}"
            self.evaluations.trials = Trials(asked, budget)
            bound = self.extra_time_bound(budget, host_budget) if host_budget else 0.0
            points.append(self._with_host(budget, host_budget, bound))
        known = [self.evaluations.fastest(point.arena_bytes) for point in points]
        # A plan within the bytes of each point can be asked for, so none has fewer than the least.
        found = [p for p in points + known if p is not None and p.arena_bytes >= least.arena_bytes]
        return undominated(found, lambda point: (point.arena_bytes, point.extra_time))

    @cached_property
    def bound_bytes(self) -> int:
        """A lower bound on the bytes of every schedule."""
        return least_bytes(self._search.training.bounding_steps)

    def extra_time_bound(self, budget: int, host_budget: int | None = None) -> float:
        """Return a lower bound on the extra time of schedules within the budget, with copies to at
        most `host_budget` bytes on the host, as a fraction of a step."""
        search = self._search
        # Bounding steps cost no more than the graph's, so their bound holds for the graph too.
        bound = least_extra_cost(search.training.bounding_steps, budget, self._link(host_budget))
        return bound / (search.solver.cost or 1.0)

    @cached_property
    def _search(self) -> Search:
        """The search in the order of the graph."""
        return Search(self.allocation, self.costs.seconds, self.evaluations)

    @cached_property
    def _groupings(self) -> list[Graph]:
        """The graph with and without larger fused groups, neither with recomputation; the faster
        one first."""

        def seconds(graph: Graph) -> float:
            return math.fsum(map(self.costs.seconds, graph.nodes))

        return sorted(dict.fromkeys((self._plain, self.graph)), key=seconds)

    def _plain_points(self, fewest: int | None = None) -> list[Point]:
        """Return plans without recomputation, skipping those that no order may bring to `fewest`
        bytes."""
        graphs, found = self._groupings, self.evaluations
        if fewest is not None:
            graphs = [g for g in graphs if found.least_bytes(g) <= ORDER_SAVES * fewest]
        return [found.best(graph) for graph in graphs]

    @cached_property
    def _plain_point(self) -> Point:
        """The plan of the fewest bytes without recomputation."""
        return min(self._plain_points(), key=attrgetter("arena_bytes"))

    @cached_property
    def _by_policies(self) -> list[Schedule]:
        """The schedules of the policies of Chen et al. (2016), so that no policy has a better
        plan."""
        search = self._search
        positions = (sequence_of(self.allocation, name) for name in POLICIES)
        distinct = dict.fromkeys(tuple(search.training.without_views(each)) for each in positions)
        return [search.solver.measured(list(sequence)) for sequence in distinct]

    def _policy_points(self, points: Sequence[Point]) -> list[Point]:
        """Return the points of policies whose peak in their own order is below the bytes of all of
        `points`."""
        fewest = min(point.bytes for point in points)
        peak = self._search.training.bounding_steps.peak
        lower = [n for n, each in enumerate(self._by_policies) if peak(each.sequence) < fewest]
        return [self.evaluations.best(self._policy_graph(number)) for number in lower]

    def _policy_graph(self, number: int) -> Graph:
        """Return the graph of a policy's schedule; evaluations are cached by graph."""
        if number not in self._policy_graphs:
            self._policy_graphs[number] = self._search.graph_of(self._by_policies[number])
        return self._policy_graphs[number]
