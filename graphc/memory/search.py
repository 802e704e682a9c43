"""Search for schedules of one training graph in one node order, with their packed arenas."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from graphc.ir.graph import Graph, Node
from graphc.memory.allocate import Allocation
from graphc.memory.evaluations import Evaluations
from graphc.memory.order.place_updates import place_updates
from graphc.memory.points import Point, faster
from graphc.memory.schedule import materialise
from graphc.memory.training_graph import TrainingGraph
from graphc.planner.goals import Capacity
from graphc.planner.recompute.solver import Schedule, Solver

CORRECTIONS, MOST_CORRECTIONS = 4, 8
"""Maximum number of schedules packed for one budget, and the maximum if none of the first ones
fits."""

HARD, LARGER = 0.03, 1.1
"""Extra time (a fraction of a step) above which a second schedule is reordered, and its capacity
factor."""

LEAST_TRIALS = 2
"""Number of schedules near the lowest peak that are packed to find the smallest arena."""


class Search:
    """Search for schedules of one training graph in one node order. Limits bound the bytes that
    `evaluations` measure; `cost` gives the cost of a node."""

    def __init__(
        self,
        allocation: Allocation,
        cost: Callable[[Node], float],
        evaluations: Evaluations,
        is_one_pass: bool = False,
    ) -> None:
        self.evaluations, self.measures_arena = evaluations, evaluations.measure == "arena"
        self.training = TrainingGraph(allocation, cost, not self.measures_arena, is_one_pass)
        self.solver = Solver(self.training.steps)
        self._origins: dict[Node, int] = {}
        """For each node of a generated graph, the position of the original node that it
        executes."""

    def extra_time(self, schedule: Schedule) -> float:
        """Return the recompute cost of a schedule as a fraction of the cost of one training
        step."""
        return schedule.extra_cost / (self.solver.cost or 1.0)

    def graph_of(self, schedule: Schedule) -> Graph:
        """Return the graph that executes a schedule."""
        graph = self.training.graph
        if schedule is self.solver.no_recompute:
            return graph
        sequence = self.training.with_views(schedule.sequence)
        made = materialise(graph, sequence)
        self._origins.update(zip(made.nodes, sequence, strict=True))
        return place_updates(made)

    def ordered(self, schedule: Schedule) -> Schedule:
        """Return the schedule in a node order of fewer live bytes; unchanged if none is found."""
        graph = self.graph_of(schedule)
        found = self.evaluations.with_least_peak(graph)
        if found is graph:
            return schedule
        own = self.training.graph.position
        positions = [self._origins[n] if n in self._origins else own[n] for n in found.nodes]
        return self.solver.measured(self.training.without_views(positions))

    def packed_within(self, schedule: Schedule, budget: int) -> Point | None:
        """Return the point of the fastest schedule found whose packed size is within a budget, or
        None. The search starts from `schedule`."""
        starts, capacity = self._starts(schedule, budget)
        best = None
        for number in range(MOST_CORRECTIONS):
            if number >= CORRECTIONS and best is not None:
                break
            count = CORRECTIONS if number < CORRECTIONS else MOST_CORRECTIONS
            self.evaluations.trials.part = f"schedule {number + 1} of at most {count}"
            found = self.solver.best(starts, int(capacity.bytes))
            if found is None:
                break
            starts = [found.sequence, *starts[1:]]
            size, point = self._packed(found, budget)
            if point is not None:
                best = faster(best, point)
                if capacity.is_used(size) or found.extra_cost <= 0:
                    break
            capacity.correct(size)
        return best

    def _starts(self, schedule: Schedule, budget: int) -> tuple[list[list[int]], Capacity]:
        """Return reordered schedules, and the capacity at which the arena of the first may reach
        the budget."""
        if not self.measures_arena:
            return [schedule.sequence], Capacity(budget, budget)
        start = self.ordered(schedule)
        starts = [start.sequence]
        live = self.evaluations.allocation_of(self.graph_of(start)).live_bytes
        if self.extra_time(start) > HARD:
            saved = schedule.peak_bytes / max(start.peak_bytes, 1)
            larger = self.solver.schedule(int(LARGER * saved * budget))
            if larger is not None:
                starts.append(self.ordered(larger).sequence)
        return starts, Capacity(budget, budget * start.peak_bytes / max(live, 1))

    def _packed(self, schedule: Schedule, budget: int) -> tuple[int, Point | None]:
        """Return the bytes of a schedule, and its point if they fit; pack it only if its live bytes
        fit."""
        graph = self.graph_of(schedule)
        least = self.evaluations.least_bytes(graph)
        if least > budget:
            return least, None
        point = self.evaluations.point(graph)
        return point.bytes, point if point.bytes <= budget else None

    def least(self) -> Point:
        """Return the point of the fewest bytes found, at any cost."""
        solver = self.solver
        start = self.ordered(solver.least)
        found = [start]
        lowest = solver.lowest(start, lambda capacity: self._fitted(start, capacity))
        for number in range(LEAST_TRIALS):
            capacity = lowest.peak_bytes * (1 + 0.005 * number)
            improved = solver.best([lowest.sequence, start.sequence], int(capacity))
            if improved is not None:
                found.append(improved)
        points = [self.evaluations.point(self.graph_of(each)) for each in found]
        return self.evaluations.best(min(points, key=attrgetter("bytes")).graph)

    def improved(self, schedule: Schedule, cost: float) -> Schedule:
        """Return a schedule of the fewest bytes found that adds at most `cost`, from a reordered
        schedule."""
        start = self.ordered(schedule)

        def affordable(capacity: int) -> Schedule | None:
            found = self.solver.best([start.sequence], capacity)
            return found if found is not None and found.extra_cost <= cost else None

        return self.solver.lowest(start, affordable)

    def _fitted(self, start: Schedule, capacity: int) -> Schedule | None:
        found = self.solver.fitted(start.sequence, capacity)
        return None if found is None else self.solver.measured(found)

    def best_point(self, schedule: Schedule) -> Point:
        """Return the point of a schedule, in a better node order if that has a smaller arena."""
        return self.evaluations.best(self.graph_of(schedule))
