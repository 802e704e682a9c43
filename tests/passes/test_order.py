"""The order of nodes: never more live bytes, the fewest on small graphs, and the same bits."""

from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from models.test_zoo import DEEP, SMALL, quick_and_slow
from properties.strategies import examples, networks

import graphc as g
from graphc.ir.builder import trace
from graphc.ir.graph import State
from graphc.ir.verify import verify
from graphc.memory.allocate import Allocation
from graphc.memory.reorder import reordered, with_least_peak
from graphc.plans.memory_plan import RECOMPUTE

MOST_ORDERS = 300


def legal_orders(graph):
    """Every order that data and updates allow, but no more than just above `MOST_ORDERS`."""
    waits = {node: {v.node for v in node.inputs if v.node is not None} for node in graph.nodes}
    for node in graph.effects:
        for value in node.inputs:
            if isinstance(value, State):
                shown = {value}
                for reader in graph.nodes:
                    if not shown.isdisjoint(reader.inputs) and reader is not node:
                        waits[node].add(reader)
                        shown.update(reader.outputs if reader.op.views else ())

    def longer(order):
        if len(order) == len(graph.nodes):
            yield tuple(order)
        for node in graph.nodes:
            if node not in order and waits[node] <= set(order):
                yield from longer([*order, node])

    return list(islice(longer([]), MOST_ORDERS + 1))


def live_bytes(graph):
    return Allocation(graph).plan("packed").live_bytes


def assert_least(graph, orders):
    found = with_least_peak(Allocation(graph)).graph
    verify(found)
    least = min(live_bytes(replace(graph, nodes=order)) for order in orders)
    assert live_bytes(found) == least


@examples(60)
@given(networks(max_ops=4))
def test_inference_takes_the_fewest_bytes_of_all_orders(network):
    outputs = {"loss": network.loss, **network.outputs}
    graph = g.plan(outputs=outputs, reorder=False).graph
    orders = legal_orders(graph)
    assume(len(orders) <= MOST_ORDERS)
    assert_least(graph, orders)


@examples(40)
@given(st.lists(st.sampled_from(["linear", "relu", "dropout"]), max_size=2), st.booleans())
def test_a_training_step_takes_the_fewest_bytes_of_all_orders(layers, twice):
    x = h = g.input("x", (40, 8))
    for number, kind in enumerate(layers):
        with g.scope(f"layer{number}"):
            if kind == "linear":
                h = g.linear(h, 16, bias=False)
            else:
                h = g.relu(h) if kind == "relu" else g.dropout(h, 0.5)
    h = g.add(h, g.mean(x)) if twice else h
    with g.scope("head"):
        loss = g.mean(g.mul(g.linear(h, 3, bias=False), 2.0))
    graph = g.plan(loss, optimizer=g.optim.SGD(), reorder=False).graph
    orders = legal_orders(graph)
    assume(len(orders) <= MOST_ORDERS)
    assert_least(graph, orders)


def test_workspaces_count():
    """The product of 16-bit maps runs on float32 copies: nothing else should be live beside it."""
    x = g.input("x", (64, 64), "float16")
    with g.scope("early"):
        early = g.concat([x, x])
    with g.scope("late"):
        late = g.mean(g.matmul(x, x))
    graph = g.plan(outputs=[early, late], reorder=False).graph
    first = Allocation(graph).plan("packed")
    assert first.peak_step == 1
    assert first.workspaces[graph.nodes[1]].bytes >= 2 * 64 * 64 * 4
    assert [n.scope for n in with_least_peak(Allocation(graph)).graph.nodes] == [
        "late",
        "late",
        "early",
    ]
    assert_least(graph, legal_orders(graph))


RECOMPUTED = {"lstm": "sublinear", "lstm by layer": "recursive", "unet": "cheap"}
"""The one kind of recomputation that some networks are ordered with."""


@pytest.mark.parametrize(
    ("name", "is_whole"),
    [
        *[pytest.param(*p.values, False, marks=p.marks) for p in quick_and_slow(SMALL, DEEP)],
        *[pytest.param(name, True, marks=pytest.mark.slow) for name in RECOMPUTED],
    ],
)
def test_no_network_takes_more_bytes_than_in_the_order_given(name, is_whole):
    loss = SMALL[name]()
    every = ("cheap", "sublinear", "recursive")
    is_short = name in RECOMPUTED and not is_whole
    for recompute in ("none", *((RECOMPUTED[name],) if is_short else every)):
        kept, moved = (
            g.plan(loss, optimizer=g.optim.SGD(), recompute=recompute, reorder=reorder)
            for reorder in (False, True)
        )
        assert moved.live_bytes <= kept.live_bytes
        assert moved.arena_bytes <= kept.arena_bytes
        assert sorted(n.label for n in moved.graph.nodes) == sorted(
            n.label for n in kept.graph.nodes
        )


