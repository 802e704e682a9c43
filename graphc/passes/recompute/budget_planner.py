"""The planner that is asked for bytes or work: least extra time within a budget, or least bytes.

A budget bounds the packed arena. graphc.planning knows live bytes, but not packing, nor where parts
lie inside concatenations, nor the orders that passes/order.py may find. So with arena(M) the arena
of the plan that `SequencePlanner` makes for a limit of M live bytes,

    1. an M near the budget B with arena(M) ≤ B is looked for, from M = B down by what the arena
       overshoots, and up again by bisection while much of B is left; at most 8 plans, since
       arena(M) is neither smooth nor monotone;
    2. plans for M > B are tried too where another order may bring them below B: limits at fixed
       ratios up to what an order saves without recomputation, until two in a row miss;
    3. the paper's policies that would be cheaper, and may fit, are made as well.

The best of all three is taken, so the result is never worse than one of the paper's that fits.
Where nothing fits, the plan of the fewest bytes is tried, and then told in the error.

`max_extra_flops` asks the other way round, with flops for costs; without either, the knee of the
curve (bytes, extra time) that the tables estimate is the limit. What is proven is planning/bound.py
on the steps in which concatenations take the fewest bytes: it holds for every order and packing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from graphc.allocation.allocate import Allocation
from graphc.errors import BudgetError
from graphc.ir.graph import Graph, Node
from graphc.ir.types import exact_bytes, format_bytes
from graphc.passes.recompute.apply import sequence_of, with_sequence
from graphc.passes.recompute.graph_steps import GraphSteps
from graphc.passes.recompute.points import Point, undominated
from graphc.passes.recompute.trials import Trials
from graphc.planning.bound import extra_cost, least_bytes
from graphc.planning.sequence_planner import SequencePlan, SequencePlanner
from graphc.plans.cost_model import CostModel, recomputation
from graphc.plans.goal import Goal
from graphc.plans.memory_plan import Allocate, Certificate

ATTEMPTS = 8
"""Plans with less and less room, until packing does not overshoot the budget."""

LIMIT_STEP, LIMITS = 0.93, 40
"""Limits above a budget at which plans are made and reordered: so many parts of all bytes."""

ORDER_SAVES = 1.5
"""Bytes that another order may save, as a factor: plans above it are not reordered to fit."""

SLACK = 0.01
"""Part of a budget that may be left without another try."""

LEAST_TRIES = (1.0, 1.01, 1.03, 1.06, 1.1)
"""Parts of the least limit that the steps allow: a little more room may pack better."""

POINTS = 16
"""Budgets of a frontier."""

OTHERS = ("none", "mirror", "segments", "cheap", "sublinear", "recursive")
"""Policies that are compared with."""


class OptimalPlanner:
    """Plans of one training graph without copies, under one allocation strategy.

    `order` gives the graph in an order with fewer live bytes, or as it is; without it, nodes
    stay in the order of the sequence that is planned.
    """

    def __init__(
        self,
        allocation: Allocation,
        costs: CostModel,
        strategy: Allocate = "packed",
        order: Callable[[Allocation], Allocation] | None = None,
    ) -> None:
        self.allocation, self.costs, self.strategy, self.order = allocation, costs, strategy, order
        self.graph = graph = allocation.graph
        self._graph_steps: dict[tuple[bool, bool], GraphSteps] = {}
        self._planners: dict[tuple[bool, bool], SequencePlanner] = {}
        self._sequences: dict[str, list[int]] = {}
        self._others: dict[tuple[str, bool], Point] = {}
        self._graphs: dict[str, Graph] = {}
        self._orders: dict[Graph, Graph] = {}
        self._limits: dict[int, Point | None] = {}
        self._trials = Trials("the fewest bytes")
        self._saves = strategy != "none" and any(n.op.gathers is not None for n in graph.nodes)
        """Whether plans may need fewer bytes than the steps say: parts inside concatenations."""

    def plan(self, goal: Goal) -> tuple[Graph, Certificate]:
        """The graph with its copies and what is proven of it; raises `BudgetError`."""
        least = self.bound_bytes()
        self._trials = Trials(str(goal), goal.budget, bound_bytes=least)
        if goal.budget is not None:
            bound = self.extra_time_bound(goal.budget, maps_only=False)
            self._trials.time_bound = bound
            point = self.within(goal.budget, maps_only=False)
        elif goal.feature_map_budget is not None:
            bound = self.extra_time_bound(goal.feature_map_budget, maps_only=True)
            self._trials = Trials(str(goal), goal.feature_map_budget, True, time_bound=bound)
            point = self.within(goal.feature_map_budget, maps_only=True)
            ordered = self._ordered(point)
            if ordered.sizes.feature_map_bytes <= goal.feature_map_budget:
                point = ordered
        else:
            if goal.max_extra_flops is not None:
                point = self.least_with(goal.max_extra_flops)
            else:
                point = self.knee()
            bound = self.extra_time_bound(point.sizes.arena_bytes, maps_only=False)
        return point.graph, Certificate(str(goal), least, bound)

    def within(self, budget: int, maps_only: bool) -> Point:
        """The least extra time found with at most `budget` bytes; raises `BudgetError`."""
        best = self._within(budget, maps_only)
        # Nothing is cheaper than no recomputation, whatever the order.
        if not maps_only and (best is None or best.extra_time > 0):
            best = self._in_better_orders(budget, best)
        for other in self._cheaper(best, budget, maps_only):
            if other.bytes(maps_only) <= budget and (
                best is None or other.extra_time < best.extra_time
            ):
                best = other
        if best is None:
            least = self.least(maps_only)
            if least.bytes(maps_only) > budget:
                raise self._does_not_fit(budget, least, maps_only)
            best = least
        return best if maps_only else self._ordered(best)

    def _within(self, budget: int, maps_only: bool) -> Point | None:
        planner = self._planner(maps_only, by_flops=False)
        fits: Point | None = None
        limit = fitted = budget
        too_much: int | None = None
        for attempt in range(ATTEMPTS):
            plan = planner.plan(limit)
            if plan is None:
                break
            point = self._point(plan, maps_only, by_flops=False)
            # Orders are slow to find, so only the plan nearest to the budget is reordered here.
            if attempt == 0 and not maps_only and point.bytes(maps_only) > budget:
                point = self._ordered(point)
            # `limit` falls until a plan fits; then it lies between `fitted` and `too_much`.
            over = point.bytes(maps_only) - budget
            if over > 0:
                too_much = limit
                limit = limit - max(over, limit // 500) if fits is None else (limit + fitted) // 2
                continue
            if fits is None or point.extra_time <= fits.extra_time:
                fits, fitted = point, limit
            if self._saves and point.extra_time > 0 and -over > SLACK * budget:
                # The steps count parts of concatenations twice: there is more room than they know.
                raised = int(limit * budget / point.bytes(maps_only))
                limit = raised if too_much is None else (limit + too_much) // 2
                continue
            if too_much is None or -over <= SLACK * budget or too_much - limit <= SLACK * budget:
                break
            limit = (limit + too_much) // 2
        return fits

    def _in_better_orders(self, budget: int, best: Point | None) -> Point | None:
        """Plans for more than the budget that fit when reordered, up to as much more as an order
        saves without recomputation.

        Limits are the same for all budgets and are left after two misses, so that a larger budget
        finds all that a smaller one does.
        """
        if self._reordered(self.graph) is self.graph:
            return best
        once = self._planner(maps_only=False, by_flops=False).once.peak_bytes
        # As if an order saved the same part with recomputation as without.
        most = budget * once // max(self._other("none", maps_only=False).bytes(False), 1)
        misses = 0
        # From the budget up: larger limits cost less time, but less often fit.
        for limit in sorted(int(once * LIMIT_STEP**power) for power in range(LIMITS)):
            if budget < limit <= most and misses < 2:
                point = self._reordered_within(limit)
                if point is None or point.bytes(False) > budget:
                    misses += 1
                    continue
                misses = 0
                if best is None or point.extra_time < best.extra_time:
                    best = point
        return best

    def _reordered_within(self, limit: int) -> Point | None:
        """The plan for a limit in bytes of the steps, reordered."""
        if limit not in self._limits:
            plan = self._planner(maps_only=False, by_flops=False).plan(limit)
            point = None
            if plan is not None:
                sequence = self._graph_steps_for(maps_only=False, by_flops=False).with_views(
                    plan.sequence
                )
                point = self._measured(self._reordered(with_sequence(self.graph, sequence)))
            self._limits[limit] = point
        return self._limits[limit]

    def least_with(self, max_extra_flops: float) -> Point:
        """The fewest bytes found with at most that part of a step's flops computed again."""
        planner = self._planner(maps_only=False, by_flops=True)
        allowed = max_extra_flops * planner.steps.cost_of(range(len(planner.steps)))
        plan = planner.least_costing(allowed)
        best = self._ordered(self._point(plan, maps_only=False, by_flops=True))
        for name in self._policies():
            cost, peak = self._estimate(name, maps_only=False, by_flops=True)
            # By the steps first, which takes no graph: most policies drop out here.
            if cost <= allowed and (self._saves or peak < best.bytes(False)):
                best = min(best, self._other(name, False), key=lambda point: point.bytes(False))
        if self.order is not None:  # which may save more where nothing is computed again
            best = min(best, self._other("none", False), key=lambda point: point.bytes(False))
        return best

    def knee(self) -> Point:
        """The plan where the curve of bytes against time bends, farthest from its chord."""
        planner = self._planner(maps_only=False, by_flops=False)
        plain = self._other("none", maps_only=False)
        whole = planner.curve()
        # Where an order alone saves bytes, the curve begins below them.
        curve = [point for point in whole if point[0] < plain.bytes(False)]
        if not curve:
            return plain
        most, (least, cost) = min(whole[0][0], plain.bytes(False)), curve[-1]
        # The distance from the chord between both ends, times the chord's length.
        limit, _ = max(
            curve, key=lambda point: (most - point[0]) * cost - point[1] * (most - least)
        )
        plan = planner.plan(limit) or planner.once
        point = self._ordered(self._point(plan, maps_only=False, by_flops=False))
        return point if point.bytes(False) < plain.bytes(False) else plain

    def least(self, maps_only: bool) -> Point:
        """The fewest bytes found at any price."""
        planner = self._planner(maps_only, by_flops=False)
        limit = planner.least().peak_bytes
        plans = (planner.plan(int(limit * part)) for part in LEAST_TRIES)
        points = [self._point(p, maps_only, by_flops=False) for p in plans if p is not None]
        points += [self._other(name, maps_only) for name in self._policies()]
        least = min(points, key=lambda point: (point.bytes(maps_only), point.extra_time))
        return least if maps_only else self._ordered(least)

    def frontier(self) -> list[Point]:
        """Plans from the fewest bytes to those without recomputation, dominated ones left out."""
        least = self.least(maps_only=False)
        plain = self._other("none", maps_only=False)
        low, high = least.sizes.arena_bytes, plain.sizes.arena_bytes
        points = [least, plain]
        for index in range(1, POINTS - 1):
            # Half the distance in bytes, half in their logarithm: tight budgets are the steep part.
            part = index / (POINTS - 1)
            budget = (low + (high - low) * part + low * (high / max(low, 1)) ** part) / 2
            asked = f"point {index + 2} of {POINTS}, within {format_bytes(int(budget))}"
            self._trials = Trials(asked, int(budget))
            points.append(self.within(int(budget), maps_only=False))
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
            self._planners[key] = SequencePlanner(self._graph_steps_for(maps_only, by_flops).steps)
        return self._planners[key]

    def _graph_steps_for(self, maps_only: bool, by_flops: bool) -> GraphSteps:
        key = (maps_only, by_flops)
        if key not in self._graph_steps:
            cost: Callable[[Node], float] = _flops if by_flops else self.costs.seconds
            self._graph_steps[key] = GraphSteps(self.allocation, cost, maps_only)
        return self._graph_steps[key]

    def _point(self, plan: SequencePlan, maps_only: bool, by_flops: bool) -> Point:
        if plan is self._planner(maps_only, by_flops).once:
            return self._measured(self.graph)
        sequence = self._graph_steps_for(maps_only, by_flops).with_views(plan.sequence)
        return self._measured(with_sequence(self.graph, sequence))

    def _measured(self, graph: Graph) -> Point:
        sizes = self.allocation.of(graph).sizes(self.strategy)
        again = recomputation(graph, self.costs)
        point = Point(graph, sizes, again.extra_time_fraction, again.extra_flops_fraction)
        self._trials.tell(point)
        return point

    def _ordered(self, point: Point) -> Point:
        """The same nodes in an order with a smaller arena, where one is looked for and found."""
        graph = self._reordered(point.graph)
        if graph is point.graph:
            return point
        found = self._measured(graph)
        # An order may have fewer live bytes and still pack worse, under another strategy too.
        return found if found.sizes.arena_bytes < point.sizes.arena_bytes else point

    def _reordered(self, graph: Graph) -> Graph:
        if self.order is None:
            return graph
        if graph not in self._orders:
            self._orders[graph] = self.order(self.allocation.of(graph)).graph
        return self._orders[graph]

    def _is_moved(self, name: str) -> bool:
        """Whether another policy has an order with fewer live bytes."""
        graph = self._other_graph(name)
        return self._reordered(graph) is not graph

    def _other_graph(self, name: str) -> Graph:
        if name == "none":
            return self.graph
        if name not in self._graphs:
            self._graphs[name] = with_sequence(self.graph, self._sequence(name))
        return self._graphs[name]

    def _other(self, name: str, maps_only: bool) -> Point:
        """The plan of another policy; for the paper's measure in the order of the paper."""
        key = (name, maps_only)
        if key not in self._others:
            point = self._measured(self._other_graph(name))
            self._others[key] = point if maps_only else self._ordered(point)
        return self._others[key]

    def _sequence(self, name: str) -> list[int]:
        if name not in self._sequences:
            self._sequences[name] = sequence_of(self.allocation, name)
        return self._sequences[name]

    def _estimate(self, name: str, maps_only: bool, by_flops: bool) -> tuple[float, int]:
        """Extra cost and peak of another policy by the steps, without its graph."""
        graph_steps = self._graph_steps_for(maps_only, by_flops)
        sequence = graph_steps.without_views(self._sequence(name))
        return graph_steps.steps.extra_cost(sequence), graph_steps.steps.peak(sequence)

    def _policies(self) -> Iterator[str]:
        """The names of the other policies, without those that run the same as one before."""
        seen: list[list[int]] = []
        for name in OTHERS:
            sequence = self._sequence(name)
            if sequence not in seen:
                seen.append(sequence)
                yield name

    def _cheaper(self, best: Point | None, budget: int, maps_only: bool) -> Iterator[Point]:
        """Other policies that cost less by the steps and may fit: in the order of the steps, and
        where nothing is concatenated, no arena is below live bytes."""
        steps = self._graph_steps_for(maps_only, by_flops=False).steps
        step_cost = steps.cost_of(range(len(steps)))
        for name in self._policies():
            cost, peak = self._estimate(name, maps_only, by_flops=False)
            may_fit = maps_only or self._saves or peak <= budget
            if not may_fit and peak <= ORDER_SAVES * budget:
                may_fit = self._is_moved(name)
            if may_fit and (best is None or cost < best.extra_time * step_cost):
                yield self._other(name, maps_only)

    def _does_not_fit(self, budget: int, least: Point, maps_only: bool) -> BudgetError:
        found = self.allocation.of(least.graph).plan(self.strategy, "optimal")
        node = found.graph.nodes[found.peak_step].label
        names = found.graph.names
        largest = [
            (", ".join(names[value] for value in found.residents[b.index][:2]), b.bytes)
            for b in found.live_at(found.peak_step)
            if b.index in found.residents
        ][:6]
        measured = "feature maps" if maps_only else "arena"
        bound = least_bytes(self._graph_steps_for(maps_only, by_flops=False).bounding_steps())
        listed = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest)
        packed = "" if self.strategy == "packed" else "allocate packed, which needs less, "
        return BudgetError(
            f"no plan found whose {measured} fit into {exact_bytes(budget)}; the "
            f"least found is {exact_bytes(least.bytes(maps_only))}, and none can be below "
            f"{bound:,} bytes. At its peak, {node}, the largest values are: {listed}. Raise the "
            f"budget, {packed}or make the batch smaller (accumulate=k keeps the step's batch)",
            least.bytes(maps_only),
            bound,
            node,
            tuple(largest),
        )


def _flops(node: Node) -> float:
    return float(node.op.cost(node).flops)
