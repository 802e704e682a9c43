"""The lower bound: never above the optimum, and near what is found where forward meets backward."""

import numpy as np
import pytest
from planning.problems import random_problem, training_chain

from graphc.planning import replay, solve
from graphc.planning.bound import extra_cost
from graphc.planning.exact import cheapest


@pytest.mark.parametrize("seed", range(25))
def test_the_bound_is_never_above_the_optimum(seed):
    problem = training_chain(6, cost=1 + seed) if seed % 5 == 0 else random_problem(10, seed)
    base = replay(problem, problem.needed)
    for budget in np.linspace(problem.bound_bytes, base.peak_bytes - 1, 4).astype(int):
        found = cheapest(problem, int(budget))
        if found is not None:
            best = replay(problem, found).cost - base.cost
            assert extra_cost(problem.tape, int(budget)) <= best * (1 + 1e-6)


@pytest.mark.parametrize("part", [0.7, 0.5, 0.3])
def test_chains_are_planned_near_the_bound(part):
    problem = training_chain(150)
    base = replay(problem, problem.needed)
    found = solve(problem, int(part * base.peak_bytes), seconds=0)
    assert base.cost < found.bound_cost <= found.cost
    assert found.cost / found.bound_cost - 1 < 0.05


def test_nothing_is_proven_where_everything_fits():
    problem = training_chain(40)
    base = replay(problem, problem.needed)
    assert extra_cost(problem.tape, base.peak_bytes) == pytest.approx(0, abs=1e-6)
    assert solve(problem, base.peak_bytes).cost == base.cost
