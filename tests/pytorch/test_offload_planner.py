"""Schedules of torch steps with copies to host memory, without torch, by the clocks' checker."""

import itertools
from dataclasses import replace

import pytest
from planner.problems import random_training, training_chain, with_boundary

from graphc.planner.copies.events import Event
from graphc.planner.copies.search import PARTS, REFINEMENTS
from graphc.planner.given import measure
from graphc.planner.host_link import HostLink
from graphc.torch.budget.plan.copies import (
    ALIGNMENT,
    OffloadGoal,
    OffloadSchedule,
    host_offsets,
    in_backward,
)
from graphc.torch.budget.plan.planner import TorchPlanner

LAYERS = 24
UNLIMITED = 2**40


def planner_of(problem, scale=1):
    steps = with_boundary(problem, LAYERS)
    return TorchPlanner(replace(steps, bytes=tuple(scale * size for size in steps.bytes)))


def goal_of(planner, rate, host_bytes=UNLIMITED):
    """All values may be copied but those that are outputs."""
    link = HostLink(rate, 2 * rate, 0.01, host_bytes)
    return OffloadGoal(
        link, frozenset(range(len(planner.problem.bytes))) - planner.problem.live_out
    )


def between(planner, part):
    least, most = planner.least.peak_bytes, planner.no_recompute.peak_bytes
    return int(least + part * (most - least))


@pytest.mark.parametrize(
    ("rate", "seed"),
    [
        pytest.param(rate, seed, marks=pytest.mark.slow if (place + seed) % 4 else ())
        for place, rate in enumerate((0.5, 2.0, 20.0))
        for seed in range(4)
    ],
)
def test_the_checker_of_clocks_measures_the_claims_of_a_plan(seed, rate):
    problem = random_training(LAYERS, seed)
    planner = planner_of(problem)
    budget, goal = between(planner, 0.4), goal_of(planner, rate)
    found = planner.with_copies(budget, goal, LAYERS)
    alone = planner.within(budget)
    assert found.peak_bytes <= budget
    assert alone is None or found.extra_cost <= alone.extra_cost
    if not isinstance(found, OffloadSchedule):
        assert rate == 0.5
        return
    measured = measure(replace(problem, link=goal.link), found.copies.events, budget)
    assert measured.peak_bytes == found.peak_bytes
    assert measured.seconds == pytest.approx(planner.seconds + found.extra_cost)
    assert measured.bytes_to_host == found.copies.bytes_to_host
    assert measured.bytes_to_device == found.copies.bytes_to_device
    assert planner.bound_cost(budget, goal.link) <= found.extra_cost + 1e-6
    again = planner_of(problem).with_copies(budget, goal, LAYERS)
    assert again == found


@pytest.mark.parametrize("host_bytes", [0, 7 * ALIGNMENT, 40 * ALIGNMENT])
def test_packed_host_memory_is_limited(host_bytes):
    planner = planner_of(training_chain(LAYERS, size=3), ALIGNMENT)
    budget = between(planner, 0.3)
    found = planner.with_copies(budget, goal_of(planner, 1e9, host_bytes), LAYERS)
    used = found.copies.host_bytes if isinstance(found, OffloadSchedule) else 0
    assert used <= host_bytes
    assert (used > 0) == (host_bytes > 0)
    assert found.extra_cost <= planner.within(budget).extra_cost


def test_the_solver_runs_for_few_capacities(monkeypatch):
    planner = planner_of(random_training(LAYERS, 2))
    solved = []
    schedule = planner.solver.schedule
    monkeypatch.setattr(
        planner.solver, "schedule", lambda size: [solved.append(size), schedule(size)][1]
    )
    planner.with_copies(between(planner, 0.4), goal_of(planner, 2.0), LAYERS)
    assert len(solved) <= 3 + len(PARTS) + 2 * REFINEMENTS


def test_values_that_must_stay_are_not_copied():
    planner = planner_of(training_chain(LAYERS))
    goal = goal_of(planner, 1e9)
    few = replace(goal, movable=frozenset([3, 7, 8]))
    found = planner.with_copies(between(planner, 0.5), few, LAYERS)
    assert set(found.copies.offsets) <= {3, 7, 8}
    nothing = planner.with_copies(between(planner, 0.5), replace(goal, movable=frozenset()), LAYERS)
    assert nothing.extra_cost == planner.within(between(planner, 0.5)).extra_cost


def test_offsets_of_values_on_the_host_together_do_not_overlap():
    planner = planner_of(random_training(LAYERS, 1), 50)
    found = planner.with_copies(between(planner, 0.2), goal_of(planner, 1e9), LAYERS)
    events, offsets = list(found.copies.events), found.copies.offsets
    size = planner.problem.bytes
    ranges = {}
    for value in offsets:
        last = max(at for at, event in enumerate(events) if event == Event("in", value))
        ranges[value] = events.index(Event("out", value)), last
    assert len(ranges) > 3
    for one, other in itertools.combinations(offsets, 2):
        if ranges[one][0] <= ranges[other][1] and ranges[other][0] <= ranges[one][1]:
            low, high = sorted((one, other), key=offsets.__getitem__)
            assert offsets[low] + size[low] <= offsets[high]


def test_a_fetch_for_the_backward_pass_begins_there():
    """Value 1 is fetched before the boundary, step 2, for step 3 after it, which also reads 0."""
    steps = training_chain(2)
    chain = replace(
        steps,
        cost=(1.0,) * 4,
        workspace=(0,) * 4,
        inputs=((), (0,), (1,), (0, 1, 2)),
        outputs=((0,), (1,), (2,), (3,)),
        overwrites=((),) * 4,
        bytes=(10,) * 4,
        once=frozenset(),
        live_out=frozenset([3]),
    )
    run = [Event("run", step) for step in range(4)]
    copies = [Event("out", 0), Event("drop", 0), Event("in", 0)]
    events = [run[0], copies[0], run[1], copies[1], copies[2], run[2], run[3]]
    moved = in_backward(chain, 2, events)
    assert moved == [run[0], copies[0], run[1], copies[1], run[2], copies[2], run[3]]
    late = [run[0], copies[0], run[1], copies[2], run[2], copies[1], Event("in", 1), run[3]]
    assert in_backward(chain, 2, late)[-4:] == [copies[1], copies[2], Event("in", 1), run[3]]
    assert host_offsets(chain, moved) == ({0: 0}, ALIGNMENT)
