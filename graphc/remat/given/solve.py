"""The planner of a given problem: exact where it is small, else the best of a portfolio, improved.

    up to 13 nodes    exact.py: the optimum
    else              the best of sequence_planner.py along a chain, with the turn where the most
                      is live, and of evict.py under a list of weights, then under shaken ones on a
                      little less than the budget, for as long as `seconds` say; each filled by
                      polish.py and improved by iterate.py

A search ends early where the bound of bound.py is reached, which proves the optimum. Every sequence
is measured by replay.py, which shares no code with those that made it. Where nothing fits, the
fewest bytes found are told, by the chain's least plan and a bisection of the budget that the greedy
meets.

How many attempts the greedy has depends on time, so larger problems may have other plans on other
machines; each alone is deterministic.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from graphc.errors import BudgetError, ProblemError
from graphc.remat.fill import fill
from graphc.remat.given import exact
from graphc.remat.given.evict import Weights, run_within
from graphc.remat.given.problem import Problem
from graphc.remat.given.replay import live_during, replay
from graphc.remat.local_search import iterate
from graphc.remat.lower_bound import extra_cost
from graphc.remat.solver import Solver

SECONDS = 10.0
"""How long a plan is improved, unless told."""

PORTFOLIO = tuple(
    Weights(cost=cost, distance=distance)
    for distance, cost in itertools.product((0.0, 1.0, 0.5, 2.0), (1.0, 0.5))
)

TIGHTER = (1.0, 0.97, 0.93, 0.88)
"""Parts of the budget that the greedy is given; what it leaves is filled by keeping more."""

NOISE = (1.0, 0.5, 2.0)
"""How far scores are shaken, in turn."""

FEW, LEAST_ATTEMPTS = 1000, 3 * len(PORTFOLIO)
"""Up to so many nodes, attempts that are made in any time; larger problems have one."""

OF_THE_CHAIN, OF_AN_ATTEMPT = 100_000, 3_000
"""Steps of all sequences that local search gives room and shrinks again, after the chain's plan and
after each attempt of the greedy."""

BISECTIONS = 12
LARGEST_NAMED = 6
PRECISION = 1e-9


@dataclass(frozen=True, slots=True)
class Solution:
    """A sequence of ids, what it costs, and what no sequence within the budget can go below."""

    sequence: tuple[int, ...]
    cost: float
    peak_bytes: int
    bound_cost: float
    seconds: float


def solve(problem: Problem, budget: int | None = None, seconds: float = SECONDS) -> Solution:
    """The cheapest sequence found whose peak is at most `budget`, by default the problem's own.

    Without any budget every needed node is computed once. Deterministic but for how much `seconds`
    allow. Raises `BudgetError` where nothing that fits is found.
    """
    started = time.perf_counter()
    limit = problem.budget if budget is None else budget
    if limit is not None and limit < 0:
        raise ProblemError(f"a budget is a number of bytes from 0 up, got {limit}")
    if not 0 <= seconds < math.inf:
        raise ProblemError(f"seconds is a number from 0 up, got {seconds}")
    once = list(problem.needed)
    if limit is None or replay(problem, once).peak_bytes <= limit:
        return _solution(problem, once, sum(problem.cost[n] for n in once), started)
    if len(once) <= exact.LARGEST:
        cheapest = exact.cheapest(problem, limit)
        if cheapest is None:
            raise _does_not_fit(problem, limit, _fewest_bytes(problem, None))
        return _solution(problem, cheapest, replay(problem, cheapest).cost, started)
    planner = Solver(problem.steps)
    # Told apart early: no search can help, and the message says what would.
    if problem.bound_bytes > limit:
        raise _does_not_fit(problem, limit, _fewest_bytes(problem, planner))
    bound = sum(problem.cost[node] for node in once) + extra_cost(problem.steps, limit)
    best = from_chain = _along_a_chain(problem, limit, planner)
    enough = LEAST_ATTEMPTS if len(once) <= FEW else 1
    for number, (weights, part) in enumerate(_attempts()):
        if best is not None and best[0] <= bound * (1 + PRECISION):
            break
        # Time alone ends this only where the chain has a plan; otherwise slow machines, too, make
        # a number of attempts, and twice as many while nothing fits.
        is_late = time.perf_counter() - started > seconds
        if is_late and (from_chain or (number >= enough and (best or number >= 2 * enough))):
            break
        found = _attempt(problem, limit, weights, part)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    if best is None:
        fewest = _fewest_bytes(problem, planner)
        # The bisection looks harder for few bytes than the attempts did, and may meet the budget.
        if replay(problem, fewest).peak_bytes > limit:
            raise _does_not_fit(problem, limit, fewest)
        return _solution(problem, fewest, bound, started)
    return _solution(problem, best[1], bound, started)


def _along_a_chain(
    problem: Problem, budget: int, planner: Solver
) -> tuple[float, list[int]] | None:
    """The plan of a chain's dynamic program, where the problem is a forward and a backward pass."""
    # The least plan is looked for otherwise than that of a limit, so it may fit where that fails.
    found = planner.schedule(budget) or planner.least
    if found.peak_bytes > budget:
        return None
    improved = iterate(problem.steps, found.sequence, budget, OF_THE_CHAIN)
    sequence = [problem.needed[step] for step in improved]
    return replay(problem, sequence).cost, sequence


