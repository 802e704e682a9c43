"""Repeats that need not be: what is left out, by hand and on random sequences."""

import numpy as np
import pytest
from planner.problems import random_problem, training_chain

from graphc.planner.given.problem import parse_problem
from graphc.planner.given.replay import replay_steps
from graphc.planner.recompute.fill import fill

pytestmark = pytest.mark.usefixtures("little")


def two_to_choose_from():
    """Nodes 0 and 1 are read at the end as well; in between there is a wide one."""
    sizes, costs = [10, 10, 50, 1, 1], [3, 7, 1, 1, 1]
    inputs = [[], [0], [1], [2], [0, 1, 3]]
    nodes = [{"id": i, "cost": costs[i], "bytes": sizes[i], "inputs": inputs[i]} for i in range(5)]
    return parse_problem({"nodes": nodes, "outputs": [4]})


def test_of_two_values_the_dearer_stays_where_one_has_room():
    """Node 1 costs 7 for its 10 bytes, node 0 only 3; the wide step has 60 bytes of its own."""
    steps = two_to_choose_from()
    twice = [0, 1, 2, 3, 0, 1, 4]
    assert steps.peak(twice) == 60
    assert fill(steps, twice, 69) == [0, 1, 2, 3, 0, 4]
    assert steps.peak([0, 1, 2, 3, 0, 4]) == 61
    assert fill(steps, twice, 71) == [0, 1, 2, 3, 4]
    assert fill(steps, twice, 60) == twice


def repeated(steps, rng):
    """Every step once, with repeats in front of others that read what they make."""
    sequence = []
    for step in range(len(steps)):
        for value in steps.inputs[step]:
            producer = steps.producer[value]
            if producer >= 0 and producer not in steps.once and rng.random() < 0.5:
                sequence.append(producer)
        sequence.append(step)
    return sequence


def test_repeats_that_fit_are_left_out_and_the_peak_is_kept():
    shorter = 0
    for seed in range(20):
        problem = random_problem(25, seed)
        steps = problem
        once = list(range(len(steps)))
        sequence = repeated(steps, np.random.default_rng(seed))
        assert len(sequence) > len(once)
        assert fill(steps, sequence, steps.peak(once) + steps.peak(sequence)) == once
        low, high = sorted((steps.peak(sequence), steps.peak(once)))
        last = steps.extra_cost(sequence)
        for limit in np.linspace(low, high, 3).astype(int):
            found = fill(steps, sequence, int(limit))
            measured = replay_steps(problem, found)
            assert measured.peak_bytes == steps.peak(found) <= max(limit, steps.peak(sequence))
            assert steps.extra_cost(found) <= steps.extra_cost(sequence)
            shorter += steps.extra_cost(found) < last
    assert shorter >= 40


@pytest.mark.parametrize("layers", [8, 30])
def test_a_chain_is_filled_up_to_its_limit(layers):
    """Every map made again right before its gradient: 100 bytes more keep one map more."""
    steps = training_chain(layers)
    once = list(range(len(steps)))
    full = steps.peak(once)
    boundary = layers + 1
    sequence = [
        each
        for step in once
        for each in (
            *sorted(v for v in steps.inputs[step] if v < layers - 1 and step > boundary),
            step,
        )
    ]
    lengths = [len(fill(steps, sequence, limit)) for limit in range(400, full + 1, 100)]
    assert lengths[-1] == len(once)
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) > layers // 2
