"""The tables of a chain and its units: by what their sequences cost, and against the optimum."""

import numpy as np
import pytest
from planner.chains import reversal_chain, revolve
from planner.problems import training_chain

from graphc.planner.given.exact import cheapest
from graphc.planner.given.replay import replay_steps
from graphc.planner.recompute.chain import Chain
from graphc.planner.recompute.chain_dp import FirstPass, Reruns, Scale, Spans
from graphc.planner.recompute.emission import emit


def arrays_of(steps, most):
    (run,) = steps.runs
    spans = Spans(Chain(steps, run))
    return FirstPass(spans, Reruns(spans, most), most)


@pytest.mark.parametrize("layers", [4, 5, 6])
def test_the_arrays_of_a_small_chain_is_never_below_the_optimum_and_meets_it(layers):
    """Before anything is filled; the optimum is a shortest path over live values.

    Finite where there is one at all, and met at the larger half of the budgets."""
    problem = training_chain(layers)
    base = replay_steps(problem, problem.order)
    table = arrays_of(problem, base.peak_bytes)
    assert table.scale.bytes == 100
    costs = []
    for capacity in range(300, base.peak_bytes + 1, 100):
        cheapest_of_all = cheapest(problem, capacity)
        optimum = np.inf
        if cheapest_of_all is not None:
            optimum = replay_steps(problem, cheapest_of_all).cost - base.cost
        costs.append((table.cost(table.scale.level_within(capacity)), optimum))
    assert all(cost >= optimum for cost, optimum in costs)
    assert [np.isinf(cost) for cost, _ in costs] == [np.isinf(optimum) for _, optimum in costs]
    upper = costs[-((layers + 1) // 2) :]
    assert [cost for cost, _ in upper] == [optimum for _, optimum in upper]
    assert upper[0][0] > upper[-1][0] == 0


@pytest.mark.parametrize("length", [3, 6, 10])
def test_the_actions_of_a_table_cost_what_it_says_and_fit(length):
    steps = reversal_chain(length)
    table = arrays_of(steps, length + 1)
    (run,) = steps.runs
    for checkpoints in range(1, length + 1):
        level = table.scale.level_within(checkpoints + 1)
        sequence = emit(table.chain, table.actions(level))
        assert sorted(set(sequence)) == list(range(run.stop))
        assert table.cost(level) == steps.extra_cost(sequence)
        assert table.cost(level) == revolve(length, checkpoints) - (length - 1)
        assert steps.peak(sequence) <= checkpoints + 1


def test_levels_round_needs_up_and_what_is_held_to_the_nearest():
    exact = Scale(1000, 10, 256)
    assert (exact.bytes, exact.count) == (10, 101)
    assert [exact.need(size) for size in (0, 1, 10, 11)] == [0, 1, 1, 2]
    assert [exact.level_within(size) for size in (0, 9, 10, 1000, 5000)] == [0, 0, 1, 100, 100]
    coarse = Scale(1_000_000, 1, 100)
    assert (coarse.bytes, coarse.count) == (10_000, 101)
    assert [coarse.nearest(size) for size in (4_000, 6_000, 14_000)] == [0, 1, 1]
    assert [coarse.need(size) for size in (4_000, 10_000, 14_000)] == [1, 1, 2]


def crossing_by_hand(steps, run, cut):
    """Values made in front of a place of the forward pass that the rest of it, or a backward step
    that needs them anew, reads."""
    made = {value for step in range(run.start, cut) for value in steps.outputs[step]}
    read = {value for step in range(cut, run.boundary) for value in steps.inputs[step]}
    return made & read


@pytest.mark.parametrize("layers", [3, 6, 12])
def test_units_part_the_forward_pass_at_cuts_that_one_value_crosses(layers):
    steps = training_chain(layers)
    (run,) = steps.runs
    chain = Chain(steps, run)
    assert [step for unit in chain.units for step in unit] == list(range(run.start, run.boundary))
    assert len(chain) >= layers - 1
    for unit, crossing in list(zip(chain.units, chain.crossing, strict=False))[1:-1]:
        assert crossing == crossing_by_hand(steps, run, unit.start)
        assert len(crossing) == 1
