"""What is kept at the turn: on equal layers, on random passes, on layers over time."""

import numpy as np
import pytest
from planner.problems import (
    plan_seconds,
    random_steps,
    random_training,
    training_chain,
    with_boundary,
)

import graphc as g
from graphc.memory.allocate import Allocation
from graphc.memory.reorder import by_layers
from graphc.memory.training_graph import TrainingGraph
from graphc.models import lstm
from graphc.planner.given import replay
from graphc.planner.problem import Problem, Run
from graphc.planner.recompute.boundary_cut import BoundaryCut
from graphc.planner.recompute.chain import Chain
from graphc.planner.recompute.solver import Solver


def live_at_boundary(steps, sequence, boundary):
    return int(steps.levels(sequence)[sequence.index(boundary)]) + steps.fixed_bytes


def test_of_equal_layers_the_late_ones_are_kept():
    layers = 12
    problem = training_chain(layers)
    steps = with_boundary(problem, layers)
    cut = BoundaryCut(Chain(steps, steps.runs[0]))
    once = live_at_boundary(steps, list(range(len(steps))), layers)
    for fewer in range(1, layers - 2):
        sequence = cut.sequence(once - 100 * fewer)
        again = [step for step in range(layers) if sequence.count(step) == 2]
        # The first is asked for by the gradient of the second, which comes last.
        assert again == list(range(fewer))
        assert live_at_boundary(steps, sequence, layers) == once - 100 * fewer


@pytest.mark.parametrize("seed", range(12))
def test_the_turn_is_within_the_limit_and_costs_fall_with_it(seed):
    layers = 20
    problem = random_training(layers, seed)
    steps = with_boundary(problem, layers)
    cut = BoundaryCut(Chain(steps, steps.runs[0]))
    boundary = cut._boundary
    least = live_at_boundary(steps, cut.sequence(0), boundary)
    most = live_at_boundary(steps, list(range(len(steps))), boundary)
    assert least < most
    costs = []
    for capacity in np.linspace(least, most, 7).astype(int):
        sequence = cut.sequence(int(capacity))
        measured = replay(problem, [problem.needed[step] for step in sequence])
        assert measured.peak_bytes == steps.peak(sequence)
        assert live_at_boundary(steps, sequence, boundary) <= capacity
        assert all(sequence.count(step) <= 2 for step in range(layers))
        costs.append(steps.extra_cost(sequence))
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == 0 < costs[0]


@pytest.mark.parametrize("seed", range(20))
def test_steps_of_all_kinds_and_several_runs(seed):
    """What is made again may hold what it reads, so the limit may be missed; never legality."""
    steps = random_steps(20, seed, runs=2)
    most = steps.peak(range(len(steps)))
    for run in steps.runs:
        cut = BoundaryCut(Chain(steps, run))
        for part in (0, 0.5, 0.8, 1):
            sequence = [*range(run.start), *cut.sequence(int(part * most))]
            sequence += range(run.stop, len(steps))
            assert set(sequence) == set(range(len(steps)))
            there = {value for value, producer in enumerate(steps.producer) if producer < 0}
            for place, step in enumerate(sequence):
                assert there.issuperset(steps.inputs[step])
                there.update(steps.outputs[step])
                is_again = step in sequence[:place]
                assert not is_again or (run.start <= step < run.boundary and step not in steps.once)
        # With room for all, what is made again costs nothing.
        assert steps.extra_cost(sequence) == 0


def test_what_is_made_again_from_outside_gains_nothing():
    """Node 0 reads 60 bytes from outside and makes 50, which the backward step 3 reads."""
    steps = Problem(
        cost=(1.0,) * 4,
        workspace=(0,) * 4,
        inputs=((0,), (1,), (2,), (3, 1)),
        outputs=((1,), (2,), (3,), (4,)),
        overwrites=((),) * 4,
        bytes=(60, 50, 1, 10, 1),
        once=frozenset(),
        live_out=frozenset([4]),
        runs=(Run(0, 2, 4),),
    )
    once = list(range(4))
    assert live_at_boundary(steps, once, 2) == 61
    cut = BoundaryCut(Chain(steps, steps.runs[0]))
    assert cut.sequence(61) == once
    # To make it again holds what it is of, which is more.
    assert cut.sequence(40) == [0, 1, 2, 0, 3]
    assert live_at_boundary(steps, [0, 1, 2, 0, 3], 2) == 71


def test_layers_over_time_are_cheaper_from_it_than_from_the_chain():
    """The cells of an LSTM cost little to recompute, in chains as long as the time."""
    plan = g.plan(lstm(seq_len=12, layers=2, hidden=256), optimizer=g.optim.SGD(), reorder=False)
    allocation = by_layers(Allocation(plan.graph))[0]
    steps = TrainingGraph(allocation, plan_seconds, feature_maps_only=False, is_one_pass=True).steps
    solver, cheaper = Solver(steps), 0
    for part in (0.4, 0.5, 0.6):
        capacity = int(solver.floor + part * (solver.no_recompute.peak_bytes - solver.floor))
        chain, *_, cut = solver._candidates(capacity)
        costs = [steps.extra_cost(solver.fitted(each, capacity)) for each in (chain, cut)]
        cheaper += costs[1] < 0.97 * costs[0]
    assert cheaper
