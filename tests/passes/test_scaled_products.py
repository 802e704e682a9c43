"""Operands scaled in place of products: which, and that steps are the same."""

import numpy as np
import pytest

import graphc as g
from graphc.allocation.allocate import Allocation
from graphc.options import PlanOptions
from graphc.passes.scaled_products import scale_operands
from graphc.pipeline import Compilation, before, run, traced
from graphc.runtime.feeds import random_feeds
from graphc.runtime.program import Program


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


def of_two_products():
    """One is scaled, the other is not; both read the operand."""
    h = x(9, 4)
    return g.mean(scores(h, h) + g.matmul(h, h, transpose_b=True))


CASES = {"attention": attention, "second is smaller": second_is_smaller, "two": of_two_products}


def shared():
    """The product itself is read, too."""
    product = g.matmul(h := x(9, 4), h, transpose_b=True)
    return g.mean(product * 0.3 + product)


def marked():
    h = x(9, 4)
    with g.mirror(1):
        product = g.matmul(h, h, transpose_b=True)
    return g.mean(product * 0.3)


STAY = {
    "a small product": lambda: g.mean(0.3 * g.matmul(h := x(4, 9), h, transpose_b=True)),
    "read twice": shared,
    "kept": lambda: g.mean(0.3 * g.keep(g.matmul(h := x(9, 4), h, transpose_b=True))),
    "recomputed otherwise": marked,
    "no product": lambda: g.mean(0.3 * g.tanh(x(9, 4))),
}


def graph_of(loss):
    options = PlanOptions(loss, optimizer=g.optim.SGD())
    return run(traced(options), before("scale-operands"), Compilation(options))


@pytest.mark.parametrize("case", CASES)
def test_the_smaller_operand_is_scaled(case):
    graph = graph_of(CASES[case]())
    found = scale_operands(graph)
    (before_it,), (behind_it,) = (
        [n for n in each.nodes if n.op.name == "scale" and n.attributes.value == 0.3]
        for each in (graph, found)
    )
    assert before_it.inputs[0].producer.op.name == "matmul"
    assert behind_it.inputs[0].type.elements * 2 <= before_it.output.type.elements
    results = []
    for each in (graph, found):
        feeds = {s.name: array for s, array in random_feeds(each, 0).items()}
        results.append(Program(Allocation(each).plan("packed"), seed=1).step(feeds)["loss"])
    np.testing.assert_allclose(*results, rtol=1e-13)


@pytest.mark.parametrize("case", STAY)
def test_other_scales_stay(case):
    graph = graph_of(STAY[case]())
    assert scale_operands(graph) is graph


@pytest.mark.parametrize("case", CASES)
def test_a_plan_for_a_gpu_scales_nothing_large(case):
    """Nor does its gradient."""
    loss = CASES[case]()
    plan = g.plan(loss, optimizer=g.optim.SGD(0.1), device="h200")
    largest = max(value.type.elements for n in plan.graph.nodes if n.op.name == "matmul"
                  for value in n.outputs)  # fmt: skip
    scaled = [n for n in plan.graph.nodes if n.op.name == "scale" and n.attributes.value == 0.3]
    assert all(n.output.type.elements < largest for n in scaled)
