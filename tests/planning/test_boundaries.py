"""Planners at their limits: the largest numbers, the shortest searches, and what is done then."""

import pytest
from planning.order.test_order import steps_of
from planning.problems import training_chain

from graphc.errors import ProblemError
from graphc.planning import bound, replay, solve
from graphc.planning.given import solve as solving
from graphc.planning.given.problem import LARGEST, parse_problem
from graphc.planning.order import Precedence
from graphc.planning.order.exact import least_peak_order


def test_of_equal_peaks_the_fullest_set_is_looked_at_first():
    """The first step needs the most; then any order will do, and one is found step by step."""
    count = 12
    rows = [([], [0]), *(([0], [i]) for i in range(1, count)), (range(1, count), [count])]
    steps = steps_of(rows, [1] * (count + 1), workspace=[100] + [0] * count)
    problem = Precedence(steps)
    found = least_peak_order(problem, 1000, count + 1)
    assert found is not None
    assert problem.is_legal(found)
    assert least_peak_order(problem, 1000, count) is None


def test_nothing_is_proven_of_more_steps_than_are_looked_at(monkeypatch):
    steps = training_chain(40).steps
    tight = steps.peak(range(len(steps))) // 2
    monkeypatch.setattr(bound, "LARGEST", len(steps))
    assert bound.extra_cost(steps, tight) > 0
    monkeypatch.setattr(bound, "LARGEST", len(steps) - 1)
    assert bound.extra_cost(steps, tight) == 0.0


@pytest.mark.parametrize("layers", [15, 20])
def test_the_fewest_bytes_are_taken_where_no_search_fits(monkeypatch, layers):
    problem = training_chain(layers)
    fewest = solving._fewest_bytes(problem, None)
    budget = replay(problem, fewest).peak_bytes
    assert budget < replay(problem, problem.needed).peak_bytes
    monkeypatch.setattr(solving, "_attempt", lambda *_: None)
    monkeypatch.setattr(solving, "_along_a_chain", lambda *_: None)
    found = solve(problem, budget, seconds=0.0)
    positions = [problem.ids.index(node) for node in found.sequence]
    assert found.peak_bytes == replay(problem, positions).peak_bytes <= budget
    assert found.bound_cost <= found.cost


def test_the_largest_numbers_of_a_problem_are_taken_and_none_above():
    node = {"id": LARGEST, "cost": LARGEST, "bytes": LARGEST, "inputs": []}
    found = parse_problem({"nodes": [node], "outputs": [LARGEST]})
    assert found.bytes[0] == LARGEST
    for key in ("id", "cost", "bytes"):
        above = {**node, key: LARGEST + 1}
        with pytest.raises(ProblemError, match=rf"nodes\[0\]\.{key}"):
            parse_problem({"nodes": [above], "outputs": [above["id"]]})
