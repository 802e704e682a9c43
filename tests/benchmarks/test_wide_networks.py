"""The networks that budgets.py --wide adds to the zoo."""

import numpy as np
import pytest
from wide_networks import gru, uvit

import graphc as g
from graphc.ir.graph import State
from graphc.runtime.feeds import random_feeds

SMALL = {
    "gru": lambda: gru(seq_len=2, batch=2, layers=2, hidden=4, inputs=3, classes=5),
    "uvit": lambda: uvit(pairs=2, width=8, heads=2, patches=4, channels=3, batch=2),
}


def weights_of(loss):
    graph = g.plan(loss, optimizer=g.optim.SGD(), kernels="numpy").graph
    states = [each for each in graph.sources if isinstance(each, State) and each.trainable]
    return sum(np.prod(each.shape, dtype=int) for each in states)


def test_a_gru_has_three_gates_a_layer_and_a_head():
    hidden, inputs, classes, layers = 4, 3, 5, 2
    cell = 2 * 3 * hidden * (hidden + 1)
    assert weights_of(SMALL["gru"]()) == hidden * inputs + layers * cell + classes * (hidden + 1)


def test_the_network_with_long_skips_is_as_large_as_it_says():
    """44,255,328 weights of the paper's; here there are biases of queries, keys and values in 13
    blocks of width 512, and no convolution of 3 × 3 over 3 channels at the end."""
    assert weights_of(uvit(batch=1)) == 44_255_328 + 13 * 3 * 512 - (3 * 3 * 3 * 3 + 3)


@pytest.mark.parametrize("name", SMALL)
def test_a_budget_changes_no_bit(name):
    plain = g.plan(SMALL[name](), optimizer=g.optim.SGD(0.1))
    budget = plain.arena_bytes * 4 // 5
    small = g.plan(SMALL[name](), optimizer=g.optim.SGD(0.1), budget=budget)
    assert small.recomputation.nodes > 0
    assert losses(plain) == losses(small)


def losses(plan):
    program = g.bind(plan, poison=True)
    feeds = {source.name: array for source, array in random_feeds(plan.graph, 0).items()}
    return [program.step(feeds)["loss"].item() for _ in range(3)]
