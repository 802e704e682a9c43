"""The planner that is asked for bytes or work: least extra time within a budget, or least bytes.

A budget bounds the packed arena. graphc.planning knows live bytes, but not packing, nor where parts
lie inside concatenations, nor the orders that passes/order.py may find. So for a budget B

    1. the largest limit of live bytes whose plan has an arena of at most B, in its own order or a
       better one, is looked for on a ladder of limits (ladder.py), up to as much above B as an
       order, or parts, save without recomputation;
    2. the paper's policies that would be cheaper, and may fit, are made as well;
    3. 1 is done in other orders as well, each until nothing is faster than what is known by then:
       by layers that recur over time (passes/order.py), which need the fewest bytes, or else, in
       small graphs, in the order that a plan ends in (joint_order.py).

The best of all is taken, so the result is never worse than one of the paper's that fits; best is
what computes nothing again, in the larger groups of fused kernels first. What is tried for a limit
depends on no budget; ladder.py says what follows. A budget that is little above the fewest bytes is
compared with the plan of those. Where nothing fits, that plan is told in the error: the search is
done again for one byte less than was found until it finds nothing, also with flops for costs, so no
budget below it has a plan.

`max_extra_flops` asks the other way round, with flops for costs, and with seconds, as plans by
those may compute no more; without either, the knee of the curve (bytes, extra time) that the tables
estimate is the limit. What is proven is planning/bound.py on the steps in which concatenations take
the fewest bytes: it holds for every order and packing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from operator import attrgetter

from graphc.allocation.allocate import Allocation
from graphc.ir.graph import Graph, Node
from graphc.ir.types import format_bytes
from graphc.passes.recompute.apply import POLICIES, Sequences, with_sequence
from graphc.passes.recompute.graph_steps import GraphSteps, flops
from graphc.passes.recompute.joint_order import in_joint_order
from graphc.passes.recompute.ladder import COARSE, LITTLE, SLACK, STRIDES, Ladder
from graphc.passes.recompute.measured import Measured
from graphc.passes.recompute.points import Point, bend, between, faster, undominated
from graphc.passes.recompute.trials import Trials, does_not_fit
from graphc.planning.bound import extra_cost, least_bytes
from graphc.planning.sequence_planner import SequencePlan, SequencePlanner
from graphc.plans.cost_model import CostModel
from graphc.plans.goal import Goal
from graphc.plans.memory_plan import Allocate, Certificate

ORDER_SAVES = 1.5
"""Bytes that another order may save, as a factor: plans above it are not reordered to fit."""

NEAR_LEAST, NEAR_FLOOR = 1.05, 1.4
"""Budgets up to so many times the lowest limit with a plan, and the planner's floor, are compared
with the plan of the fewest bytes."""

FINE_STEPS = 4000
"""Steps up to which limits are looked for to the last rung, and by seconds and by flops alike."""

POINTS = 16
"""Budgets of a frontier."""


class OptimalPlanner:
    """Plans of one training graph, whose copies, if any, stay, under one allocation strategy.

    `order` gives the graph in an order with fewer live bytes, or as it is; without it, nodes
    stay in the order of the sequence that is planned. `plain` is the graph as it is for a plan
    that computes nothing again, where groups may be larger. `others` gives the graph in orders that
    are worth a planner each: what is asked for the whole arena is the best of all. `measured` is
    what these know of graphs together. A planner that it is given to is one of them: the forward
    pass is one, and the paper's policies are left to the first.
    """

    def __init__(
        self,
        allocation: Allocation,
        costs: CostModel,
        strategy: Allocate = "packed",
        order: Callable[[Allocation], Allocation] | None = None,
        plain: Graph | None = None,
        others: Callable[[Allocation], list[Allocation]] | None = None,
        measured: Measured | None = None,
    ) -> None:
        self.allocation, self.costs = allocation, costs
        self.strategy, self.others = strategy, others
        self.measured = measured or Measured(allocation, costs, strategy, order)
        self.graph = graph = allocation.graph
        self.plain = plain or graph
        self._graph_steps: dict[tuple[bool, bool], GraphSteps] = {}
        self._planners: dict[tuple[bool, bool], SequencePlanner] = {}
        self._is_one_pass = measured is not None
        self._sequences = Sequences(allocation, ["none"] if self._is_one_pass else [*POLICIES])
        self._graphs = {"none": graph}
        self._limits: dict[tuple[int, bool, bool], Graph] = {}
        self._least: dict[bool, Point] = {}
        self._saves = strategy != "none" and any(n.op.gathers is not None for n in graph.nodes)
        """Whether plans may need fewer bytes than the steps say: parts inside concatenations."""

    def plan(self, goal: Goal) -> tuple[Graph, Certificate]:
        """The graph with its copies and what is proven of it; raises `BudgetError`."""
        least = self.bound_bytes()
        self.measured.trials = Trials(str(goal), goal.budget, bound_bytes=least)
        if goal.budget is not None:
            bound = self.extra_time_bound(goal.budget, maps_only=False)
            self.measured.trials.time_bound = bound
            point = self.within(goal.budget, maps_only=False)
        elif (most := goal.feature_map_budget) is not None:
            bound = self.extra_time_bound(most, maps_only=True)
            self.measured.trials = Trials(str(goal), most, True, time_bound=bound)
            point = self.within(most, maps_only=True)
            ordered = self.measured.ordered(point)
            point = ordered if ordered.feature_map_bytes <= most else point
        else:
            part = goal.max_extra_flops
            point = self.knee() if part is None else self.least_with(part)
            bound = self.extra_time_bound(point.arena_bytes, maps_only=False)
        # What computes nothing again may be of other groups than those that the bounds are for.
        least = min(least, self.measured.allocation_of(point.graph).live_bytes)
        return point.graph, Certificate(str(goal), least, min(bound, point.extra_time))

    def within(self, budget: int, maps_only: bool) -> Point:
        """The least extra time found with at most `budget` bytes; raises `BudgetError`."""
        best = self._within(budget, maps_only)
        if best is None or (best.extra_time > 0 and self._is_near_least(budget, maps_only)):
            # Where arenas fall out by chance, the least may be faster than what is searched for.
            least = self.least(maps_only)
            if best is None or (
                least.bytes(maps_only) <= budget and least.extra_time < best.extra_time
            ):
                best = least
            if best.bytes(maps_only) > budget:
                found = self.allocation.of(best.graph).plan(self.strategy, "optimal")
                bound = self.bound_bytes()
                raise does_not_fit(budget, found, best.bytes(maps_only), bound, maps_only)
        return best if maps_only else self._jointly(best, budget)

    def _jointly(self, best: Point, budget: int) -> Point:
        """That, or a faster plan in the joint order, but none smaller than that of the fewest live
        bytes in the order given: as a budget, its bytes might have no plan there."""
        joint = self._joint if best.extra_time > 0 else None
        found = None if joint is None else joint._within(budget, False, best)
        if found is None or found.extra_time >= best.extra_time:
            return best
        return found if found.arena_bytes >= self._of_fewest_live.arena_bytes else best

    def _is_near_least(self, budget: int, maps_only: bool) -> bool:
        """Whether a budget is little above the lowest limit that has a plan, in every order."""
        if budget > NEAR_FLOOR * self._planner(maps_only, by_flops=False).floor:
            return False  # which takes no search
        ladder = self._ladder(maps_only)
        others = () if maps_only else self._alternatives
        return budget <= NEAR_LEAST * ladder.limit(ladder.deepest) and all(
            each._is_near_least(budget, maps_only) for each in others
        )

    def _within(self, budget: int, maps_only: bool, known: Point | None = None) -> Point | None:
        # Nothing is faster than no recomputation, in either order.
        for point in self._without_copies(maps_only):
            if point.bytes(maps_only) <= budget:
                return point
        found = known if maps_only else self._best_of_others(budget) or known
        found = faster(found, self._ladder(maps_only, found).within(budget))
        for other in self._cheaper(found, budget, maps_only):
            if other.bytes(maps_only) <= budget:
                found = faster(found, other)
        return found

    def _best_of_others(self, budget: int) -> Point | None:
        """The fastest that other orders have within a budget."""
        best: Point | None = None
        for each in self._alternatives:
            best = faster(best, each._within(budget, False, best))
        return best

    @functools.cached_property
    def _alternatives(self) -> list[OptimalPlanner]:
        """Planners of the graph in other orders, which know what this one knows of graphs."""
        allocations = self.others(self.allocation) if self.others else []
        return [self._in_order(each) for each in allocations]

    def _in_order(self, allocation: Allocation) -> OptimalPlanner:
        self.measured.add(allocation)
        given = self.costs, self.strategy, self.measured.order
        return OptimalPlanner(allocation, *given, measured=self.measured)

    @functools.cached_property
    def _joint(self) -> OptimalPlanner | None:
        """The planner in the order that a plan ends in; None where there are others already."""
        if self.measured.order is None or not self._is_small or self._alternatives:
            return None
        return in_joint_order(self, self.measured, self._in_order)

    @property
    def searched(self) -> tuple[GraphSteps, SequencePlanner]:
        """Steps of the whole arena by seconds, and their planner."""
        steps = self._graph_steps_for(maps_only=False, by_flops=False)
        return steps, self._planner(maps_only=False, by_flops=False)

    @functools.cached_property
    def _of_fewest_live(self) -> Point:
        least = self._planner(maps_only=False, by_flops=False).least()
        return self._point(least, maps_only=False, by_flops=False)

    @functools.cached_property
    def _is_small(self) -> bool:
        return len(self._graph_steps_for(maps_only=False, by_flops=False).steps) <= FINE_STEPS

    def _ladder(
        self, maps_only: bool, known: Point | None = None, by_flops: bool = False
    ) -> Ladder:
        """The ladder for limits, on which plans are of interest that are faster than `known`."""
        planner = self._planner(maps_only=maps_only, by_flops=by_flops)
        # As if an order, or parts, saved as much with recomputation as without.
        plain = self._other("none", maps_only).bytes(maps_only)
        slack = SLACK if self._is_small else LITTLE
        dearest = known.extra_time * planner.step_cost if known else math.inf

        def is_faster(limit: int) -> bool:
            plan = planner.plan_for(limit)
            return plan is not None and plan.extra_cost < dearest

        return Ladder(
            planner.once.peak_bytes,
            planner.floor,
            slack * max(1.0, planner.once.peak_bytes / max(plain, 1)),
            lambda limit: planner.plan_for(limit) is not None,
            is_faster,
            lambda limit, budget: self._fitting(limit, budget, maps_only, by_flops),
            lambda point: point.bytes(maps_only),
            STRIDES if self._is_small else COARSE,
        )

    def _fitting(self, limit: int, budget: int, maps_only: bool, by_flops: bool) -> Point | None:
        """The plan for a limit in bytes of the steps, if it is within the budget."""
        planner = self._planner(maps_only=maps_only, by_flops=by_flops)
        plan, key = planner.plan_for(limit), (limit, maps_only, by_flops)
        assert plan is not None, "only feasible limits are tried"
        if key not in self._limits:
            self._limits[key] = self._graph_of(plan, maps_only, by_flops)
        graph = self._limits[key]
        point = self.measured.within(graph, budget, maps_only)
        if maps_only:
            return point
        point = point or self.measured.within(self.measured.reordered(graph), budget, maps_only)
        return point and self.measured.ordered(point)

    def least_with(self, max_extra_flops: float) -> Point:
        """The fewest bytes found with at most that part of a step's flops computed again."""
        planner = self._planner(maps_only=False, by_flops=True)
        allowed = max_extra_flops * planner.step_cost
        plan = planner.least_costing(allowed)
        found = [self._point(plan, maps_only=False, by_flops=True)]
        if self._is_small:
            found.append(self._point(self._fastest_with(allowed), maps_only=False, by_flops=False))
        best = min(found, key=attrgetter("arena_bytes"))
        for name in self._sequences.distinct():
            cost, peak = self._estimate(name, maps_only=False, by_flops=True)
            # By the steps first, which takes no graph: most policies drop out here.
            if cost <= allowed and (self._saves or peak < best.arena_bytes):
                found.append(self._other(name, False))
                best = min(found, key=attrgetter("arena_bytes"))
        rest = (each.least_with(max_extra_flops) for each in self._alternatives)
        found += [*rest, self._other("none", False)]
        best = min(found, key=attrgetter("arena_bytes"))
        if not self._is_small or best.arena_bytes > NEAR_FLOOR * planner.floor:
            return best
        if self._within(best.arena_bytes, maps_only=False) is None:
            # What is below the least would be refused as a budget.
            least = self.least(maps_only=False)
            found += [least] if least.extra_flops <= max_extra_flops else []
            found = [point for point in found if point.arena_bytes >= least.arena_bytes]
        return min(found, key=attrgetter("arena_bytes"))

    def _fastest_with(self, flops: float) -> SequencePlan:
        """The plan of the fewest bytes, of those that add the least time, with so many flops."""
        steps = self._graph_steps_for(maps_only=False, by_flops=True).steps
        return self._planner(maps_only=False, by_flops=False).least_costing_by(steps, flops)

    def knee(self) -> Point:
        """The plan where the curve of bytes against time bends, farthest from its chord."""
        planner = self._planner(maps_only=False, by_flops=False)
        plain = self._other("none", maps_only=False)
        whole = planner.curve()
        # Where an order alone saves bytes, the curve begins below them.
        curve = [point for point in whole if point[0] < plain.bytes(False)]
        if not curve:
            return plain
        limit = bend(curve, min(whole[0][0], plain.bytes(False)))
        plan = planner.plan(limit) or planner.once
        point = self._point(plan, maps_only=False, by_flops=False)
        point = faster(point, self._best_of_others(point.bytes(False))) or point
        point = self._jointly(point, point.bytes(False))
        return point if point.bytes(False) < plain.bytes(False) else plain

    def least(self, maps_only: bool) -> Point:
        """The fewest bytes found at any price: with one byte less, no search finds a plan."""
        if maps_only not in self._least:
            points = [] if maps_only else [each.least(False) for each in self._alternatives]
            planner = self._planner(maps_only, by_flops=False)
            # No plan of the steps is below their floor, so it is not looked for above the others.
            if not any(point.bytes(maps_only) < planner.floor for point in points):
                points.append(self._point(planner.least(), maps_only, by_flops=False))
            found: Point | None = min(points, key=lambda point: point.bytes(maps_only))
            while found is not None:
                least, budget = found, found.bytes(maps_only) - 1
                found = self._within(budget, maps_only)
                if found is None and not maps_only and self._is_small:
                    found = self._ladder(maps_only, by_flops=True).within(budget)
            self._least[maps_only] = least
        return self._least[maps_only]

    def frontier(self) -> list[Point]:
        """Undominated plans, from the fewest bytes to the fewest without recomputation."""
        least = self.least(maps_only=False)
        plain = self._other("none", maps_only=False)
        points = [least, plain]
        budgets = between(least.arena_bytes, plain.arena_bytes, POINTS)
        for number, budget in enumerate(budgets, start=len(points) + 1):
            asked = f"point {number} of {POINTS}, within {format_bytes(budget)}"
            self.measured.trials = Trials(asked, budget)
            points.append(self.within(budget, maps_only=False))
        return undominated(points)

    def bound_bytes(self) -> int:
        """Bytes of the arena that no schedule can go below."""
        return least_bytes(self._graph_steps_for(maps_only=False, by_flops=False).bounding_steps())

    def extra_time_bound(self, budget: int, maps_only: bool) -> float:
        """The part of a step's seconds that every schedule within the budget adds at least."""
        graph_steps = self._graph_steps_for(maps_only, by_flops=False)
        step_cost = graph_steps.steps.cost_of(range(len(graph_steps.steps)))
        # Costs of bounding steps are no higher, so what they give as a bound holds for the graph's.
        return extra_cost(graph_steps.bounding_steps(), budget) / (step_cost or 1.0)

    def _planner(self, maps_only: bool, by_flops: bool) -> SequencePlanner:
        key = (maps_only, by_flops)
        if key not in self._planners:
            # Where there are better orders, they are worth the time.
            shrinks = maps_only or not self._alternatives
            steps = self._graph_steps_for(maps_only, by_flops).steps
            self._planners[key] = SequencePlanner(steps, shrinks)
        return self._planners[key]

    def _graph_steps_for(self, maps_only: bool, by_flops: bool) -> GraphSteps:
        key = (maps_only, by_flops)
        if key not in self._graph_steps:
            cost: Callable[[Node], float] = flops if by_flops else self.costs.seconds
            self._graph_steps[key] = GraphSteps(self.allocation, cost, maps_only, self._is_one_pass)
        return self._graph_steps[key]

    def _point(self, plan: SequencePlan, maps_only: bool, by_flops: bool) -> Point:
        return self.measured.best(self._graph_of(plan, maps_only, by_flops), maps_only)

    def _graph_of(self, plan: SequencePlan, maps_only: bool, by_flops: bool) -> Graph:
        if plan is self._planner(maps_only, by_flops).once:
            return self.graph
        sequence = self._graph_steps_for(maps_only, by_flops).with_views(plan.sequence)
        return with_sequence(self.graph, sequence)

    def _other_graph(self, name: str) -> Graph:
        if name not in self._graphs:
            self._graphs[name] = with_sequence(self.graph, self._sequences.of(name))
        return self._graphs[name]

    def _other(self, name: str, maps_only: bool) -> Point:
        """The plan of another policy; for the paper's measure in the order of the paper."""
        if name == "none":
            return min(self._without_copies(maps_only), key=lambda point: point.bytes(maps_only))
        return self.measured.best(self._other_graph(name), maps_only)

    def _without_copies(self, maps_only: bool) -> list[Point]:
        """Without recomputation, in either grouping: the faster first."""
        return [self.measured.best(graph, maps_only) for graph in self._groupings]

    @functools.cached_property
    def _groupings(self) -> list[Graph]:
        def seconds(graph: Graph) -> float:
            return math.fsum(map(self.costs.seconds, graph.nodes))

        return sorted(dict.fromkeys((self.plain, self.graph)), key=seconds)

    def _estimate(self, name: str, maps_only: bool, by_flops: bool) -> tuple[float, int]:
        """Extra cost and peak of another policy by the steps, without its graph."""
        graph_steps = self._graph_steps_for(maps_only, by_flops)
        sequence = graph_steps.without_views(self._sequences.of(name))
        return graph_steps.steps.extra_cost(sequence), graph_steps.steps.peak(sequence)

    def _cheaper(self, best: Point | None, budget: int, maps_only: bool) -> Iterator[Point]:
        """Other policies that cost less by the steps and may fit: in the order of the steps, and
        where nothing is concatenated, no arena is below live bytes."""
        step_cost = self._planner(maps_only, by_flops=False).step_cost
        for name in self._sequences.distinct():
            cost, peak = self._estimate(name, maps_only, by_flops=False)
            may_fit = maps_only or self._saves or peak <= budget
            if not may_fit and peak <= ORDER_SAVES * budget:
                other = self._other_graph(name)
                may_fit = self.measured.reordered(other) is not other
            if may_fit and (best is None or cost < best.extra_time * step_cost):
                yield self._other(name, maps_only)
