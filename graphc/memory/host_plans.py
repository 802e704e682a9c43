"""Packed plans with copies to host memory for one training graph.

OffloadSearch bounds live bytes of steps; a budget bounds the packed arena. The two differ by
packing losses and by parts inside concatenations. So the capacity of a search is corrected by the
arena of the plan found, as in search.py, until the arena fits and leaves little unused. If the
capacity is nearly right, the copies of the best schedule are planned again for it; otherwise, the
search is repeated. Schedules with recomputation alone are cached, as all searches ask for the same
ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from graphc.memory.copies import with_copies
from graphc.memory.order.place_updates import place_updates
from graphc.memory.points import Point, faster
from graphc.memory.search import Search
from graphc.planner.copies.plans import OffloadPlan
from graphc.planner.copies.search import OffloadSearch
from graphc.planner.goals import Capacity
from graphc.planner.host_link import HostLink
from graphc.plans.cost_model import recomputation

SEARCHES = 3
"""Maximum number of searches for one budget."""

WORTH = 0.0005
"""Extra time, as a fraction of a step, that a further plan must save to be packed."""


class HostPlans:
    """Plans of the graph of `search` with copies over `link`. Values that are live at the end, and
    values that no step computes, stay on the device."""

    def __init__(self, search: Search, link: HostLink) -> None:
        self.search, self.link = search, link
        self.on_host = (
            None if link.host_bytes is None else Capacity(link.host_bytes, link.host_bytes)
        )
        self.budget = 0
        self._known: dict[int, list[int] | None] = {}
        """Capacity → the schedule with recomputation alone, in a better node order."""
        self.steps = search.training.steps

    def within(self, budget: int, bound: float) -> Point | None:
        """Return the fastest packed plan found within `budget` bytes, or None.

        Its extra time includes stalls. The search ends at `bound`, an extra time that no plan is
        below.
        """
        self.budget = budget
        best: Point | None = None
        capacity = Capacity(budget, budget)
        for _ in range(SEARCHES):
            plan = self._searched(int(capacity.bytes), bound)
            if plan is None or (best is not None and not self._is_faster(plan, best)):
                break
            point = self._point(plan)
            size = point.allocation.live_bytes
            size = size if size > budget else point.arena_bytes
            if self._is_stored(point) and size <= budget:
                best = faster(best, point)
                if capacity.is_used(size) or point.extra_time <= bound:
                    break
            capacity.correct(size)
        return best

    def _is_faster(self, plan: OffloadPlan, best: Point) -> bool:
        """Return True if a plan is worth packing: it saves time that a user notices."""
        return self._extra_time(plan) < best.extra_time - WORTH

    def _extra_time(self, plan: OffloadPlan) -> float:
        return max(0.0, plan.seconds / (self.search.solver.cost or 1.0) - 1)

    def _is_stored(self, point: Point) -> bool:
        """Return True if the host's arena is within its limit. If not, lower the limit of later
        searches, which applies to live bytes."""
        if self.on_host is None:
            return True
        height = point.allocation.placed(point.strategy, on_host=True).height
        if height <= self.on_host.limit:
            return True
        self.on_host.correct(height)
        self.link = replace(self.link, host_bytes=int(self.on_host.bytes))
        return False

    def _searched(self, capacity: int, bound: float) -> OffloadPlan | None:
        """Return the fastest plan found of at most `capacity` live bytes, or None."""
        cost = self.search.solver.cost
        search = OffloadSearch(
            self.steps, self.link, capacity, self._schedules, self.search.training.resident,
            (1 + bound) * cost, self.budget,
        )  # fmt: skip
        return search.run(None)

    def _schedules(self, capacity: int) -> Iterator[list[int]]:
        if capacity not in self._known:
            found = self.search.solver.schedule(capacity)
            self._known[capacity] = None if found is None else self.search.ordered(found).sequence
        sequence = self._known[capacity]
        if sequence is not None:
            yield sequence

    def _point(self, plan: OffloadPlan) -> Point:
        search = self.search
        evaluations = search.evaluations
        graph = place_updates(with_copies(search.training, plan.events))
        extra_time = self._extra_time(plan)
        extra_flops = recomputation(graph, evaluations.costs).extra_flops_fraction
        found = Point(
            evaluations.allocation_of(graph), evaluations.strategy, extra_time, extra_flops
        )
        evaluations.trials.record(found)
        return found
