"""Planner for a given problem: exact if the problem is small, else the best of several heuristics.

    small problems    exact.py: the optimum
    otherwise         the cheapest of solver.py and of greedy eviction (evict.py) under a list of
                      weights; then under perturbed weights on a little less than the budget, and
                      of solver.py's chains for more bytes, for as long as `seconds` allow. Each
                      schedule is filled and improved by local search, the best ones further.

The search ends early if the bound of lower_bound.py is reached, which proves the optimum. Every
schedule is measured by replay.py, which shares no code with the planners. If nothing fits, the
error reports the fewest bytes found: the minimum for small problems, else those of the solver's
smallest schedule, or of a bisection of budgets for the greedy.

If the problem has a link to the host, plans that also copy values to the host
(graphc/planner/copies) are searched last. Their search has an effort instead of a time. If nothing
fits, a bisection of budgets for plans with copies reports the fewest bytes.

The number of attempts depends on time, so larger problems may have other schedules on other
machines. Each attempt is deterministic.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from graphc.byte_sizes import parse_bytes, size_lines
from graphc.errors import BudgetError, ProblemError, finite_number
from graphc.planner.copies.events import Event, events_of
from graphc.planner.copies.search import OffloadSearch
from graphc.planner.given import exact
from graphc.planner.given.clocks import LiveRanges, measure
from graphc.planner.given.greedy import Weights, run_within
from graphc.planner.given.names import check_problem, text_of
from graphc.planner.given.problem import GivenProblem
from graphc.planner.given.replay import replay_steps
from graphc.planner.problem import Problem
from graphc.planner.recompute.fill import fill
from graphc.planner.recompute.local_search import iterate, perturbed
from graphc.planner.recompute.lower_bound import least_extra_cost
from graphc.planner.recompute.solver import Solver

Found = TypeVar("Found")

SECONDS = 10.0
"""Default time for improving a schedule, in seconds."""

PORTFOLIO = tuple(
    Weights(cost=cost, distance=distance)
    for distance, cost in itertools.product((0.0, 1.0, 0.5, 2.0), (1.0, 0.5))
)

TIGHTER = (1.0, 0.97, 0.93, 0.88)
"""Fractions of the budget for greedy eviction; `fill` uses the rest to save more values."""

PERTURBATIONS = (1.0, 0.5, 2.0)
"""Ranges of the random perturbation of scores, used in rotation."""

FEW, LEAST_ATTEMPTS = 1000, 3 * len(PORTFOLIO)
"""Minimum number of attempts: `LEAST_ATTEMPTS` for up to `FEW` nodes, one for larger problems."""

SOLVER_EFFORT, ATTEMPT_EFFORT = 100_000, 3_000
"""Effort of local search (steps times iterations) after the solver and after each greedy
attempt."""

NEAR = 30
"""Schedules tried near each one of a chain, and near the best one; a third of it near greedy
ones."""

MOST_ABOVE = 2.0
"""Largest capacity of a chain's schedule that is evicted to the budget, as a multiple of it."""

ORDERS = 200
"""Maximum number of orders of a small problem in which copies to the host are planned."""

BISECTIONS = 12
LARGEST_NAMED = 6
PRECISION = 1e-9
GOLDEN = 0.618
"""Multiples of it, less whole numbers, are spread evenly over 0 to 1."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A schedule of ids, its cost, and a lower bound on the cost within the budget."""

    sequence: tuple[int, ...]
    cost: float
    peak_bytes: int
    bound_cost: float
    seconds: float


@dataclass(frozen=True, slots=True)
class LinkedSolution(Solution):
    """A schedule of a problem with a link, whose cost and bound are seconds with all stalls.

    `events` are texts such as ``run 3``, ``out 3``, ``drop 3`` and ``in 3``; `sequence` has the
    nodes that run. `recompute_alone` is the cost of the best plan found without copies, or None.
    """

    events: tuple[str, ...]
    stalls: float
    bytes_to_host: int
    bytes_to_device: int
    host_peak_bytes: int
    recompute_alone: float | None


