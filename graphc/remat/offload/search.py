"""Joint planning of recomputation and copies to the host, by the capacity of recomputation.

A schedule for the budget B is built in two steps:

    1. a schedule with recomputation alone for a capacity C ≥ B, which the caller provides
    2. copies to the host of enough values for a peak of B (gaps.py), placed with few stalls
       (placement.py)

At C = B nothing is copied, at the peak without recomputation nothing is recomputed. With C, the
seconds of recomputation fall and those of stalls rise. Without stalls, a link of rate r copies at
most r W bytes during the W seconds before the peak. So capacities B + φ r W are tried for several
factors φ, then those between the best one and its neighbors. The lower bound has the same form
(lower_bound.py): recomputation within B + r W.

Last, local search at the best capacity: one value after the other is banned from the host, and the
plan is kept if it is faster. This finds values whose copies fit the lanes better, since the choice
of gaps ignores sizes. Plans are compared by the clocks of events.py, so none is slower than
recomputation alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from graphc.ir.host_link import HostLink
from graphc.remat.offload.beside_copies import evicted_beside
from graphc.remat.offload.events import Event, events_of, seconds_of
from graphc.remat.offload.gaps import Gap, chosen, gaps_of
from graphc.remat.offload.placement import placed, unstalled
from graphc.scheduling.problem import Problem

PARTS = (1.0, 0.75, 1.2, 0.5, 0.9, 1.6, 0.25, 2.5)
"""Capacities tried first above the budget, as fractions of the bytes that the link can copy before
the peak. Time may end before all are tried, so the most promising ones come first."""

REFINEMENTS = 4
"""Maximum number of times that the capacities beside the best one are tried."""

FEW_PARTS, FEW_REFINEMENTS = (1.0, 0.75, 0.5), 2
"""The same for large steps, whose schedules take most of the time of planning."""

EFFORT, MOST = 200_000, 200
"""Limits of the placements of the local search, as a product with the number of steps and
absolutely."""

PRECISION = 1e-9

Schedules = Callable[[int], Iterable[Sequence[int]]]
"""Returns schedules with recomputation alone for a capacity in bytes."""


@dataclass(frozen=True, slots=True)
class OffloadPlan:
    """A schedule with copies to the host, its seconds, and those of its steps alone."""

    events: list[Event]
    seconds: float
    run_seconds: float

    @property
    def stalls(self) -> float:
        """The seconds during which computation waits for copies."""
        return max(0.0, self.seconds - self.run_seconds)


@dataclass(frozen=True, slots=True)
class Base:
    """A schedule with recomputation alone, its live bytes by position, and its gaps."""

    sequence: Sequence[int]
    levels: np.ndarray
    gaps: list[Gap]


class OffloadSearch:
    """A search for the fastest plan within a budget of bytes.

    `schedules` returns schedules without copies for a capacity. `resident` values are never copied.
    The search ends at `bound` seconds, or after `limit` seconds, but tries at least until a plan
    fits. With `adds_recomputation`, more may be recomputed than in `schedules`, instead of stalls.

    `tried` has the seconds by capacity, infinite without a plan. `best_base` is the schedule whose
    copies `best` has.
    """

    def __init__(
        self,
        steps: Problem,
        link: HostLink,
        budget: int,
        schedules: Schedules,
        resident: frozenset[int],
        bound: float = 0.0,
        limit: float = float("inf"),
        adds_recomputation: bool = True,
        parts: Sequence[float] = PARTS,
        refinements: int = REFINEMENTS,
        origin: int | None = None,
        improved: int = 1,
    ) -> None:
        self.steps, self.link, self.budget = steps, link, budget
        self.schedules, self.resident, self.bound = schedules, resident, bound
        self.adds_recomputation = adds_recomputation
        self.parts, self.refinements = parts, refinements
        self.origin = budget if origin is None else origin
        self.improved = improved
        self.found: list[tuple[float, int, Base, OffloadPlan]] = []
        """Plans found, with their seconds, numbers and schedules."""
        self.deadline = time.perf_counter() + limit
        self.best: OffloadPlan | None = None
        self.best_base: Base | None = None
        self.best_capacity = budget
        self.banned: frozenset[Gap] = frozenset()
        self.tried: dict[int, float] = {}
        self.seen: set[tuple[int, ...]] = set()

    def run(self, start: Sequence[int] | None) -> OffloadPlan | None:
        """Return the fastest plan found, or None if none fits. It is at least as fast as `start`, a
        schedule without copies that fits."""
        if start is not None:
            self.best = self.measured(events_of(start))
            self.tried[self.budget] = self.best.seconds
        for capacity in self.first_capacities():
            if self.is_optimal or (self.best_base and self.is_late):
                break
            self.at(capacity)
        for _ in range(self.refinements):
            if not self.refined():
                break
        for _, _, base, plan in sorted(self.found, key=lambda each: each[:2])[: self.improved]:
            self.improve(base, plan)
        return self.best

    @property
    def is_late(self) -> bool:
        return time.perf_counter() > self.deadline

    @property
    def is_optimal(self) -> bool:
        return self.best is not None and self.best.seconds <= self.bound * (1 + PRECISION)

    def measured(self, events: list[Event]) -> OffloadPlan:
        """Return the plan of events, with its seconds."""
        run_seconds = self.steps.cost_of(each.number for each in events if each.kind == "run")
        return OffloadPlan(events, seconds_of(self.steps, self.link, events), run_seconds)

    def base(self, sequence: Sequence[int]) -> Base:
        """Return a schedule with its live bytes and gaps."""
        gaps = gaps_of(self.steps, sequence, self.resident)
        return Base(sequence, self.levels(sequence), gaps)

    def first_capacities(self) -> list[int]:
        """Return capacities above the origin, the peak without recomputation, and the origin."""
        levels = self.levels(range(len(self.steps)))
        peak = int(levels.max())
        reach = self.link.to_host * self.steps.cost_of(range(int(levels.argmax()) + 1))
        if self.link.host_bytes is not None:
            reach = min(reach, self.link.host_bytes)
        found = [self.origin + int(part * min(reach, peak)) for part in self.parts]
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
            if self.is_optimal or self.is_late:
                return False
            self.at(capacity)
        return bool(new)

    def at(self, capacity: int) -> None:
        """Plan for one capacity of recomputation."""
        for sequence in self.schedules(capacity):
            if tuple(sequence) not in self.seen:
                self.seen.add(tuple(sequence))
                base = self.base(sequence)
                found = self.planned(base, self.budget)
                self.record(capacity, base, found)
                stalls = found is None or found.stalls > 0
                beside = self.beside(base) if stalls and self.adds_recomputation else None
                if beside is not None:
                    self.record(capacity, beside, self.planned(beside, self.budget))
        self.tried.setdefault(capacity, float("inf"))

    def record(self, capacity: int, base: Base, found: OffloadPlan | None) -> None:
        """Record the plan of a schedule for a capacity."""
        if found is not None:
            self.tried[capacity] = min(found.seconds, self.tried.get(capacity, found.seconds))
            self.found.append((found.seconds, len(self.found), base, found))
            if self.take(found, base):
                self.best_capacity = capacity

    def beside(self, base: Base) -> Base | None:
        """Return a schedule with more recomputation instead of stalls; its gaps are those of the
        values that are copied without stalls."""
        excess = base.levels - self.budget
        gaps, _ = chosen(base.gaps, self.steps.bytes, excess, self.link.host_bytes)
        copies = unstalled(self.steps, self.link, base.sequence, gaps)
        found = evicted_beside(self.steps, base.sequence, copies, self.budget)
        if found is None:
            return None
        copied = {copy.gap.value for copy in copies}
        again = self.base(found)
        return Base(found, again.levels, [gap for gap in again.gaps if gap.value in copied])

    def take(self, found: OffloadPlan, base: Base, banned: frozenset[Gap] = frozenset()) -> bool:
        """Keep a plan if it is the fastest so far."""
        is_faster = self.best is None or _is_faster(found, self.best)
        if is_faster:
            self.best, self.best_base, self.banned = found, base, banned
        return is_faster

    def planned(
        self, base: Base, budget: int, banned: frozenset[Gap] = frozenset()
    ) -> OffloadPlan | None:
        """Return a plan for a schedule within `budget` bytes, in which the `banned` gaps stay on
        the device; None if copies do not suffice."""
        gaps = [gap for gap in base.gaps if gap not in banned]
        size, excess = self.steps.bytes, base.levels - budget
        found, is_enough = chosen(gaps, size, excess, self.link.host_bytes)
        if not is_enough:
            return None
        spare = -excess
        for gap in found:
            spare[gap.start + 1 : gap.stop] += size[gap.value]
        return self.measured(placed(self.steps, self.link, base.sequence, found, spare))

    def again(self, budget: int) -> OffloadPlan | None:
        """Return a plan for the best schedule within another number of bytes, or None."""
        if self.best_base is None:
            return None
        return self.planned(self.best_base, budget, self.banned)

    def improve(self, base: Base, plan: OffloadPlan) -> None:
        """Ban one gap after the other of a schedule from the host, and keep what is faster."""
        left = min(MOST, EFFORT // len(self.steps))
        banned: frozenset[Gap] = frozenset()
        improves = True
        while improves:
            improves = False
            for gap in used(base, plan, banned):
                if not left or self.is_optimal or self.is_late:
                    return
                left -= 1
                found = self.planned(base, self.budget, banned | {gap})
                if found is not None and _is_faster(found, plan):
                    plan, banned, improves = found, banned | {gap}, True
                    self.take(plan, base, banned)

    def levels(self, sequence: Iterable[int]) -> np.ndarray:
        """Return the live bytes by position of a schedule, with those that are always live."""
        return self.steps.levels(list(sequence)) + self.steps.fixed_bytes


def used(base: Base, plan: OffloadPlan, banned: frozenset[Gap]) -> list[Gap]:
    """Return the gaps of the values on the host in a plan of a schedule."""
    copied = {event.number for event in plan.events if event.kind == "out"}
    return [gap for gap in base.gaps if gap.value in copied and gap not in banned]


def _is_faster(found: OffloadPlan, best: OffloadPlan) -> bool:
    return found.seconds < best.seconds * (1 - PRECISION)
