"""Schedules within a capacity, by eviction, filling and local search from several starting points.

For a capacity of M bytes the candidates are

    dp              the dynamic program over a chain of blocks (chain_dp.py), for M to 1.3 M
    no_recompute    every step once, where the program has no schedule

Each candidate is evicted until its peak is at most M (evict.py) and then filled, so that spare
capacity saves recomputation (fill.py). The cheapest is improved by iterated local search
(local_search.py).

The dynamic program looks far ahead, but rounds bytes to levels and assumes that forward passes are
narrow somewhere. Local search counts exact bytes on any graph, but makes one change at a time.
Either one alone loses several points of step time on some networks (docs/internals/planner.md).

Tables of the dynamic program are built for the free bytes without recomputation divided by 1, 2,
4, ... A capacity uses the smallest table that reaches it, and so at least half of its levels.

A schedule depends only on the problem and the capacity, never on earlier requests. The solver keeps
all of them, so one solver serves a search over capacities. Nothing here is proven optimal;
lower_bound.py gives the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from graphc.planner.problem import Problem
from graphc.planner.recompute.chain import Chain
from graphc.planner.recompute.chain_dp import FirstPass, Reruns, Spans
from graphc.planner.recompute.emission import emit
from graphc.planner.recompute.evict import evict
from graphc.planner.recompute.fill import fill
from graphc.planner.recompute.local_search import iterate
from graphc.planner.recompute.lower_bound import least_bytes

ABOVE = (1.0, 1.03, 1.06, 1.1, 1.15, 1.2, 1.3)
"""Capacities of the dynamic program, as multiples of the requested one."""

ATTEMPTS = 12
"""Maximum number of queries of the dynamic program; each has fewer free bytes than the last."""

RERUN_FROM = 0.05
"""Extra cost, as a fraction of a forward pass, above which ranges of a chain may be rerun."""

EFFORT = 15_000
"""Limit of the product of local search iterations, for one capacity, and steps of the problem."""

BISECTIONS = 7
"""Maximum number of capacities tried in a bisection for the fewest bytes."""

CURVE_POINTS = 24
"""Number of capacities of an estimated trade-off curve."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule: steps in order, some executed several times, with recompute cost and peak."""

    sequence: list[int]
    extra_cost: float
    peak_bytes: int