def solve(
    problem: GivenProblem, budget: int | str | None = None, seconds: float = SECONDS
) -> Solution:
    """Return the cheapest schedule found whose peak is at most `budget`, by default the problem's.

    Without any budget every node is computed once. Deterministic except for the number of
    attempts in `seconds`, which bound only the search after the first plan. If the problem has a
    link, the result is a `LinkedSolution`. Raises `BudgetError` if nothing that fits is found.
    """
    started = time.perf_counter()
    check_problem(problem)
    limit = problem.budget if budget is None else parse_bytes("budget", budget)
    seconds = finite_number("seconds", seconds, ProblemError)
    if problem.link is not None:
        return _linked(problem, limit, seconds, started)
    no_recompute = list(problem.order)
    if limit is None or replay_steps(problem, no_recompute).peak_bytes <= limit:
        return _solution(problem, no_recompute, sum(problem.cost[n] for n in no_recompute), started)
    if exact.is_small(problem):
        cheapest = exact.cheapest(problem, limit)
        if cheapest is None:
            raise _does_not_fit(problem, limit, events_of(exact.lowest(problem)))
        return _solution(problem, cheapest, replay_steps(problem, cheapest).cost, started)
    solver = Solver(problem)
    # No search can help, and the message names what would.
    if problem.bound_bytes > limit:
        raise _does_not_fit(problem, limit, events_of(_fewest_bytes(problem, solver)))
    bound = sum(problem.cost[node] for node in no_recompute) + least_extra_cost(problem, limit)
    best = _by_recomputation(problem, limit, solver, bound, started + seconds)
    if replay_steps(problem, best).peak_bytes > limit:
        raise _does_not_fit(problem, limit, events_of(best))
    return _solution(problem, best, bound, started)


def _linked(
    problem: GivenProblem, limit: int | None, seconds: float, started: float
) -> LinkedSolution:
    """Return the fastest schedule found of a problem with a link."""
    link = problem.link
    assert link is not None, "the caller checks"
    no_recompute = list(problem.order)
    once = sum(problem.cost[node] for node in no_recompute)
    if limit is None or replay_steps(problem, no_recompute).peak_bytes <= limit:
        return _linked_solution(problem, events_of(no_recompute), once, once, started)
    solver = None if exact.is_small(problem) else Solver(problem)
    resident = frozenset(value for node in problem.pinned for value in problem.outputs[node])

    def peak(events: list[Event]) -> int:
        return max(LiveRanges(problem, events).levels())

    def schedules(capacity: int) -> Iterator[Sequence[int]]:
        if solver is None:
            # The planner of copies keeps the order of nodes, so it is given several.
            yield from filter(None, [exact.cheapest(problem, capacity)])
            yield from itertools.islice(exact.orders(problem), ORDERS)
        elif (found := solver.schedule(capacity)) is not None:
            yield found.sequence
        elif attempt := _attempt(problem, capacity, PORTFOLIO[0], 1.0):
            yield attempt

    def search(budget: int, bound: float, origin: int | None = None) -> OffloadSearch:
        return OffloadSearch(problem, link, budget, schedules, resident, bound, origin)

    def fewest_with_copies() -> list[Event]:
        """Return the schedule of the fewest bytes found; it does not depend on the limit."""
        alone = events_of(_fewest_bytes(problem, solver))

        def within(budget: int) -> list[Event] | None:
            # Without a bound, the search ends at the first plan. Neither origin finds all plans.
            searches = (search(budget, math.inf, each) for each in (None, peak(alone)))
            plan = next(filter(None, (each.run(None) for each in searches)), None)
            return None if plan is None else plan.events

        return _bisected(problem, within(problem.bound_bytes) or alone, peak, within)

    # Copies do not change the lower bound on bytes.
    if problem.bound_bytes > limit:
        raise _does_not_fit(problem, limit, fewest_with_copies())
    bound = once + least_extra_cost(problem, limit, link)
    if solver is None:
        alone = exact.cheapest(problem, limit)
    else:
        fewest = _by_recomputation(problem, limit, solver, bound, started + seconds / 2)
        alone = fewest if replay_steps(problem, fewest).peak_bytes <= limit else None
    plan = search(limit, bound).run(alone)
    events = fewest_with_copies() if plan is None else plan.events
    if peak(events) > limit:
        raise _does_not_fit(problem, limit, events)
    cost = None if alone is None else replay_steps(problem, alone).cost
    return _linked_solution(problem, events, bound, cost, started)


