"""Plans of 15 to 29 steps against the optima that CP-SAT of OR-tools proves. Run by `make nightly`.

Smaller problems are exact, which other tests compare with an enumeration.
"""

import math

import pytest
from planner.problems import random_training

from graphc.errors import BudgetError
from graphc.planner.given import solve
from graphc.planner.given.exact import LARGEST
from graphc.planner.given.problem import parse_problem
from graphc.planner.given.replay import replay_steps

pytestmark = [pytest.mark.peers, pytest.mark.slow]
pytest.importorskip("ortools", reason="ortools is not installed")

SECONDS = 60.0
"""What CP-SAT has for a problem."""

PROBLEMS = 24


def problems():
    """Problems with budgets between the bound and all bytes."""
    for seed in range(PROBLEMS):
        problem = random_training(8 + seed % 8, seed)
        most = replay_steps(problem, problem.order).peak_bytes
        part = (0.2, 0.4, 0.6, 0.8)[seed // 2 % 4]
        yield problem, int(problem.bound_bytes + part * (most - problem.bound_bytes))


def test_plans_are_as_cheap_as_the_optimum_of_their_order():
    from referee import Referee  # which needs OR-tools

    optimal = decided = 0
    for problem, budget in problems():
        assert len(problem.order) > LARGEST
        once = sum(problem.cost[node] for node in problem.order)
        try:
            found = solve(problem, budget, seconds=2.0)
        except BudgetError:
            cost, most = math.inf, 4 * once
        else:
            cost = most = found.cost
            assert found.peak_bytes <= budget
        verdict = Referee(problem, budget, int(most)).verdict(SECONDS)
        if cost < math.inf:
            # What is proven holds for the optimum, too.
            assert found.bound_cost <= min(cost, verdict.cost)
        if verdict.is_optimal:
            # A plan may be cheaper in an order that the referee does not know.
            decided, optimal = decided + 1, optimal + (cost <= verdict.cost)
    assert decided >= 0.8 * PROBLEMS
    assert optimal >= 0.95 * decided


def test_the_referee_keeps_what_is_small_for_a_reader_that_runs_again():
    """Node 1 is wide and made of the small node 0: that stays while the workspace is in the way."""
    from referee import Referee

    nodes = [
        {"id": i, "cost": cost, "bytes": size, "workspace": 8 * (i == 3), "inputs": inputs}
        for i, (cost, size, inputs) in enumerate(
            [(5, 1, []), (1, 8, [0]), (1, 1, [1]), (1, 1, [2]), (1, 1, [1, 3])]
        )
    ]
    problem = parse_problem({"nodes": nodes, "outputs": [4]})
    assert replay_steps(problem, [0, 1, 2, 3, 1, 4]).peak_bytes == 11
    verdict = Referee(problem, 12, 100).verdict(SECONDS)
    assert verdict.is_optimal
    assert verdict.cost == problem.cost_of(range(5)) + 1
