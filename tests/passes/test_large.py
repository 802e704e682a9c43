"""Graphs of 100,000 nodes pass through everything that runs by default."""

import pytest

import graphc as g


@pytest.mark.slow
def test_a_hundred_thousand_nodes():
    h = g.input("x", (2, 4))
    for number in range(11_500):
        with g.mirror(1 if number % 100 else 0):
            h = g.tanh(g.linear(h, 4, name=f"layer{number}"))
    loss = g.mean(h)
    plan = g.plan(loss, optimizer=g.optim.SGD(), recompute="mirror")
    assert len(plan.graph.nodes) > 100_000
    assert plan.arena_bytes <= 1.01 * plan.live_bytes