@examples(40)
@given(networks(), st.sampled_from(RECOMPUTE))
def test_the_order_changes_no_bit_and_adds_no_byte(network, recompute):
    plans = [
        g.plan(
            network.loss,
            outputs=network.outputs,
            optimizer=g.optim.Momentum(),
            recompute=recompute,
            reorder=reorder,
        )
        for reorder in (False, True)
    ]
    if recompute != "optimal":  # whose choice depends on what orders save
        assert plans[1].live_bytes <= plans[0].live_bytes
    assert plans[1].arena_bytes <= plans[0].arena_bytes or recompute == "optimal"
    programs = [g.Program(plan, poison=True) for plan in plans]
    for feed in network.feeds:
        first, second = (program.step(feed) for program in programs)
        assert {n: a.tobytes() for n, a in first.items()} == {
            n: a.tobytes() for n, a in second.items()
        }
    first, second = ({n: a.tobytes() for n, a in p.states.items()} for p in programs)
    assert first == second


def two_branches():
    """The branch that leaves less and peaks higher is made second; so both are live at its peak."""
    x = g.input("x", (1024,))
    with g.scope("low"):
        low = g.exp(x)
    with g.scope("high"):
        high = g.mean(g.concat([x, g.relu(x), g.tanh(x), g.sigmoid(x)]))
    return g.add(g.mean(low), g.mul(high, 2.0))


def test_the_order_can_be_kept():
    traced = [n.op.name for n in trace({"y": two_branches()}).nodes]
    kept = g.plan(outputs={"y": two_branches()}, reorder=False, kernels="numpy")
    assert [n.op.name for n in kept.graph.nodes] == traced
    assert kept.settings["reorder"] is False
    moved = g.plan(outputs={"y": two_branches()}, kernels="numpy")
    assert moved.live_bytes < kept.live_bytes
    paper = g.plan(outputs={"y": two_branches()}, allocate="sharing", kernels="numpy")
    assert [n.op.name for n in paper.graph.nodes] == traced


def test_an_order_without_a_gain_is_not_taken():
    graph = g.plan(outputs={"y": g.tanh(g.exp(g.input("x", (9,))))}, reorder=False).graph
    assert reordered(Allocation(graph)).graph is graph


def test_budgets_are_met_with_less_recomputation():
    """Where an order alone fits, nothing is computed again."""
    loss = SMALL["gpt2"]()
    asked = {"optimizer": g.optim.SGD(), "kernels": "numpy"}
    kept = g.plan(loss, reorder=False, **asked)
    moved = g.plan(loss, **asked)
    assert moved.arena_bytes < kept.arena_bytes
    found = g.plan(loss, budget=moved.arena_bytes, **asked)
    assert found.recomputation.nodes == 0


def test_plans_are_the_same_every_time():
    def printed():
        loss = SMALL["lstm"]()
        return replace(g.plan(loss, optimizer=g.optim.Adam()), planning_seconds=0.0).text()

    assert printed() == printed()


def test_parts_inside_concatenations_count_as_they_are_placed():
    """An order that is better where everything is copied is worse here."""
    x = g.input("x", (16, 16))
    y = g.mul(x, x)
    z = g.concat([x, g.matmul(g.transpose(y, (1, 0)), y)], 0)
    kept, moved = (g.plan(outputs={"s": g.sum(y), "z": z}, reorder=r) for r in (False, True))
    assert moved.live_bytes <= kept.live_bytes
    assert moved.arena_bytes <= kept.arena_bytes


def test_orders_of_concatenations_are_near_the_least():
    a = g.sigmoid(g.input("x", (64, 16)))
    b = g.sigmoid(a)
    joined = g.concat([a, g.mul(a, b)])
    outputs = {"a": g.sum(a), "b": g.sum(g.mul(a, b)), "c": g.sum(joined)}
    plan = g.plan(outputs=outputs)
    assert plan.live_bytes <= g.plan(outputs=outputs, reorder=False).live_bytes
