"""Schedules of a joint graph for a budget of bytes or an amount of time.

torch's allocator places each tensor separately, so a budget bounds live bytes and is the capacity
of the solver. A tensor that exists only to recompute a step, such as the state of a generator,
takes no bytes in a schedule that executes the step once.

The schedule of an earlier plan is a candidate for new sizes (`reused`): these usually change bytes
and times, but not which steps read which values. It replaces the solver if it serves the goal as
well as it did before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from graphc.planner.goals import between, knee_of, undominated
from graphc.planner.host_link import HostLink
from graphc.planner.problem import Problem
from graphc.planner.recompute.lower_bound import least_bytes, least_extra_cost
from graphc.planner.recompute.solver import Schedule, Solver
from graphc.torch.budget.plan.copies import OffloadGoal, offloaded

POINTS = 24
"""Number of capacities on a frontier, including both ends."""


class TorchPlanner:
    """Schedules of one joint graph for any budget; each capacity is solved once.

    `kept_for` maps a step to a tensor that it reads and that exists only if the step is recomputed.
    With `is_fused`, a step without a cost takes no time because its kernel belongs to another step.
    """

    def __init__(
        self,
        problem: Problem,
        kept_for: Mapping[int, int] | None = None,
        is_fused: bool = False,
    ) -> None:
        self.problem, self.kept_for, self.is_fused = problem, kept_for or {}, is_fused
        self.solver = Solver(problem)

    @property
    def seconds(self) -> float:
        """The time of executing each step once."""
        return self.solver.cost

    @cached_property
    def no_recompute(self) -> Schedule:
        """The schedule that executes each step once."""
        return self._counted(self.solver.no_recompute)

    @cached_property
    def fastest(self) -> Schedule:
        """The schedule without recomputation; of fused steps, the smallest that takes no time."""
        return self.costing(0.0) if self.is_fused else self.no_recompute

    @cached_property
    def least(self) -> Schedule:
        """The schedule with the fewest bytes found, at any cost."""
        return self._counted(self.solver.least)

    @cached_property
    def bound_bytes(self) -> int:
        """A lower bound on the peak of every schedule."""
        return least_bytes(self._bounding)

    def bound_cost(self, budget: int, link: HostLink | None = None) -> float:
        """Return a lower bound on the recomputation time of every schedule within a budget; with a
        link to the host, on the time of recomputation and of stalls."""
        return least_extra_cost(self._bounding, budget, link)

    def within(self, budget: int) -> Schedule | None:
        """Return the fastest schedule found of at most `budget` bytes, or None."""
        if self.fastest.peak_bytes <= budget:
            return self.fastest
        found = self.solver.schedule(budget)
        if found is not None:
            return self._counted(found)
        return self.least if self.least.peak_bytes <= budget else None

    def with_copies(self, budget: int, goal: OffloadGoal, boundary: int) -> Schedule | None:
        """Return the fastest schedule found of at most `budget` bytes that may also copy values to
        the host, or None.

        It is never slower than that of `within`. `boundary` is the step of the forward/backward
        boundary.
        """
        alone = self.within(budget)
        if (alone is not None and not alone.extra_cost) or budget < self.bound_bytes:
            return alone

        def schedules(capacity: int) -> Iterator[Sequence[int]]:
            found = self.solver.schedule(capacity)
            if found is not None:
                yield found.sequence

        found = offloaded(
            self.problem,
            boundary,
            budget,
            goal,
            schedules,
            None if alone is None else alone.sequence,
            lambda sequence: unkept(sequence, self.kept_for),
        )
        return min(filter(None, (alone, found)), key=lambda plan: plan.extra_cost, default=None)

    def of(self, sequence: Sequence[int]) -> Schedule:
        """Return the schedule of a sequence."""
        return self._counted(self.solver.measured(list(sequence)))

    def fitted(self, sequence: Sequence[int], budget: int) -> Schedule | None:
        """Return the best schedule found near a sequence within a budget, or None."""
        found = self.solver.best([sequence], budget)
        return None if found is None else self._counted(found)

    def costing(self, seconds: float) -> Schedule:
        """Return the schedule with the fewest bytes found within `seconds` of recomputation."""
        found = self._counted(self.solver.least_costing(seconds))
        return min(found, self.no_recompute, key=lambda schedule: schedule.peak_bytes)

    @cached_property
    def knee(self) -> Schedule:
        """The schedule at the knee of the trade-off curve of bytes and time."""
        schedules = {each.peak_bytes: each for each in reversed(self.frontier)}
        curve = [(peak, each.extra_cost) for peak, each in sorted(schedules.items())[::-1]]
        return schedules[knee_of(curve, self.no_recompute.peak_bytes)]

    @cached_property
    def frontier(self) -> list[Schedule]:
        """The Pareto-optimal schedules found, from the most bytes to the fewest."""
        most, least = self.no_recompute.peak_bytes, self.least.peak_bytes
        found = [self.no_recompute, self.least]
        found += filter(None, (self.within(b) for b in between(least, most, POINTS)))
        return undominated(found, lambda each: (each.peak_bytes, each.extra_cost))[::-1]

    def _counted(self, schedule: Schedule) -> Schedule:
        """Return the schedule with its peak reduced by tensors that do not exist in it."""
        idle = unkept(schedule.sequence, self.kept_for)
        levels = self.problem.profile(schedule.sequence, self.problem.live_out, idle)
        return replace(schedule, peak_bytes=self.problem.fixed_bytes + max(levels, default=0))

    @cached_property
    def _bounding(self) -> Problem:
        """The problem without tensors kept for recomputation, a relaxation for lower bounds."""
        kept = set(self.kept_for.values())
        sizes = enumerate(self.problem.bytes)
        return replace(
            self.problem, bytes=tuple(0 if value in kept else size for value, size in sizes)
        )


def unkept(sequence: Sequence[int], kept_for: Mapping[int, int]) -> frozenset[int]:
    """Return the tensors that would exist only to recompute steps that run once."""
    counts = Counter(sequence)
    return frozenset(value for step, value in kept_for.items() if counts[step] < 2)


NEAREST = 2
"""Number of earlier plans tried: those with the most similar peaks without recomputation."""

BYTES_SLACK, TIME_SLACK = 1.02, 1.15
"""Factors by which relative bytes and times may exceed those of the earlier plan.

