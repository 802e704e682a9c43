"""Where the knee lies and what a frontier asks for, on curves that are given."""

from types import SimpleNamespace

import pytest

from graphc.passes.recompute import budget_planner
from graphc.passes.recompute.budget_planner import POINTS, OptimalPlanner


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
    planner.measured = SimpleNamespace(ordered=lambda point: point)
    monkeypatch.setattr(planner, "_best_of_others", lambda budget: None)
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
