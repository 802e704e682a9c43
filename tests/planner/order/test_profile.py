"""Compiled loops over sequences against the plain walk."""

import numpy as np
import pytest
from planner.problems import random_problem, random_steps

import graphc as g
from graphc.memory.allocate import Allocation
from graphc.memory.training_graph import TrainingGraph
from graphc.models import lstm, unet
from graphc.planner.problem import Problem

pytestmark = pytest.mark.usefixtures("little")


def with_repeats(steps, rng):
    """Every step once, in order, with repeats of earlier ones in between."""
    sequence = []
    for step in range(len(steps)):
        sequence += [int(s) for s in rng.integers(0, step + 1, rng.integers(0, 2)) if s < step]
        sequence.append(step)
    return sequence


@pytest.mark.parametrize("seed", range(30))
def test_levels_are_the_profile_with_what_is_held(seed):
    steps, rng = random_problem(40, seed), np.random.default_rng(seed)
    for _ in range(5):
        sequence = with_repeats(steps, rng)
        assert steps.levels(sequence).tolist() == steps.profile(sequence, steps.live_out)


def test_levels_of_steps_that_overwrite_and_make_several_values():
    """By hand: 1 takes over 0's bytes, 2 makes two values of which nobody reads one."""
    steps = Problem(
        cost=(1.0,) * 4,
        workspace=(0, 0, 5, 0),
        inputs=((), (0,), (1,), (2, 1)),
        outputs=((0,), (1,), (2, 3), (4,)),
        overwrites=((), ((1, 0),), ((2, 1), (3, 1)), ((4, 2), (4, 1))),
        bytes=(8, 8, 4, 2, 1),
        once=frozenset(),
        live_out=frozenset([4]),
        runs=(),
    )
    # 2 overwrites nothing, for 3 still reads 1; 3 takes over the bytes of one operand alone.
    assert steps.levels(range(4)).tolist() == [8, 8, 8 + 4 + 2 + 5, 8 + 4]
    assert steps.levels([0, 1, 2, 0, 1, 3]).tolist() == [8, 8, 8 + 4 + 2 + 5 - 4, 12, 12, 12]


@pytest.mark.parametrize("seed", range(30))
def test_levels_of_steps_of_all_kinds(seed):
    steps, rng = random_steps(25, seed, runs=1 + seed % 2), np.random.default_rng(seed)
    for _ in range(5):
        sequence = with_repeats(steps, rng)
        assert steps.levels(sequence).tolist() == steps.profile(sequence, steps.live_out)


@pytest.mark.parametrize("network", [lstm(seq_len=3, layers=2), unet()], ids=["lstm", "unet"])
def test_levels_of_networks(network):
    plan = g.plan(network, optimizer=g.optim.SGD())
    steps = TrainingGraph(Allocation(plan.graph), lambda node: 0.0, feature_maps_only=False).steps
    assert any(steps.overwrites)
    sequence = list(range(len(steps)))
    assert steps.levels(sequence).tolist() == steps.profile(sequence, steps.live_out)