def _by_recomputation(
    problem: GivenProblem, limit: int, solver: Solver, bound: float, deadline: float
) -> list[int]:
    """Return the cheapest schedule found by the solver and by greedy eviction. If none fits, return
    the one with the fewest bytes found, which may fit."""
    best = _Best(problem, limit, deadline)
    # The smallest schedule is found by another method, so it may fit where `schedule` fails.
    found = solver.schedule(limit) or solver.least
    from_solver = found.peak_bytes <= limit
    if from_solver:
        best.search_near(iterate(problem, found.sequence, limit, SOLVER_EFFORT))
    enough = LEAST_ATTEMPTS if len(problem) <= FEW else 1
    for number, (weights, part) in enumerate(_attempts()):
        if solver.cost + best.cost <= bound * (1 + PRECISION):
            break
        # Time alone ends this only if the solver has a schedule. Otherwise slow machines, too, make
        # a number of attempts, and twice as many while nothing fits.
        is_late = time.perf_counter() > deadline
        tried = enough if best.sequence else 2 * enough
        if is_late and (from_solver or number >= tried):
            break
        if from_solver:
            part_above = 1 + (MOST_ABOVE - 1) * (GOLDEN * number % 1)
            best.search_near(solver.from_above(limit, part_above))
        best.search_near(_attempt(problem, limit, weights, part), NEAR // 3)
        best.search_near(best.sequence or None)
    if best.sequence:
        return best.sequence
    # The bisection searches for fewest bytes, unlike the attempts, so it may find a schedule that
    # fits.
    return _fewest_bytes(problem, solver)


class _Best:
    """The best schedule within a budget, by local search with perturbed costs near each one."""

    def __init__(self, steps: Problem, budget: int, deadline: float) -> None:
        self.steps, self.budget, self.deadline = steps, budget, deadline
        self.cost, self.sequence = math.inf, list[int]()
        """The cost of recomputation, and the steps; infinite while no schedule is found."""
        self._numbers = itertools.count()

    def search_near(self, sequence: list[int] | None, count: int = NEAR) -> None:
        """Search near a schedule; the result may be the best one."""
        if sequence is None:
            return
        cost = self.steps.extra_cost(sequence)
        for number in itertools.islice(self._numbers, count):
            if time.perf_counter() > self.deadline:
                break
            other = perturbed(self.steps, sequence, self.budget, number)
            if other is not None and self.steps.extra_cost(other) < cost * (1 - PRECISION):
                cost, sequence = self.steps.extra_cost(other), other
        if cost < self.cost:
            self.cost, self.sequence = cost, sequence


def _attempts() -> Iterator[tuple[Weights, float]]:
    """Yield weights with fractions of the budget: those of the portfolio, then perturbed ones
    endlessly."""
    yield from ((weights, 1.0) for weights in PORTFOLIO)
    for seed in itertools.count(1):
        for index, weights in enumerate(PORTFOLIO):
            perturbation, part = (
                PERTURBATIONS[seed % len(PERTURBATIONS)],
                TIGHTER[(seed + index) % len(TIGHTER)],
            )
            # Evicting outputs is seldom better, but sometimes the only way to fit.
            evicts = seed % 4 == 3
            yield (
                replace(weights, perturbation=perturbation, seed=seed, evicts_outputs=evicts),
                part,
            )


def _attempt(problem: GivenProblem, budget: int, weights: Weights, part: float) -> list[int] | None:
    """Return the steps of a greedy schedule within the budget, or None."""
    # The greedy cannot succeed below the bound.
    capacity = max(problem.bound_bytes, int(budget * part))
    sequence = run_within(problem, capacity, weights)
    if sequence is None:
        return None
    return iterate(problem, fill(problem, sequence, budget), budget, ATTEMPT_EFFORT)


def _solution(problem: GivenProblem, sequence: list[int], bound: float, started: float) -> Solution:
    measured = replay_steps(problem, sequence)
    ids = tuple(problem.ids[node] for node in sequence)
    seconds = time.perf_counter() - started
    return Solution(ids, measured.cost, measured.peak_bytes, bound, seconds)


def _linked_solution(
    problem: GivenProblem, events: list[Event], bound: float, alone: float | None, started: float
) -> LinkedSolution:
    measured = measure(problem, events)
    return LinkedSolution(
        tuple(problem.ids[event.number] for event in events if event.kind == "run"),
        measured.seconds,
        measured.peak_bytes,
        bound,
        time.perf_counter() - started,
        tuple(text_of(problem, event) for event in events),
        measured.stalls,
        measured.bytes_to_host,
        measured.bytes_to_device,
        measured.host_peak_bytes,
        alone,
    )


def _fewest_bytes(problem: GivenProblem, solver: Solver | None) -> list[int]:
    """Return the schedule of the least peak found without copies: by the exact search, or else by
    the solver and by bisection of greedy budgets."""
    if solver is None:
        return exact.lowest(problem)
    tried = [replace(w, evicts_outputs=True) for w in PORTFOLIO[: 2 if len(problem) <= FEW else 1]]

    def within(budget: int) -> list[int] | None:
        # Greedy eviction may fail and succeed with fewer bytes; this only guides the bisection.
        runs = (run_within(problem, budget, weights) for weights in tried)
        return min(filter(None, runs), key=problem.peak, default=None)

    return _bisected(problem, solver.least.sequence, problem.peak, within)


def _bisected(
    problem: GivenProblem,
    best: Found,
    peak: Callable[[Found], int],
    within: Callable[[int], Found | None],
) -> Found:
    """Return the schedule of the least peak that `within` finds by bisection of budgets; `best` if
    it finds none."""
    low, least = problem.bound_bytes, peak(best)
    for _ in range(BISECTIONS if len(problem) <= FEW else BISECTIONS // 3):
        if low >= least:
            break
        middle = (low + least) // 2
        found = within(middle)
        if found is None:
            low = middle + 1
        else:
            best, least = found, min(middle, peak(found))
    return best


def _does_not_fit(problem: GivenProblem, budget: int, events: list[Event]) -> BudgetError:
    """Return the error that names the fewest bytes found and the largest values at their peak."""
    live_ranges = LiveRanges(problem, events)
    levels = live_ranges.levels()
    least = max(levels)
    at = levels.index(least)
    node = next(event.number for event in (*events[at:], *events[at::-1]) if event.kind == "run")
    largest = sorted(live_ranges.during(at), key=lambda value: (-problem.bytes[value], value))
    values = [(problem.name(value), problem.bytes[value]) for value in largest]
    workspace = problem.workspace[node] if events[at].kind == "run" else 0
    other = [("workspace", workspace), ("fixed_bytes", problem.fixed_bytes)]
    rows = sorted((*values, *(row for row in other if row[1])), key=lambda row: -row[1])
    return BudgetError(
        f"no plan within {budget} bytes was found; the smallest plan found needs {least} bytes, "
        f"and the lower bound is {problem.bound_bytes}. Raise the budget. Largest bytes at the "
        f"peak of this plan, node {problem.ids[node]}:\n{size_lines(rows, LARGEST_NAMED)}",
        least,
        problem.bound_bytes,
        str(problem.ids[node]),
        rows[:LARGEST_NAMED],
    )
