"""Search for schedules of one training graph in one node order, with their packed arenas."""

from __future__ import annotations

from collections.abc import Callable

from graphc.ir.graph import Graph, Node
from graphc.memory.allocate import Allocation
from graphc.memory.evaluations import Evaluations
from graphc.memory.order.place_updates import place_updates
from graphc.memory.points import Point, faster
from graphc.memory.schedule import materialise
from graphc.memory.training_graph import TrainingGraph
from graphc.planner.recompute.solver import Schedule, Solver

CORRECTIONS, MOST_CORRECTIONS = 4, 8
"""Maximum number of schedules packed for one budget, and the maximum if none of the first ones
fits."""

CLOSE, TIGHTER = 0.005, 0.998
"""Fraction of a budget that may stay unused, and the largest factor of the capacity after an arena
that exceeds the budget."""

HARD, LARGER = 0.03, 1.1
"""Extra time (a fraction of a step) above which a second schedule is reordered, and its capacity
factor. Policies are tried up to the same factor above the budget, since a better order may lower
their peak."""

LEAST_TRIALS = 2
"""Number of schedules near the lowest peak that are packed to find the smallest arena."""


class Search:
    """Search for schedules of one training graph in one node order. Bytes are those of the arena or
    of the feature maps alone (`maps_only`); `cost` gives the cost of a node."""

    def __init__(
        self,
        allocation: Allocation,
        cost: Callable[[Node], float],
        evaluations: Evaluations,
        maps_only: bool = False,
        is_one_pass: bool = False,
    ) -> None:
        self.evaluations, self.maps_only = evaluations, maps_only
        self.training = TrainingGraph(allocation, cost, maps_only, is_one_pass)
        self.solver = Solver(self.training.steps)
        self._origins: dict[Node, int] = {}
        """For each node of a generated graph, the position of the original node that it
        executes."""

    def size(self, point: Point) -> int:
        """Return the bytes of a point: its feature maps if `maps_only` is set, else its arena."""
        return point.bytes(self.maps_only)

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
        found = self.evaluations.reordered(graph)
        if found is graph:
            return schedule
        own = self.training.graph.position
        positions = [self._origins[n] if n in self._origins else own[n] for n in found.nodes]
        return self.solver.measured(self.training.without_views(positions))

    def packed_within(self, schedule: Schedule, budget: int) -> Point | None:
        """Return the point of the fastest schedule found whose packed size is within a budget, or
        None. The search starts from `schedule`."""
        starts, capacity = self._starts(schedule, budget)
        best, above = None, 0
        for number in range(MOST_CORRECTIONS):
            if number >= CORRECTIONS and best is not None:
                break
            count = CORRECTIONS if number < CORRECTIONS else MOST_CORRECTIONS
            self.evaluations.trials.part = f"schedule {number + 1} of at most {count}"
            found = self.solver.best(starts, int(capacity))
            if found is None:
                break
            starts = [found.sequence, *starts[1:]]
            size, point = self._packed(found, budget)
            if point is None:
                above += 1  # packing is not monotone, so the corrections grow
                capacity *= min(budget / size, TIGHTER) ** above
                continue
            above, best = 0, faster(best, point)
            if size >= (1 - CLOSE) * budget or found.extra_cost <= 0:
                break
            capacity *= budget / size
        return best

    def _starts(self, schedule: Schedule, budget: int) -> tuple[list[list[int]], float]:
        """Return reordered schedules, and the capacity at which the arena of the first may reach
        the budget."""
        if self.maps_only:
            return [schedule.sequence], budget
        start = self.ordered(schedule)
        starts = [start.sequence]
        live = self.evaluations.allocation_of(self.graph_of(start)).live_bytes
        if self.extra_time(start) > HARD:
            saved = schedule.peak_bytes / max(start.peak_bytes, 1)
            larger = self.solver.schedule(int(LARGER * saved * budget))
            if larger is not None:
                starts.append(self.ordered(larger).sequence)
        return starts, budget * start.peak_bytes / max(live, 1)

    def _packed(self, schedule: Schedule, budget: int) -> tuple[int, Point | None]:
        """Return the bytes of a schedule, and its point if they fit; pack it only if its live bytes
        fit."""
        graph = self.graph_of(schedule)
        allocation = self.evaluations.allocation_of(graph)
        if not self.maps_only and allocation.live_bytes > budget:
            return allocation.live_bytes, None
        point = self.evaluations.point(graph)
        size = self.size(point)
        return size, point if size <= budget else None

    def least(self) -> Point:
        """Return the point of the smallest arena found, at any cost."""
        solver = self.solver
        start = solver.least if self.maps_only else self.ordered(solver.least)
        found = [start]
        lowest = solver.lowest(start, lambda capacity: self._fitted(start, capacity))
        for number in range(LEAST_TRIALS):
            capacity = lowest.peak_bytes * (1 + 0.005 * number)
            improved = solver.best([lowest.sequence, start.sequence], int(capacity))
            if improved is not None:
                found.append(improved)
        points = [self.evaluations.point(self.graph_of(each)) for each in found]
        return self.evaluations.best(min(points, key=self.size).graph, self.maps_only)

    def _fitted(self, start: Schedule, capacity: int) -> Schedule | None:
        found = self.solver.fitted(start.sequence, capacity)
        return None if found is None else self.solver.measured(found)

    def point(self, schedule: Schedule) -> Point:
        """Return the point of a schedule, in a better node order if that has a smaller arena."""
        return self.evaluations.best(self.graph_of(schedule), self.maps_only)
