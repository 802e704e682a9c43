"""Joint planning of recomputation and copies to the host.

A schedule for the budget B is built in two steps:

    1. a schedule with recomputation alone for a capacity C ≥ B, which the caller provides
    2. copies to the host of enough values for a peak of B (plans.py)

At C = B nothing is copied, at the peak without recomputation nothing is recomputed. With C, the
seconds of recomputation fall and those of stalls rise. Without stalls, a link of rate r copies at
most r W bytes during the W seconds before the peak. So capacities B + φ r W are tried for several
factors φ, then those between the best one and its neighbors. The lower bound has the same form
(lower_bound.py): recomputation within B + r W.

Last, local search from the fastest plans that stall. One copy after the other is left out. The
bytes missing then are those of other values that are copied, or that eviction recomputes beside the
remaining copies. Both find values whose copies fit the lanes better, since the choice of gaps
ignores sizes. Where recomputation alone does not fit, the second removes most stalls: large
capacities leave many values to the copies, and few of those must be copied.

Plans are compared by the clocks of events.py, so none is slower than recomputation alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from graphc.planner.copies.gaps import Gap
from graphc.planner.copies.plans import PRECISION, Base, Copying, OffloadPlan
from graphc.planner.host_link import HostLink
from graphc.planner.problem import Problem

PARTS, REFINEMENTS = (1.0, 0.75, 0.5), 2
"""Capacities tried first above the budget, as fractions of the bytes that the link can copy before
the peak, and the maximum number of times that the capacities beside the best one are tried. Their
schedules take most of the time of planning."""

EFFORT, MOST = 400_000, 200
"""Limits of the trials of local search: of all starts, as a product with the number of steps, and
of each start."""

EVICTIONS = 5
"""Number of trials that one with eviction counts for."""

IMPROVED = 8
"""Number of plans from which local search starts."""

Schedules = Callable[[int], Iterable[Sequence[int]]]
"""Returns schedules with recomputation alone for a capacity in bytes."""


class OffloadSearch:
    """A search for the fastest plan within a budget of bytes.

    `schedules` returns schedules without copies for a capacity. Capacities are counted from
    `origin`, by default the budget. `resident` values are never copied. The search ends at `bound`
    seconds.

    `tried` has the seconds by capacity, infinite without a plan.
    """

    def __init__(
        self,
        steps: Problem,
        link: HostLink,
        budget: int,
        schedules: Schedules,
        resident: frozenset[int],
        bound: float = 0.0,
        origin: int | None = None,
    ) -> None:
        self.steps, self.link, self.budget = steps, link, budget
        self.copying = Copying(steps, link, resident)
        self.schedules, self.bound = schedules, bound
        self.origin = budget if origin is None else origin
        self.found: list[tuple[float, int, Base, OffloadPlan]] = []
        """Plans with their seconds, numbers and schedules."""
        self.best: OffloadPlan | None = None
        self.best_capacity = budget
        self.tried: dict[int, float] = {}
        self.trials = EFFORT // max(1, len(steps))
        self.seen: set[tuple[int, ...]] = set()

    def run(self, start: Sequence[int] | None) -> OffloadPlan | None:
        """Return the fastest plan found, or None if none fits. It is at least as fast as `start`, a
        schedule without copies that fits."""
        if start is not None:
            self.best = self.copying.measured(start)
            self.tried[self.budget] = self.best.seconds
        for capacity in self.first_capacities():
            if self.is_optimal:
                break
            self.at(capacity)
        for _ in range(REFINEMENTS):
            if not self.refined():
                break
        for base, plan in self.fastest():
            self.improve(base, plan)
        return self.best

    @property
    def is_optimal(self) -> bool:
        return self.best is not None and self.best.seconds <= self.bound * (1 + PRECISION)

    def is_new(self, sequence: Sequence[int]) -> bool:
        """Return True for the first time that a schedule is asked for."""
        key = tuple(sequence)
        is_new = key not in self.seen
        self.seen.add(key)
        return is_new

    def first_capacities(self) -> list[int]:
        """Return capacities above the origin, the peak without recomputation, and the origin."""
        levels = self.copying.levels(range(len(self.steps)))
        peak = int(levels.max())
        reach = self.link.to_host * self.steps.cost_of(range(int(levels.argmax()) + 1))
        if self.link.host_bytes is not None:
            reach = min(reach, self.link.host_bytes)
        found = [self.origin + int(part * min(reach, peak)) for part in PARTS]
        found = [min(capacity, peak) for capacity in (*found, peak)]
        return list(dict.fromkeys([*found, self.origin]))

    def refined(self) -> bool:
        """Try the capacities between the best one and its neighbors; return whether any was new."""
        known = sorted(self.tried)
        at = known.index(self.best_capacity) if self.best_capacity in self.tried else 0
        middles = [
            (self.best_capacity + known[index]) // 2
            for index in (at - 1, at + 1)
            if 0 <= index < len(known)
        ]
        new = [capacity for capacity in middles if capacity not in self.tried]
        for capacity in new:
            if self.is_optimal:
                return False
            self.at(capacity)
        return bool(new)

    def at(self, capacity: int) -> None:
        """Plan for one capacity of recomputation."""
        least = min(self.tried.values(), default=float("inf"))
        for sequence in self.schedules(capacity):
            if self.is_new(sequence):
                base = self.copying.base(sequence)
                plan = self.copying.planned(base, self.budget)
                seconds = self.record(base, plan)
                self.tried[capacity] = min(seconds, self.tried.get(capacity, seconds))
        if self.tried.setdefault(capacity, float("inf")) < least:
            self.best_capacity = capacity

    def record(self, base: Base, plan: OffloadPlan | None) -> float:
        """Record the plan of a schedule, and return its seconds, infinite without a plan."""
        if plan is None:
            return float("inf")
        self.found.append((plan.seconds, len(self.found), base, plan))
        self.take(plan)
        return plan.seconds

    def take(self, plan: OffloadPlan) -> None:
        """Keep a plan if it is the fastest so far."""
        if plan.is_faster(self.best):
            self.best = plan

    def fastest(self) -> list[tuple[Base, OffloadPlan]]:
        """Return the fastest plans found, without those that recompute as much as the best plan
        takes: leaving out copies cannot make them faster."""
        distinct: dict[float, tuple[Base, OffloadPlan]] = {}
        for seconds, _, base, plan in sorted(self.found, key=lambda each: each[:2]):
            if self.best is not None and plan.run_seconds < self.best.seconds:
                distinct.setdefault(seconds, (base, plan))
        return list(distinct.values())[:IMPROVED]

    def improve(self, base: Base, plan: OffloadPlan) -> None:
        """Leave out one copy after the other of a plan, and keep what is faster."""
        stop = max(0, self.trials - MOST)
        banned: frozenset[Gap] = frozenset()
        improves = True
        while improves and plan.stalls:
            improves = False
            for copy in sorted(plan.copies, key=lambda copy: -self.steps.bytes[copy.gap.value]):
                if self.trials <= stop or self.is_optimal:
                    return
                self.trials -= 1
                without = banned | {copy.gap}
                found = self.copying.planned(base, self.budget, without)
                if found is not None and found.is_faster(plan):
                    plan, banned, improves = found, without, True
                else:
                    self.trials -= EVICTIONS
                    other = self.copying.replaced(base, plan, copy, self.budget)
                    if other is not None and other[1].is_faster(plan):
                        (base, plan), banned, improves = other, frozenset(), True
                if improves:
                    self.take(plan)
                    break
