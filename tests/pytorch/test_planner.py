"""Plans for budgets of a module's steps, and what they promise of one another, without torch."""

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from planner.problems import training_chain

from graphc.torch.budget.plan.planner import TorchPlanner

SEEDS = range(2)


@cache
def planner_of(seed):
    """A chain whose steps differ in bytes and costs, so that plans for limits are not smooth."""
    rng = np.random.default_rng(seed)
    steps = training_chain(16)
    count = len(steps)
    return TorchPlanner(
        replace(
            steps,
            bytes=tuple(int(size) for size in rng.integers(20, 400, len(steps.bytes))),
            cost=tuple(float(cost) for cost in rng.integers(1, 40, count)),
            workspace=tuple(int(size) for size in rng.integers(0, 50, count)),
            fixed_bytes=1000,
        )
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_larger_budget_is_hardly_slower_and_each_holds(seed):
    """Budgets are asked in no order: an answer depends on no other. Schedules are not optimal, so a
    larger budget may be slower, here by at most a thirtieth of a step."""
    planner = planner_of(seed)
    budgets = np.linspace(planner.bound_bytes, planner.no_recompute.peak_bytes + 50, 50).astype(int)
    found = {}
    for budget in np.random.default_rng(seed).permutation(budgets):
        found[int(budget)] = planner.within(int(budget))
    plans = [found[int(budget)] for budget in budgets]
    planned = [plan for plan in plans if plan is not None]
    assert plans[: len(plans) - len(planned)] == [None] * (len(plans) - len(planned))
    assert len({plan.extra_cost for plan in planned}) > 10
    for smaller, larger in itertools.pairwise(planned):
        assert larger.extra_cost <= smaller.extra_cost + planner.seconds / 30
    for budget, plan in zip(budgets, plans, strict=True):
        assert plan is None or planner.problem.peak(plan.sequence) == plan.peak_bytes <= budget


@pytest.mark.parametrize("seed", SEEDS)
def test_the_least_is_found_by_asking_for_it_and_nothing_below(seed):
    planner = planner_of(seed)
    assert planner.within(planner.least.peak_bytes) is not None
    assert planner.within(planner.least.peak_bytes - 1) is None
    assert planner.bound_bytes <= planner.least.peak_bytes < planner.no_recompute.peak_bytes


def test_a_part_of_the_time_bounds_what_is_repeated():
    planner = planner_of(0)
    plans = [planner.costing(part * planner.seconds) for part in (0, 0.05, 0.1, 0.3, 10)]
    assert plans[0].extra_cost == 0
    assert plans[-1].peak_bytes <= 1.01 * planner.least.peak_bytes
    for part, plan in zip((0, 0.05, 0.1, 0.3, 10), plans, strict=True):
        assert plan.extra_cost <= part * planner.seconds
    peaks = [plan.peak_bytes for plan in plans]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) >= 4


def test_no_point_of_the_frontier_is_worse_than_another():
    frontier = planner_of(1).frontier
    assert len(frontier) > 5
    for more, fewer in itertools.pairwise(frontier):
        assert more.peak_bytes > fewer.peak_bytes
        assert more.extra_cost < fewer.extra_cost


def test_the_knee_is_farthest_from_the_chord():
    planner = planner_of(0)
    points = np.array([(plan.peak_bytes, plan.extra_cost) for plan in planner.frontier], float)
    unit = (points - points[-1]) / (points[0] - points[-1])  # both ends at (1, 1) and (0, 0)
    below = unit[:, 1] - unit[:, 0]
    assert planner.knee is planner.frontier[int(np.argmax(below))]
    assert 0 < int(np.argmax(below)) < len(points) - 1
