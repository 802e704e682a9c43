"""Plans in the order that one ends in: faster where that helps, and consistent with the others."""

import pytest
from passes.recompute.test_ladder import assert_in_order, points

import graphc as g
from graphc.models import gpt2, mlp
from graphc.options import PlanOptions
from graphc.passes.recompute import budget_planner
from graphc.passes.recompute.joint_order import JointOrder, in_order_of_a_plan
from graphc.passes.recompute.points import Point
from graphc.pipeline import Compilation, before, planner, run, traced
from graphc.plans.check_plan import check_plan


def small_gpt2():
    return gpt2(layers=4, width=128, heads=4, seq_len=128, batch=4, vocab=2048, positions=128)


def planner_of(network, **options):
    given = PlanOptions(network(), optimizer=g.optim.SGD(), budget=1, **options)
    compilation = Compilation(given)
    return planner(run(traced(given), before("recompute"), compilation), compilation)


def ordered(found):
    steps = found._graph_steps_for(maps_only=False, by_flops=False)
    return in_order_of_a_plan(
        found._planner(maps_only=False, by_flops=False), steps, found.measured
    )


def test_a_budget_is_met_faster_in_the_joint_order(monkeypatch):
    first = planner_of(small_gpt2)
    budget = first.knee().arena_bytes
    jointly = g.plan(small_gpt2(), optimizer=g.optim.SGD(), budget=budget)
    monkeypatch.setattr(budget_planner, "in_order_of_a_plan", lambda *_: None)
    alone = g.plan(small_gpt2(), optimizer=g.optim.SGD(), budget=budget)
    fractions = [p.recomputation.extra_time_fraction for p in (jointly, alone)]
    assert 0 < fractions[0] < fractions[1]
    assert jointly.arena_bytes <= budget
    check_plan(jointly)


def test_the_order_has_the_graphs_own_nodes_and_keeps_what_data_asks_for():
    first = planner_of(small_gpt2)
    found = ordered(first)
    assert found is not None
    assert set(found.graph.nodes) == set(first.graph.nodes)
    assert found.graph.nodes != first.graph.nodes
    for node in found.graph.nodes:
        made_by = [found.graph.position[v.node] for v in node.inputs if v.node is not None]
        assert all(position < found.graph.position[node] for position in made_by)


def test_no_joint_order_for_a_chain_several_forward_passes_or_an_order_to_be_kept():
    assert ordered(planner_of(lambda: mlp(layers=3, hidden=32, batch=8))) is None
    assert ordered(planner_of(small_gpt2, accumulate=2)) is None
    kept = planner_of(small_gpt2, reorder=False)
    assert kept._joint is None


class _OfSize:
    def __init__(self, size):
        self.size = size

    def arena_bytes(self, strategy):
        return self.size


def point(size, extra_time):
    return Point(_OfSize(size), "packed", extra_time, 0.0)


@pytest.mark.parametrize(
    ("budget", "found", "is_taken"),
    [
        (100, point(90, 0.1), True),
        (100, point(90, 0.3), False),  # no faster
        (100, point(79, 0.1), False),  # its bytes might have no plan in the order given
        (79, point(79, 0.1), False),
        (100, None, False),
    ],
)
def test_what_counts_depends_on_no_budget(budget, found, is_taken):
    best = point(100, 0.2)
    joint = JointOrder(lambda *_: found, least=80)
    assert joint.faster(best, budget) is (found if is_taken else best)


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
