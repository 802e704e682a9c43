"""Schedules of earlier plans serve new sizes, without torch."""

from dataclasses import replace

import pytest
from planner.problems import training_chain

from graphc.torch.budget.plan.planner import (
    BYTES_SLACK,
    TIME_SLACK,
    Candidate,
    TorchPlanner,
    reused,
)


def planner_of(scale, layers=24, **changed):
    """A chain of layers with sizes and times that grow with `scale`."""
    steps = training_chain(layers)
    sizes = tuple(int(scale * (100 + 7 * (n % 5))) for n, _ in enumerate(steps.bytes))
    costs = tuple(scale * (1.0 + n % 3) for n, _ in enumerate(steps.cost))
    return TorchPlanner(replace(steps, bytes=sizes, cost=costs, **changed))


def test_a_knee_is_kept_for_proportional_sizes():
    planner, other = planner_of(10), planner_of(14)
    found = reused(other, None, None, [Candidate(planner, planner.knee)])
    assert found is not None
    assert found.sequence == planner.knee.sequence
    assert found.peak_bytes == other.problem.peak(found.sequence) != planner.knee.peak_bytes
    assert found.extra_cost == pytest.approx(1.4 * planner.knee.extra_cost)


@pytest.mark.parametrize("scale", [7, 9, 11, 13])
def test_a_budget_holds_and_reuse_is_as_good_as_before(scale):
    planner, other = planner_of(10), planner_of(scale)
    budget = (planner.least.peak_bytes + planner.no_recompute.peak_bytes) // 2
    before = Candidate(planner, planner.within(budget))
    found = reused(other, budget, None, [before])
    solved = other.within(budget)
    if scale > 10:
        # Relative to the step, less may be saved, so more is recomputed, and the solver is asked.
        assert found is None
        return
    assert other.problem.peak(found.sequence) == found.peak_bytes <= budget
    assert Candidate(other, found).time_ratio <= TIME_SLACK * before.time_ratio
    assert found.extra_cost <= 1.5 * solved.extra_cost + other.seconds / 30


def test_an_extra_time_is_a_limit():
    planner, other = planner_of(10), planner_of(14)
    plan = planner.costing(0.1 * planner.seconds)
    assert reused(other, None, 0.1, [Candidate(planner, plan)]).sequence == plan.sequence
    ratio = Candidate(planner, plan).time_ratio
    assert reused(other, None, ratio / 2, [Candidate(planner, plan)]) is None


def test_sizes_that_change_the_trade_off_are_solved_anew():
    """If saved tensors grow and others do not, the old schedule saves relatively less."""
    planner = planner_of(10)
    sizes = list(planner.problem.bytes)
    whole = set(range(len(sizes)))
    kept = {v for v in whole if planner.problem.producer[v] < len(planner.problem) // 8}
    grown = replace(
        planner.problem, bytes=tuple(50 * s if v in kept else s for v, s in enumerate(sizes))
    )
    other = TorchPlanner(grown)
    found = reused(other, None, None, [Candidate(planner, planner.knee)])
    if found is not None:
        old, new = Candidate(planner, planner.knee), Candidate(other, found)
        assert new.bytes_ratio <= BYTES_SLACK * old.bytes_ratio


def test_other_steps_are_no_candidates():
    planner = planner_of(10)
    for other in (planner_of(10, layers=23), planner_of(10, once=frozenset((0,)))):
        assert reused(other, None, None, [Candidate(planner, planner.knee)]) is None


def test_the_plan_without_recomputation_is_left_to_the_solver():
    planner = planner_of(10)
    budget = planner.no_recompute.peak_bytes
    assert reused(planner, budget, None, [Candidate(planner, planner.knee)]) is None
