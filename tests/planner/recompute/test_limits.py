"""Searches at their limits: the largest numbers, and the least effort."""

import importlib

import pytest
from planner.order.orders import is_legal
from planner.order.test_order import random_problem as random_order_problem
from planner.order.test_order import steps_of
from planner.problems import random_problem, training_chain

from graphc.errors import ProblemError
from graphc.planner.given import replay, solve
from graphc.planner.given.problem import LARGEST, parse_problem
from graphc.planner.given.replay import replay_steps
from graphc.planner.order import Precedence
from graphc.planner.order.cuts import CAPACITY, Cuts
from graphc.planner.order.exact import least_peak_order
from graphc.planner.order.search import _Search
from graphc.planner.order.windows import improve_windows
from graphc.planner.recompute.chain_dp import Scale
from graphc.planner.recompute.lower_bound import least_extra_cost

solving = importlib.import_module("graphc.planner.given.solve")  # the package has the function


def test_exact_order_takes_one_step_per_expansion_if_all_orders_tie():
    """The first step needs the most; then any order will do, and one is found step by step."""
    count = 12
    rows = [([], [0]), *(([0], [i]) for i in range(1, count)), (range(1, count), [count])]
    steps = steps_of(rows, [1] * (count + 1), workspace=[100] + [0] * count)
    problem = Precedence(steps)
    found = least_peak_order(problem, 1000, count + 1)
    assert found is not None
    assert is_legal(problem, found)
    assert least_peak_order(problem, 1000, count) is None


def test_no_cost_is_proven_for_problems_above_the_limit():
    steps = training_chain(40)
    tight = steps.peak(range(len(steps))) // 2
    assert least_extra_cost(steps, tight, largest=len(steps)) > 0
    assert least_extra_cost(steps, tight, largest=len(steps) - 1) == 0.0


@pytest.mark.parametrize("layers", [15, 20])
def test_fewest_bytes_are_returned_if_no_search_fits(monkeypatch, layers):
    problem = training_chain(layers)
    monkeypatch.setattr(solving, "_attempt", lambda *_: None)
    monkeypatch.setattr(solving.Solver, "schedule", lambda *_: None)
    monkeypatch.setattr(solving.Solver, "least", property(lambda solver: solver.no_recompute))
    fewest = solving._fewest_bytes(problem, solving.Solver(problem))
    budget = replay_steps(problem, fewest).peak_bytes
    assert budget < replay_steps(problem, problem.order).peak_bytes
    found = solve(problem, budget, seconds=0.0)
    assert found.peak_bytes == replay(problem, found.sequence).peak_bytes <= budget
    assert found.bound_cost <= found.cost


def test_largest_numbers_are_accepted_and_larger_ones_rejected():
    node = {"id": LARGEST, "cost": LARGEST, "bytes": LARGEST, "inputs": []}
    found = parse_problem({"nodes": [node], "outputs": [LARGEST]})
    assert found.bytes[0] == LARGEST
    for key in ("id", "cost", "bytes"):
        above = {**node, key: LARGEST + 1}
        with pytest.raises(ProblemError, match=rf"nodes\[0\]\.{key}"):
            parse_problem({"nodes": [above], "outputs": [above["id"]]})


def test_windows_improve_orders_that_cuts_and_lists_leave():
    """The method alone lowers the peak as `improve_windows` does."""
    lowered = 0
    for seed in range(20):
        problem = random_order_problem(seed, 14)
        search = _Search(problem, list(range(len(problem))))
        before, required = search.peak, max(problem.profile(improve_windows(problem, search.order)))
        search.solve_windows()
        assert search.peak == max(problem.profile(search.order)) == min(before, required)
        lowered += search.peak < before
    assert lowered > 5


@pytest.mark.parametrize("seed", range(5))
def test_a_node_needs_its_outputs_inputs_and_workspace(seed):
    problem, widest = random_problem(20, seed), 0
    for node in problem.order:
        read = {*problem.inputs[node]}
        live = [problem.bytes[n] for n in (*read, node)] + [problem.workspace[node]]
        widest = max(widest, 7 + sum(live))
    assert widest <= problem.bound_bytes <= replay_steps(problem, problem.order).peak_bytes


@pytest.mark.parametrize(("most", "count", "level"), [(20, 21, 1.0), (21, 11, 2.1), (0, 1, 1.0)])
def test_bytes_are_exact_up_to_twice_the_levels(most, count, level):
    scale = Scale(most, 1, 10)
    assert scale.count == count
    assert scale.bytes == pytest.approx(level)


def test_cuts_use_the_finest_unit_that_the_flow_can_represent():
    def unit(*sizes):
        rows = [([], [0]), *(([i], [i + 1]) for i in range(len(sizes) - 1))]
        return Cuts(Precedence(steps_of(rows, sizes, live_out=[len(sizes) - 1]))).unit

    assert unit(6, 4) == 2
    assert unit(6, 4, 9) == 1
    assert unit(CAPACITY - 1, 1) == 1
    assert unit(CAPACITY, 1) == 2
    assert unit(2**40, 2**40 + 2) == 2**11 + 1