Measured times of small ops vary by about a tenth.
"""


class Candidate(NamedTuple):
    """A schedule and the planner of its sizes."""

    planner: TorchPlanner
    plan: Schedule

    @property
    def bytes_ratio(self) -> float:
        """The bytes beside the resident ones, relative to those without recomputation."""
        fixed, whole = self.planner.problem.fixed_bytes, self.planner.no_recompute.peak_bytes
        return (self.plan.peak_bytes - fixed) / max(whole - fixed, 1)

    @property
    def time_ratio(self) -> float:
        """The recomputation time, relative to a step without recomputation."""
        return self.plan.extra_cost / (self.planner.seconds or 1.0)


def reused(
    planner: TorchPlanner,
    budget: int | None,
    max_extra_time: float | None,
    earlier: Iterable[Candidate],
) -> Schedule | None:
    """Return an earlier plan's schedule for the sizes of `planner`, or None if it is worse.

    It must keep to the budget of bytes, if there is one, and to `max_extra_time`, a fraction.
    Without a budget it must save as many bytes as before, relative to the step. `earlier` should
    be plans of the solver for the same goal, so that successive reuse loses no more than once.
    """
    if budget is not None and planner.no_recompute.peak_bytes <= budget:
        return None  # the solver returns at once
    for each in _nearest(planner, earlier):
        sequence = each.plan.sequence
        found = planner.of(sequence) if budget is None else planner.fitted(sequence, budget)
        if found is None:
            continue
        now = Candidate(planner, found)
        most = TIME_SLACK * each.time_ratio if max_extra_time is None else max_extra_time
        saves = budget is not None or now.bytes_ratio <= BYTES_SLACK * each.bytes_ratio
        if saves and now.time_ratio <= most:
            return found
    return None


def _nearest(planner: TorchPlanner, earlier: Iterable[Candidate]) -> list[Candidate]:
    size, structure = planner.no_recompute.peak_bytes, _structure(planner.problem)
    same = (each for each in earlier if _structure(each.planner.problem) == structure)
    return sorted(same, key=lambda e: abs(e.planner.no_recompute.peak_bytes - size))[:NEAREST]


def _structure(problem: Problem) -> tuple[object, ...]:
    """Return the fields of a problem that determine which sequences are valid."""
    return (
        problem.inputs,
        problem.outputs,
        problem.overwrites,
        problem.once,
        problem.live_out,
        problem.runs,
    )
