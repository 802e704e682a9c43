"""Sequences of a joint graph for a budget of bytes, or of time; monotone by construction.

Limits of live bytes stand at places that no budget moves, with p the peak of running all once:

    coarse    p · 2 ^ (-i / 8),    i = 0, 1, 2, ... as long as there are plans
    fine      eight between two coarse ones

A budget may take whatever fits of the coarse limits' plans and of the planner's least one, and of
those of the fine limits in its own gap. Of the latter count only plans whose peak is in the gap and
that are no cheaper than all that fits into the gap's upper end. So what a larger budget may take is
never dearer, and what a smaller one may not take is larger than that budget: a larger budget never
has a slower plan and, as the smallest of equal cost is taken, a smaller one never a higher peak.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from graphc.remat.lower_bound import extra_cost, least_bytes
from graphc.remat.solver import Schedule, Solver
from graphc.remat.problem import Problem

COARSE, FINE = 8, 8
"""Limits per factor of 2, and how many of theirs lie between two."""


class BudgetPlanner:
    """Plans of one joint graph for any budget; each limit is planned once.

    `kept_for` has by step a value that it reads, and that is there only if the step is repeated.
    """

    def __init__(self, steps: Problem, kept_for: Mapping[int, int] | None = None) -> None:
        self.steps, self.kept_for = steps, kept_for or {}
        self._planner = Solver(steps)
        self._known: dict[int, Schedule | None] = {}

    @cached_property
    def seconds(self) -> float:
        """What running each step once takes."""
        return self.steps.cost_of(range(len(self.steps)))

    @cached_property
    def once(self) -> Schedule:
        """The plan that repeats nothing."""
        return self._counted(self._planner.once)

    @cached_property
    def least(self) -> Schedule:
        """The plan of the fewest bytes found at any price: for a byte less, none is found."""
        found = min(self._always, key=lambda plan: (plan.peak_bytes, plan.extra_cost))
        while (smaller := self.within(found.peak_bytes - 1)) is not None:
            found = smaller
        return found

    @cached_property
    def bound_bytes(self) -> int:
        """Bytes that no sequence can go below."""
        return least_bytes(self._least_steps)

    def bound_cost(self, budget: int) -> float:
        """Seconds of repeats that every sequence within a budget takes at least."""
        return extra_cost(self._least_steps, budget)

    def within(self, budget: int) -> Schedule | None:
        """The cheapest plan found of at most `budget` bytes, or None."""
        return _cheapest(self._candidates(budget))

    def costing(self, seconds: float) -> Schedule:
        """The plan of the fewest bytes found whose repeats take at most so long."""
        known = [plan for plan in (*self._always, self.least) if plan.extra_cost <= seconds]
        found = min(known, key=lambda plan: (plan.peak_bytes, plan.extra_cost))
        while (smaller := self.within(found.peak_bytes - 1)) is not None:
            if smaller.extra_cost > seconds:
                break
            found = smaller
        return found

    @cached_property
    def knee(self) -> Schedule:
        """The plan where bytes against time bends: the farthest from the chord of both ends."""
        plans = self.frontier
        most, least = plans[0], plans[-1]
        width, height = most.peak_bytes - least.peak_bytes, least.extra_cost - most.extra_cost
        return max(
            plans,
            key=lambda plan: (
                (most.peak_bytes - plan.peak_bytes) * height
                - (plan.extra_cost - most.extra_cost) * width
            ),
        )

    @cached_property
    def frontier(self) -> list[Schedule]:
        """Plans from the most bytes to the fewest, those left out that another is no worse than."""
        kept: list[Schedule] = []
        plans = sorted((*self._always, self.least), key=lambda p: (p.extra_cost, p.peak_bytes))
        for plan in plans:
            if not kept or plan.peak_bytes < kept[-1].peak_bytes:
                kept.append(plan)
        return kept

    def _candidates(self, budget: int) -> Iterator[Schedule]:
        """What a budget may take."""
        yield from (plan for plan in self._always if plan.peak_bytes <= budget)
        if not 0 < budget < self.once.peak_bytes:
            return
        gap = next(i for i in itertools.count() if self._limit(FINE * (i + 1)) <= budget)
        upper, lower = self._limit(FINE * gap), self._limit(FINE * (gap + 1))
        cheapest = _cheapest(plan for plan in self._always if plan.peak_bytes <= upper)
        floor = 0.0 if cheapest is None else cheapest.extra_cost
        for number in range(FINE * gap + 1, FINE * (gap + 1)):
            plan = self._fine(number)
            if plan is not None and lower < plan.peak_bytes <= budget and plan.extra_cost >= floor:
                yield plan

    @cached_property
    def _always(self) -> list[Schedule]:
        """What every budget may take that it fits into."""
        return [*self._coarse, self._counted(self._planner.least())]

    @cached_property
    def _coarse(self) -> list[Schedule]:
        """The plans of the coarse limits, as far as they reach."""
        plans: list[Schedule] = []
        for index in itertools.count():
            plan = self._fine(FINE * index)
            if plan is None:
                return plans
            plans.append(plan)
        raise AssertionError("limits end where no plan fits")

    def _limit(self, number: int) -> int:
        return int(self.once.peak_bytes * 2.0 ** (-number / (COARSE * FINE)))

    def _fine(self, number: int) -> Schedule | None:
        limit = self._limit(number)
        if limit not in self._known:
            self._known[limit] = self._planned(limit)
        return self._known[limit]

    def _planned(self, limit: int) -> Schedule | None:
        if limit >= self.once.peak_bytes:
            return self.once
        found = self._planner.plan_for(limit)
        return None if found is None else self._counted(found)

    def _counted(self, plan: Schedule) -> Schedule:
        """A plan whose peak leaves out what is not there, which planning counts all the same."""
        idle = unkept(plan.sequence, self.kept_for)
        levels = self.steps.profile(plan.sequence, self.steps.held, idle)
        return replace(plan, peak_bytes=self.steps.fixed_bytes + max(levels, default=0))

    @cached_property
    def _least_steps(self) -> Problem:
        """Steps in which nothing is kept for repeats: no plan needs less than they do."""
        kept = set(self.kept_for.values())
        sizes = enumerate(self.steps.bytes)
        return replace(
            self.steps, bytes=tuple(0 if value in kept else size for value, size in sizes)
        )


def unkept(sequence: Sequence[int], kept_for: Mapping[int, int]) -> frozenset[int]:
    """Values that are there only for repeats of steps which a sequence does not repeat."""
    counts = Counter(sequence)
    return frozenset(value for step, value in kept_for.items() if counts[step] < 2)


def _cheapest(plans: Iterator[Schedule]) -> Schedule | None:
    return min(plans, key=lambda plan: (plan.extra_cost, plan.peak_bytes), default=None)
