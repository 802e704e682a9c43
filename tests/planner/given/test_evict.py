"""The greedy that drops values, against the cheapest of all schedules of a few nodes."""

import numpy as np
import pytest
from planner.given.test_solve import shortest_by_networkx
from planner.problems import random_problem

from graphc.planner.given.greedy import Weights, run_within
from graphc.planner.given.problem import parse_problem
from graphc.planner.given.replay import replay_steps
from graphc.planner.given.solve import PORTFOLIO


def test_what_it_finds_fits_and_is_never_below_the_optimum():
    """Six nodes, every budget that matters; the portfolio meets the optimum nearly everywhere."""
    met = found_none = compared = 0
    for seed in range(25):
        problem = random_problem(6, seed, pinned=0.1)
        once = replay_steps(problem, problem.order)
        for budget in np.linspace(problem.bound_bytes, once.peak_bytes, 4).astype(int).tolist():
            optimum = shortest_by_networkx(problem, budget)
            costs = []
            for weights in PORTFOLIO:
                sequence = run_within(problem, budget, weights)
                if sequence is not None:
                    measured = replay_steps(problem, sequence)
                    assert measured.peak_bytes <= budget
                    assert optimum is not None
                    assert measured.cost >= optimum
                    costs.append(measured.cost)
            compared += optimum is not None
            met += bool(costs) and min(costs) == optimum
            found_none += optimum is not None and not costs
            if budget == once.peak_bytes:
                assert min(costs) == once.cost
    assert compared >= 60
    assert met >= 0.8 * compared
    assert found_none <= 0.15 * compared


def choice(costs, sizes):
    """Two values that are read at the end, one of which has to go for what lies between."""
    nodes = [{"id": i, "cost": costs[i], "bytes": sizes[i]} for i in range(2)]
    nodes.append({"id": 2, "cost": 1, "bytes": 20})
    nodes.append({"id": 3, "cost": 1, "bytes": 1, "inputs": [2]})
    nodes.append({"id": 4, "cost": 1, "bytes": 1, "inputs": [0, 3]})
    nodes.append({"id": 5, "cost": 1, "bytes": 1, "inputs": [1, 4]})
    return parse_problem({"nodes": nodes, "outputs": [5]})


@pytest.mark.parametrize(
    ("costs", "sizes", "weights", "dropped"),
    [
        ((5, 2), (10, 10), Weights(), 1),
        ((2, 5), (10, 10), Weights(distance=0.0), 0),
        ((4, 5), (10, 20), Weights(distance=0.0), 1),
        ((4, 5), (10, 20), Weights(distance=0.0, bytes=0.0), 0),
        ((5, 5), (10, 10), Weights(distance=1.0), 1),
    ],
)
def test_what_costs_least_for_its_bytes_and_is_read_last_is_dropped(costs, sizes, weights, dropped):
    budget = 20 + max(sizes) + 1
    sequence = run_within(choice(costs, sizes), budget, weights)
    assert sequence is not None
    again = [node for node in range(6) if sequence.count(node) > 1]
    assert again == [dropped]


def test_pinned_values_are_never_dropped_and_where_nothing_fits_there_is_none():
    problem = choice((5, 2), (10, 10))
    assert run_within(problem, 20, Weights()) is None
    pinned = random_problem(7, 3, pinned=1.0)
    peak = replay_steps(pinned, pinned.order).peak_bytes
    assert run_within(pinned, peak, Weights()) == list(pinned.order)
    assert run_within(pinned, peak - 1, Weights()) is None
