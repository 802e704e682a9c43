"""Gradients of a norm by one node: which are merged, and that they are what they were."""

import numpy as np
import pytest

import graphc as g
from graphc import Program
from graphc.compiler.compilation import Compilation, run, traced
from graphc.compiler.options import PlanOptions
from graphc.compiler.pipeline import before
from graphc.memory.allocate import Allocation
from graphc.passes.norm_gradients import merge_norm_gradients
from graphc.runtime.feeds import random_feeds


def training(loss, **options):
    """The graph of a step on the CPU as the pass meets it on a GPU."""
    given = PlanOptions(loss, optimizer=g.optim.SGD(0.1), kernels="numpy", **options)
    return run(traced(given), before("norm-gradients"), Compilation(given))


def images(channels=3):
    return g.input("x", (4, channels, 5, 6), "float64")


def convolved(x, channels, name):
    return g.conv2d(x, channels, 3, padding=1, name=name)


def squared(y):
    return g.mean(y * y)


def normed(norm):
    """A norm with parameters of its own between two layers."""
    return lambda: squared(convolved(norm(convolved(images(), 4, "a")), 2, "b"))


def two_of_a_sum():
    """Both norms have the same dy, and so the same gradient of a bias."""
    h = convolved(images(), 4, "a")
    one, other = (g.batch_norm(convolved(h, 4, name), name=f"{name}/norm") for name in "bc")
    return squared(g.relu(one + other))


def of_data():
    """Nobody asks for the gradient of x."""
    return squared(convolved(g.batch_norm(images()), 2, "a"))


CASES = {
    "batch": (normed(g.batch_norm), {"norm_gradients": 1}),
    "layer": (normed(g.layer_norm), {"norm_parameter_gradients": 1, "norm_input_gradient": 1}),
    "group": (
        normed(lambda x: g.group_norm(x, 2)),
        {"norm_parameter_gradients": 1, "norm_input_gradient": 1},
    ),
    "without parameters": (
        normed(lambda x: g.batch_norm(x, trainable=False)), {"norm_input_gradient": 1}
    ),
    "two of a sum": (two_of_a_sum, {"norm_gradients": 2}),
    "of data": (of_data, {"norm_parameter_gradients": 1}),
}  # fmt: skip


def counts(graph):
    names = [n.op.name for n in graph.nodes if n.op.name.startswith("norm_")]
    return {name: names.count(name) for name in names}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_gradients_of_a_norm_are_one_node(case, accumulate):
    network, expected = CASES[case]
    graph = training(network(), accumulate=accumulate)
    merged = merge_norm_gradients(graph)
    assert counts(merged) == {name: accumulate * number for name, number in expected.items()}
    runs = []
    for each in (graph, merged):
        program = Program(Allocation(each).plan("packed"), seed=1, poison=True)
        feeds = {s.name: array for s, array in random_feeds(each, 0).items()}
        losses = [program.step(feeds)["loss"] for _ in range(3)]
        runs.append((losses, dict(program.states)))
    (losses, states), (others, found) = runs
    np.testing.assert_allclose(others, losses, rtol=1e-12)
    for name, wanted in states.items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-9, atol=1e-12, err_msg=name)


def test_only_plans_for_a_gpu_have_merged_gradients():
    loss = normed(g.batch_norm)()
    for device, expected in {"cpu": 0, "h200": 1}.items():
        plan = g.plan(loss, optimizer=g.optim.SGD(0.1), device=device)
        assert counts(plan.graph).get("norm_gradients", 0) == expected


def test_a_graph_without_norms_stays_itself():
    graph = training(squared(convolved(images(), 4, "a")))
    assert merge_norm_gradients(graph) is graph
