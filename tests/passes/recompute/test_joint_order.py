"""Plans in the order that one ends in: faster where that helps, and consistent with the others."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from passes.recompute.test_ladder import _OfSize, assert_in_order, points
from properties.strategies import examples, networks

import graphc as g
from graphc.ir.builder import trace
from graphc.ir.verify import verify
from graphc.models import gpt2, lstm
from graphc.options import PlanOptions
from graphc.remat.budget import OptimalPlanner
from graphc.remat.joint_order import _order_of
from graphc.remat.points import Point
from graphc.pipeline import Compilation, before, planner, run, traced
from graphc.plans.check_plan import check_plan


def small_gpt2():
    return gpt2(layers=4, width=128, heads=4, seq_len=128, batch=4, vocab=2048, positions=128)


def planner_of(network, **options):
    given = PlanOptions(
        network() if callable(network) else network,
        **{"optimizer": g.optim.SGD(), "budget": 1, **options},
    )
    compilation = Compilation(given)
    return planner(run(traced(given), before("recompute"), compilation), compilation)


@pytest.mark.slow
def test_a_budget_is_met_faster_in_the_joint_order(monkeypatch):
    budget = planner_of(small_gpt2).knee().arena_bytes
    jointly = g.plan(small_gpt2(), optimizer=g.optim.SGD(), budget=budget)
    monkeypatch.setattr(OptimalPlanner, "_joint", None)
    alone = g.plan(small_gpt2(), optimizer=g.optim.SGD(), budget=budget)
    fractions = [p.recomputation.extra_time_fraction for p in (jointly, alone)]
    assert 0 < fractions[0] < fractions[1]
    assert jointly.arena_bytes <= budget
    check_plan(jointly)


def test_the_knee_is_looked_for_in_the_joint_order(monkeypatch):
    jointly = planner_of(small_gpt2).knee()
    monkeypatch.setattr(OptimalPlanner, "_joint", None)
    alone = planner_of(small_gpt2).knee()
    assert jointly.extra_time < alone.extra_time
    assert jointly.arena_bytes <= alone.arena_bytes


def test_the_order_is_the_same_whatever_was_planned_before():
    fresh, used = planner_of(small_gpt2), planner_of(small_gpt2)
    labels = [node.label for node in fresh._joint.graph.nodes]
    assert labels != [node.label for node in fresh.graph.nodes]
    assert sorted(labels) == sorted(node.label for node in fresh.graph.nodes)
    # As if a plan for fewer bytes, which is all that the cheapest so far may be, cost nothing.
    _, searched = used.searched
    least = searched.least()
    searched._plans[0] = replace(least, extra_cost=0.0)
    assert searched.plan(searched.once.peak_bytes - 1) is searched._plans[0]
    assert [node.label for node in used._joint.graph.nodes] == labels


def test_no_joint_order_for_several_forward_passes_layers_over_time_or_an_order_to_be_kept():
    assert planner_of(small_gpt2, accumulate=2)._joint is None
    assert planner_of(small_gpt2, reorder=False)._joint is None
    layers = planner_of(lambda: lstm(layers=2, seq_len=8, batch=8, hidden=32))
    assert layers._alternatives
    assert layers._joint is None


def test_no_order_counts_in_which_the_plan_is_no_cheaper(monkeypatch):
    first = planner_of(small_gpt2)
    monkeypatch.setattr(
        OptimalPlanner, "_in_order", lambda self, _: SimpleNamespace(searched=self.searched)
    )
    assert first._joint is None


def test_a_network_with_copies_of_the_users_own_is_planned():
    x = h = g.input("x", (64, 64))
    for index in range(6):
        h = g.tanh(g.linear(h, 64, name=f"layer{index}"))
    gradient = g.gradient(g.mean(h), [x], mirror=lambda node: int(node.op.name == "tanh"))[0]
    graph = trace({"gradient": gradient})
    assert any(node.copy_of is not None for node in graph.nodes)
    options = PlanOptions(g.mean(h), optimizer=g.optim.SGD(), budget=1)
    found = planner(graph, Compilation(options))
    tight = found.least(maps_only=False).arena_bytes
    for budget in (tight, 2 * tight):
        assert found.within(budget, maps_only=False).arena_bytes <= budget


@examples(30)
@given(networks(30), st.floats(0.0, 1.0))
def test_orders_of_plans_of_random_networks_are_legal(network, part):
    graph_steps, searched = (found := planner_of(network.loss)).searched
    limit = searched.floor + int(part * (searched.once.peak_bytes - 1 - searched.floor))
    plan = searched.plan_for(limit)
    order = _order_of(plan, graph_steps, found.measured) if plan else None
    if order is not None:
        verify(order.graph)
        assert set(order.graph.nodes) == set(found.graph.nodes)


def point(size, extra_time):
    return Point(_OfSize(size), "packed", extra_time, 0.0)


@pytest.mark.parametrize(
    ("found", "is_taken"),
    [
        (point(90, 0.1), True),
        (point(90, 0.3), False),  # no faster
        (point(79, 0.1), False),  # its bytes might have no plan in the order given
    ],
)
def test_what_is_faster_counts_unless_it_is_smaller_than_the_order_given_has(
    monkeypatch, found, is_taken
):
    best, tried = point(100, 0.2), OptimalPlanner.__new__(OptimalPlanner)
    tried._joint = SimpleNamespace(_within=lambda budget, maps_only, known: found)
    tried._of_fewest_live = point(80, 5.0)
    assert tried._jointly(best, 100) is (found if is_taken else best)


@pytest.mark.slow
def test_the_least_is_the_same_with_a_joint_order(monkeypatch):
    def least():
        with pytest.raises(g.BudgetError) as caught:
            g.plan(small_gpt2(), optimizer=g.optim.SGD(), budget=1)
        return caught.value.least_bytes

    jointly = least()
    monkeypatch.setattr(OptimalPlanner, "_joint", None)
    assert least() == jointly


@pytest.mark.slow
def test_more_budget_is_never_slower_and_bytes_find_their_plan_again():
    def budgets(least, most):
        return [least + (most - least) * part // 12 for part in range(13)]

    found = list(points(small_gpt2, budgets))
    assert_in_order(found)
    sizes = [point.arena_bytes for _, point in found]
    again = list(points(small_gpt2, lambda *_: sizes))
    for (_, first), (_, second) in zip(found, again, strict=True):
        assert second.extra_time <= first.extra_time


@pytest.mark.slow
def test_a_frontiers_points_are_what_fresh_planners_find():
    found = planner_of(small_gpt2).frontier()
    again = points(small_gpt2, lambda *_: [each.arena_bytes for each in found])
    for first, (_, second) in zip(found, again, strict=True):
        assert second.extra_time <= first.extra_time
