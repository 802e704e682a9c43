"""Where the knee lies, what a frontier asks for, and what extra flops allow, on given plans."""

from types import SimpleNamespace

import pytest

from graphc.remat import budget_planner
from graphc.remat.budget import POINTS, OptimalPlanner


def point_of(size):
    return SimpleNamespace(bytes=lambda maps_only: size, arena_bytes=size, size=size)


@pytest.mark.parametrize(
    ("curve", "knee"),
    [
        ([(100, 0.0), (60, 1.0), (40, 3.0), (30, 10.0)], 40),
        ([(100, 0.0), (60, 1.0), (40, 4.0), (30, 10.0)], 60),
        ([(100, 0.0), (90, 0.1), (30, 10.0)], 90),
    ],
)
def test_the_knee_is_the_point_farthest_from_the_chord(monkeypatch, curve, knee):
    """Distances from the line between both ends, by hand: (100, 0) to (30, 10)."""
    planner = OptimalPlanner.__new__(OptimalPlanner)
    searched = SimpleNamespace(curve=lambda: curve, plan=lambda limit: limit, once=None)
    monkeypatch.setattr(planner, "_planner", lambda **_: searched)
    monkeypatch.setattr(planner, "_other", lambda *_, **__: point_of(101))
    monkeypatch.setattr(planner, "_point", lambda plan, **_: point_of(plan))
    monkeypatch.setattr(planner, "_best_of_others", lambda budget: None)
    monkeypatch.setattr(planner, "_jointly", lambda point, budget: point)
    assert planner.knee().size == knee


def test_a_frontier_asks_for_budgets_from_the_least_to_the_most(monkeypatch):
    """The mean of equal steps in bytes and of equal steps in their logarithm."""
    planner, asked = OptimalPlanner.__new__(OptimalPlanner), []
    planner.measured = SimpleNamespace()
    monkeypatch.setattr(planner, "least", lambda **_: point_of(1000))
    monkeypatch.setattr(planner, "_other", lambda *_, **__: point_of(4000))
    monkeypatch.setattr(
        planner, "within", lambda budget, **_: asked.append(budget) or point_of(budget)
    )
    monkeypatch.setattr(budget_planner, "undominated", lambda points: points)
    planner.frontier()
    parts = [i / (POINTS - 1) for i in range(1, POINTS - 1)]
    assert asked == [int((1000 + 3000 * p + 1000 * 4.0**p) / 2) for p in parts]


def of_bytes(size, extra_flops):
    return SimpleNamespace(arena_bytes=size, extra_flops=extra_flops)


@pytest.mark.parametrize(
    ("by_flops", "by_seconds", "least", "within", "expected"),
    [
        (50, 60, of_bytes(40, 0.9), True, 50),  # above the least: the fewest bytes
        (60, 50, of_bytes(40, 0.9), True, 50),  # by seconds they may be fewer
        (50, 60, of_bytes(55, 0.9), False, 60),  # would be refused: the next, as the least is dear
        (50, 60, of_bytes(55, 0.1), False, 55),  # or the least, which is within the flops
        (50, 52, of_bytes(55, 0.9), False, 90),  # or nothing computed again
    ],
)
def test_no_plan_within_extra_flops_is_below_the_least(
    monkeypatch, by_flops, by_seconds, least, within, expected
):
    planner = OptimalPlanner.__new__(OptimalPlanner)
    planner._is_small, planner._alternatives = True, []
    planner._sequences = SimpleNamespace(distinct=list)
    searched = SimpleNamespace(floor=48, step_cost=1.0, least_costing=lambda allowed: by_flops)
    monkeypatch.setattr(planner, "_planner", lambda **_: searched)
    monkeypatch.setattr(planner, "_fastest_with", lambda allowed: by_seconds)
    monkeypatch.setattr(planner, "_point", lambda plan, **_: of_bytes(plan, 0.2))
    monkeypatch.setattr(planner, "_other", lambda *_: of_bytes(90, 0.0))
    monkeypatch.setattr(planner, "_within", lambda *_, **__: within or None)
    monkeypatch.setattr(planner, "least", lambda **_: least)
    assert planner.least_with(0.3).arena_bytes == expected