class Solver:
    """Solver of one problem, which caches the schedule of each capacity."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.no_recompute = self.measured(list(range(len(problem))))
        self.cost = problem.cost_of(range(len(problem)))
        """Cost of executing every step once."""
        self.floor = least_bytes(problem)
        """Lower bound on the peak bytes of every schedule."""
        self._tables: dict[tuple[int, int, bool], FirstPass] = {}
        self._schedules: dict[int, Schedule | None] = {}

    def schedule(self, capacity: int) -> Schedule | None:
        """Return the best schedule found whose peak is at most `capacity` bytes, or None."""
        if capacity >= self.no_recompute.peak_bytes:
            return self.no_recompute
        if capacity < self.floor:
            return None
        if capacity not in self._schedules:
            candidates = self._distinct(self._candidates(capacity))
            self._schedules[capacity] = self.best(candidates, capacity)
        return self._schedules[capacity]

    def best(self, candidates: Iterable[Sequence[int]], capacity: int) -> Schedule | None:
        """Evict and fill each candidate, and return the cheapest after local search; None if none
        fits."""
        found = [each for each in (self.fitted(c, capacity) for c in candidates) if each]
        best = min(found, key=self.problem.extra_cost, default=None)
        if best is None:
            return None
        return self.measured(iterate(self.problem, best, capacity, EFFORT))

    def fitted(self, sequence: Sequence[int], capacity: int) -> list[int] | None:
        """Evict until a sequence fits, then fill the spare capacity; return None if eviction
        fails."""
        shrunk = evict(self.problem, sequence, capacity)
        return None if shrunk is None else fill(self.problem, shrunk, capacity)

    def from_above(self, capacity: int, part: float) -> list[int] | None:
        """Return the sequence of the dynamic program for `part` times the capacity, evicted to the
        capacity and filled; None if there is none."""
        found = self._by_dp(int(part * capacity)) if self.spans else None
        return None if found is None else self.fitted(found, capacity)

    def measured(self, sequence: list[int]) -> Schedule:
        """Return the schedule of a sequence, with its recompute cost and peak bytes."""
        return Schedule(sequence, self.problem.extra_cost(sequence), self.problem.peak(sequence))

    @cached_property
    def least(self) -> Schedule:
        """The schedule of the fewest bytes found, at any cost."""
        best = self._least_of_dp() or self.no_recompute
        return self.lowest(best, self._any_within)

    def _any_within(self, capacity: int) -> Schedule | None:
        """Return the first candidate that eviction brings within the capacity, as a schedule, or
        None."""
        found = (evict(self.problem, each, capacity) for each in self._candidates(capacity))
        return next((self.measured(each) for each in found if each is not None), None)

    def least_costing(self, cost: float) -> Schedule:
        """Return the schedule of the fewest bytes found whose recompute cost is at most `cost`."""

        def affordable(capacity: int) -> Schedule | None:
            found = self.schedule(capacity)
            return found if found is not None and found.extra_cost <= cost else None

        return self.lowest(self.no_recompute, affordable)

    def lowest(self, best: Schedule, find: Callable[[int], Schedule | None]) -> Schedule:
        """Return the schedule of the least capacity at which `find` succeeds, by bisection from
        `best`."""
        low = self.floor
        for _ in range(BISECTIONS):
            if best.peak_bytes - low <= best.peak_bytes // 500:
                break
            capacity = (low + best.peak_bytes) // 2
            found = find(capacity)
            if found is None:
                low = capacity
            else:
                best = found
        return best

    def curve(self) -> list[tuple[int, float]]:
        """Estimate (bytes, extra cost) at decreasing capacities, by eviction and filling alone."""
        most = self.no_recompute.peak_bytes
        points = [(most, 0.0)]
        ratio = max(self.floor, 1) / max(most, 1)
        for number in range(1, CURVE_POINTS + 1):
            capacity = int(most * ratio ** (number / CURVE_POINTS))
            found = self.fitted(self.no_recompute.sequence, capacity)
            if found is None:
                break
            points.append((capacity, self.problem.extra_cost(found)))
        return points

    @cached_property
    def spans(self) -> list[Spans]:
        """Options of the dynamic program for each forward pass and its backward pass."""
        chains = [Chain(self.problem, run) for run in self.problem.runs]
        return [Spans(chain) for chain in chains if chain.useful]

    @cached_property
    def _forward_cost(self) -> float:
        return sum(self.problem.cost_of(spans.chain.useful) for spans in self.spans)

    def _candidates(self, capacity: int) -> Iterator[list[int]]:
        is_alone = True
        for part in ABOVE if self.spans else ():
            if (sequence := self._by_dp(int(part * capacity))) is not None:
                is_alone = False
                yield sequence
        if is_alone:
            yield self.no_recompute.sequence

    def _distinct(self, sequences: Iterable[list[int]]) -> list[list[int]]:
        found: list[list[int]] = []
        for sequence in sequences:
            if sequence not in found:
                found.append(sequence)
        return found

    def _by_dp(self, capacity: int) -> list[int] | None:
        """Return the sequence of the dynamic program, within the capacity if possible; None if it
        has none."""
        if capacity >= self.no_recompute.peak_bytes:
            return self.no_recompute.sequence
        free = float(capacity - self.problem.fixed_bytes)
        found: list[int] | None = None
        for _ in range(ATTEMPTS):
            sequence = self._of_tables(capacity, free)
            if sequence is None:
                break
            found, peak = sequence, self.problem.peak(sequence)
            if peak <= capacity:
                break
            # Reducing the free bytes by less than about one level of a coarse table would give
            # the same schedule.
            free -= max(peak - capacity, free / 200)
        return found

    def _of_tables(self, capacity: int, free: float) -> list[int] | None:
        parts = []
        for number, spans in enumerate(self.spans):
            table = self._best_table(number, capacity, free)
            level = table.scale.level_within(free)
            if math.isinf(table.cost(level)):
                return None
            parts.append(emit(spans.chain, table.actions(level)))
        return self.joined(parts)

    def joined(self, parts: Iterable[list[int]]) -> list[int]:
        """Join the sequences of the runs with the steps between runs, which execute once."""
        sequence: list[int] = []
        reached = 0
        for spans, part in zip(self.spans, parts, strict=True):
            run = spans.chain.run
            sequence += range(reached, run.start)
            sequence += part
            reached = run.stop
        return [*sequence, *range(reached, len(self.problem))]

    def _least_of_dp(self) -> Schedule | None:
        """Return the schedule of the dynamic program for the fewest bytes, from its smallest
        feasible tables."""
        free = [self._most_free]
        while free[-1] // 2 > self.floor - self.problem.fixed_bytes:
            free.append(free[-1] // 2)
        for most in reversed(free):
            tables = [self._table(n, most, True) for n in range(len(self.spans))]
            if not tables or any(math.isinf(t.cost(t.scale.count - 1)) for t in tables):
                continue
            least = max(table.least_bytes for table in tables)
            found = self._by_dp(self.problem.fixed_bytes + math.ceil(least))
            return None if found is None else self.measured(found)
        return None

    def _table_bytes(self, free: float) -> int:
        """Return the capacity, in bytes, of the smallest table that includes `free` bytes."""
        most = self._most_free
        while most >= 2 * max(free, 1):
            most //= 2
        return most

    @property
    def _most_free(self) -> int:
        """The peak bytes without recomputation, minus the fixed bytes."""
        return max(self.no_recompute.peak_bytes - self.problem.fixed_bytes, 1)

    def _best_table(self, number: int, capacity: int, free: float) -> FirstPass:
        """Return a table for one run; it has reruns of ranges only if a schedule without them is
        expensive."""
        most = self._table_bytes(capacity - self.problem.fixed_bytes)
        single = self._table(number, most, False)
        if single.cost(single.scale.level_within(free)) <= RERUN_FROM * self._forward_cost:
            return single
        return self._table(number, most, True)

    def _table(self, number: int, most: int, reruns: bool) -> FirstPass:
        key = (number, most, reruns)
        if key not in self._tables:
            spans = self.spans[number]
            self._tables[key] = FirstPass(spans, Reruns(spans, most) if reruns else None, most)
        return self._tables[key]
