"""Plans of 15 to 29 steps against the optima that CP-SAT of OR-tools proves. Run by `make nightly`.

Smaller problems are exact, which other tests compare with an enumeration.
"""

import pytest
from planning.problems import random_training

from graphc.errors import BudgetError
from graphc.planning.given.exact import LARGEST
from graphc.planning.given.replay import replay
from graphc.planning.given.solve import solve

pytestmark = [pytest.mark.peers, pytest.mark.slow]
referee = pytest.importorskip("referee", reason="ortools is not installed")

SECONDS = 60.0
"""What CP-SAT has for a problem."""

PROBLEMS = 48


def problems():
    """Problems with budgets between the bound and all bytes."""
    for seed in range(PROBLEMS):
        problem = random_training(8 + seed % 8, seed)
        most = replay(problem, problem.needed).peak_bytes
        part = (0.2, 0.4, 0.6, 0.8)[seed // 8 % 4]
        yield problem, int(problem.bound_bytes + part * (most - problem.bound_bytes))


def test_plans_are_as_cheap_as_the_optimum_of_their_order():
    optimal = decided = 0
    for problem, budget in problems():
        assert len(problem.needed) > LARGEST
        try:
            found = solve(problem, budget, seconds=2.0)
        except BudgetError:
            continue
        verdict = referee.Referee(problem.steps, budget, int(found.cost)).verdict(SECONDS)
        assert found.peak_bytes <= budget
        if verdict.is_optimal:
            decided, optimal = decided + 1, optimal + (found.cost <= verdict.cost)
    assert decided >= 0.8 * PROBLEMS
    assert optimal >= 0.95 * decided