def _attempts() -> Iterator[tuple[Weights, float]]:
    """The portfolio on the whole budget; then shaken, on a little less, without end."""
    yield from ((weights, 1.0) for weights in PORTFOLIO)
    for seed in itertools.count(1):
        for index, weights in enumerate(PORTFOLIO):
            noise, part = NOISE[seed % len(NOISE)], TIGHTER[(seed + index) % len(TIGHTER)]
            # To drop outputs is seldom better, but at times the only way to fit.
            drops = seed % 4 == 3
            yield replace(weights, noise=noise, seed=seed, drops_outputs=drops), part


def _attempt(
    problem: Problem, budget: int, weights: Weights, part: float
) -> tuple[float, list[int]] | None:
    # Below that the greedy cannot succeed.
    capacity = max(problem.bound_bytes, int(budget * part))
    sequence = run_within(problem, capacity, weights)
    if sequence is None:
        return None
    index = {node: step for step, node in enumerate(problem.needed)}
    filled = fill(problem.steps, [index[node] for node in sequence], budget)
    improved = iterate(problem.steps, filled, budget, OF_AN_ATTEMPT)
    sequence = [problem.needed[step] for step in improved]
    measured = replay(problem, sequence)
    assert measured.peak_bytes <= budget, "a plan is checked before it is given out"
    return measured.cost, sequence


def _solution(problem: Problem, sequence: list[int], bound: float, started: float) -> Solution:
    measured = replay(problem, sequence)
    ids = tuple(problem.ids[node] for node in sequence)
    seconds = time.perf_counter() - started
    return Solution(ids, measured.cost, measured.peak_bytes, bound, seconds)


def _fewest_bytes(problem: Problem, planner: Solver | None) -> list[int]:
    """The sequence of the least peak found: a chain's plan, or the greedy's, by bisection."""
    best = list(problem.needed)
    if planner is not None:
        best = [problem.needed[step] for step in planner.least.sequence]
    low, least = problem.bound_bytes, replay(problem, best).peak_bytes
    few = len(problem.needed) <= FEW
    for _ in range(BISECTIONS if few else BISECTIONS // 3):
        if low >= least:
            break
        middle = (low + least) // 2
        tried = PORTFOLIO[: 2 if few else 1]
        runs = (run_within(problem, middle, replace(w, drops_outputs=True)) for w in tried)
        found = [run for run in runs if run is not None]
        if found:
            best = min(found, key=lambda run: replay(problem, run).peak_bytes)
            least = min(least, replay(problem, best).peak_bytes)
        else:
            # The greedy may still meet fewer bytes than it missed; this only steers the bisection.
            low = middle + 1
    return best


def _does_not_fit(problem: Problem, budget: int, fewest: list[int]) -> BudgetError:
    """Names what would fit, and what stands in the way at the peak of that."""
    measured = replay(problem, fewest)
    node = fewest[measured.peak_step]
    live = live_during(problem, fewest, measured.peak_step)
    largest = sorted(live, key=lambda value: (-problem.bytes[value], value))[:LARGEST_NAMED]
    values = [(str(problem.ids[value]), problem.bytes[value]) for value in largest]
    listed = ", ".join(f"{name} {size}" for name, size in values)
    return BudgetError(
        f"no plan within {budget} bytes was found; the least found is {measured.peak_bytes} bytes, "
        f"and none can be below {problem.bound_bytes}. At its peak, node {problem.ids[node]}, the "
        f"largest values are of nodes: {listed}. Raise the budget",
        measured.peak_bytes,
        problem.bound_bytes,
        str(problem.ids[node]),
        values,
    )
