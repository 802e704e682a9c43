"""What is kept at the turn: on equal layers, on random passes, on layers over time."""

from dataclasses import replace

import numpy as np
import pytest
from planning.problems import random_training, training_chain

import graphc as g
from graphc.allocation.allocate import Allocation
from graphc.models import lstm
from graphc.passes.order import by_layers
from graphc.passes.recompute.graph_steps import GraphSteps
from graphc.planning import replay
from graphc.planning.blocks import Chain
from graphc.planning.sequence_planner import SequencePlanner
from graphc.planning.steps import Run
from graphc.planning.turn_cut import TurnCut


def with_turn(problem, turn):
    return replace(problem.steps, runs=(Run(0, turn, len(problem.steps)),))


def live_at_turn(steps, sequence, turn):
    return int(steps.levels(sequence)[sequence.index(turn)]) + steps.fixed_bytes


def test_of_equal_layers_the_late_ones_are_kept():
    layers = 12
    problem = training_chain(layers)
    steps = with_turn(problem, layers)
    cut = TurnCut(Chain(steps, steps.runs[0]))
    once = live_at_turn(steps, list(range(len(steps))), layers)
    for fewer in range(1, layers - 2):
        sequence = cut.sequence(once - 100 * fewer)
        again = [step for step in range(layers) if sequence.count(step) == 2]
        # The first is asked for by the gradient of the second, which comes last.
        assert again == list(range(fewer))
        assert live_at_turn(steps, sequence, layers) == once - 100 * fewer


@pytest.mark.parametrize("seed", range(12))
def test_the_turn_is_within_the_limit_and_costs_fall_with_it(seed):
    layers = 20
    problem = random_training(layers, seed)
    steps = with_turn(problem, layers)
    cut = TurnCut(Chain(steps, steps.runs[0]))
    turn = cut._turn
    least = live_at_turn(steps, cut.sequence(0), turn)
    most = live_at_turn(steps, list(range(len(steps))), turn)
    assert least < most
    costs = []
    for limit in np.linspace(least, most, 7).astype(int):
        sequence = cut.sequence(int(limit))
        measured = replay(problem, [problem.needed[step] for step in sequence])
        assert measured.peak_bytes == steps.peak(sequence)
        assert live_at_turn(steps, sequence, turn) <= limit
        assert all(sequence.count(step) <= 2 for step in range(layers))
        costs.append(steps.extra_cost(sequence))
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == 0 < costs[0]


def test_layers_over_time_are_planned_from_it(monkeypatch):
    """The cells of an LSTM cost little to make again, in chains as long as the time."""
    plan = g.plan(lstm(seq_len=16, layers=3, hidden=256), optimizer=g.optim.SGD(), reorder=False)
    allocation = by_layers(Allocation(plan.graph))[0]
    steps = GraphSteps(allocation, plan_seconds, feature_maps_only=False, is_one_pass=True).steps
    found = costs_of(SequencePlanner(steps))
    monkeypatch.setattr("graphc.planning.sequence_planner.CUT", ())
    without = costs_of(SequencePlanner(steps))
    assert all(one <= other for one, other in zip(found, without, strict=True))
    assert any(one < 0.97 * other for one, other in zip(found, without, strict=True))


def costs_of(planner):
    costs = []
    for part in (0.4, 0.5, 0.6):
        limit = int(planner.floor + part * (planner.once.peak_bytes - planner.floor))
        plan = planner.plan_for(limit)
        assert plan is None or plan.peak_bytes <= limit
        costs.append(plan.extra_cost if plan else np.inf)
    return costs


def plan_seconds(node):
    return float(node.op.cost(node).flops + 1)
