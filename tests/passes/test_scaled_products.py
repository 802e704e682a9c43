"""Factors of products: which there are, and that steps are the same."""

import numpy as np
import pytest

import graphc as g
from graphc import Program
from graphc.compiler.compilation import Compilation, run, traced
from graphc.compiler.options import PlanOptions
from graphc.compiler.pipeline import before
from graphc.memory.allocate import Allocation
from graphc.passes.scaled_products import scale_products
from graphc.runtime.feeds import random_feeds


def x(*shape):
    return g.linear(g.input("x", shape, "float64"), shape[-1], name="first")


def scores(first, second):
    return g.softmax(0.3 * g.matmul(first, second, transpose_b=True))


def attention():
    h = x(2, 9, 4)
    return g.mean(scores(h, g.tanh(h)) * 2.0)


def second_is_smaller():
    wide, narrow = x(40, 4), g.parameter("w", (20, 4), "float64", g.Initial("normal", 0.5))
    return g.mean(scores(wide, narrow) * 2.0)


def twice():
    """Two products that are one."""
    h = x(9, 4)
    return g.mean(scores(h, h) * scores(h, h))


CASES = {"attention": attention, "second is smaller": second_is_smaller, "twice": twice}


def shared():
    """The product itself is read, too, as another that is equal."""
    h = x(9, 4)
    return g.mean(scores(h, h) + g.matmul(h, h, transpose_b=True))


def marked():
    h = x(9, 4)
    with g.mirror(1):
        product = g.matmul(h, h, transpose_b=True)
    return g.mean(product * 0.3)


STAY = {
    "read twice": shared,
    "kept": lambda: g.mean(0.3 * g.keep(g.matmul(h := x(9, 4), h, transpose_b=True))),
    "recomputed otherwise": marked,
    "no product": lambda: g.mean(0.3 * g.tanh(x(9, 4))),
}


def graph_of(loss):
    options = PlanOptions(loss, optimizer=g.optim.SGD())
    return run(traced(options), before("scale-products"), Compilation(options))


def of_a_gpu(graph):
    return [n for n in graph.nodes if n.op.name == "scaled_matmul"]


@pytest.mark.parametrize("case", CASES)
def test_products_take_their_factor(case):
    graph = graph_of(CASES[case]())
    found = scale_products(graph)
    (product,) = of_a_gpu(found)
    assert product.attributes.alpha == 0.3
    assert len(found.nodes) == len(graph.nodes) - 1
    results = []
    for each in (graph, found):
        feeds = {s.name: array for s, array in random_feeds(each, 0).items()}
        results.append(Program(Allocation(each).plan("packed"), seed=1).step(feeds)["loss"])
    np.testing.assert_allclose(*results, rtol=1e-13)


@pytest.mark.parametrize("case", STAY)
def test_other_products_stay(case):
    graph = graph_of(STAY[case]())
    assert scale_products(graph) is graph


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_scaled_products(case):
    """A step of the graph for a GPU, run by NumPy's kernels, is that of the CPU's."""
    loss = CASES[case]()
    options = {"optimizer": g.optim.SGD(0.1)}
    on_gpu = g.plan(loss, **options, device="h200", fuse=False)
    assert {n.attributes.alpha for n in of_a_gpu(on_gpu.graph)} == {0.3}
    assert not [n for n in on_gpu.graph.nodes if n.op.name == "scale" and n.output.type.rank > 1
                and n.attributes.value == 0.3]  # fmt: skip
    runs = []
    for plan in (g.plan(loss, **options), Allocation(on_gpu.graph).plan("packed")):
        program = Program(plan, seed=1, poison=True)
        drawn = random_feeds(g.plan(loss, **options).graph, 0)
        feeds = {s.name: array for s, array in drawn.items()}
        runs.append(([program.step(feeds)["loss"] for _ in range(3)], dict(program.states)))
    (losses, states), (others, found) = runs
    np.testing.assert_allclose(others, losses, rtol=1e-12)
    for name, wanted in states.items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-9, atol=1e-12, err_msg=name)
