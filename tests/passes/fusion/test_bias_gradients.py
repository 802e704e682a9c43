"""Sums of bias gradients that products of weight gradients compute, too."""

from collections import Counter

import numpy as np
import pytest

import graphc as g
from graphc import Program
from graphc.ir.builder import trace
from graphc.ir.verify import verify
from graphc.memory.allocate import Allocation
from graphc.passes.fusion.bias_gradients import merge_bias_gradients


def ops(graph):
    return Counter(node.op.name for node in graph.nodes)


def network(dtype="float32"):
    x, t = g.input("x", (6, 5), dtype), g.input("t", (6,), "int32")
    h = g.tanh(g.linear(x, 8, name="a"))
    return g.softmax_cross_entropy(g.linear(h, 4, name="b"), t)


def step_of(graph, seed=1):
    """The states after a step by NumPy."""
    rng = np.random.default_rng(seed)
    feeds = {
        x.name: rng.integers(0, 4, x.shape, np.int32)
        if x.type.dtype.kind == "int"
        else rng.standard_normal(x.shape).astype(x.type.dtype.numpy)
        for x in graph.inputs
    }
    program = Program(Allocation(graph).plan("packed"), seed=3, poison=True)
    program.step(feeds)
    return {name: program.states[name].copy() for name in program.states}


def test_gradients_of_float32_are_those_of_float64():
    before = g.plan(network(), optimizer=g.optim.SGD(1.0)).graph
    graph = merge_bias_gradients(before)
    verify(graph)
    assert ops(before)["sum"] == 2
    assert ops(graph)["sum"] == 0
    assert ops(graph)["product_with_sums"] == 2
    assert ops(graph)["matmul"] == ops(before)["matmul"] - 2
    exact = step_of(g.plan(network("float64"), optimizer=g.optim.SGD(1.0)).graph)
    for name, array in step_of(graph).items():
        np.testing.assert_allclose(array, exact[name], rtol=1e-5, atol=1e-6)


def test_a_sum_of_16_bit_gradients_is_stored_in_float32():
    before = g.plan(network(), optimizer=g.optim.SGD(1.0), precision="bf16").graph
    graph = merge_bias_gradients(before)
    verify(graph)
    (first, second) = (n for n in graph.nodes if n.op.name == "product_with_sums")
    for node in (first, second):
        assert node.attributes.wide
        assert {str(value.type.dtype) for value in node.inputs} == {"bfloat16"}
        assert {str(value.type.dtype) for value in node.outputs} == {"float32"}
    assert ops(graph)["cast"] == ops(before)["cast"] - 2


def test_plans_for_a_cpu_and_float64_keep_both_nodes():
    assert "product_with_sums" not in ops(g.plan(network(), optimizer="sgd").graph)
    graph = g.plan(network("float64"), optimizer="sgd", device="cuda").graph
    assert ops(graph)["sum"] == 2
    graph = g.plan(network(), optimizer="sgd", device="cuda").graph
    assert ops(graph)["product_with_sums"] == 2


@pytest.mark.parametrize("first", ["product", "sum"])
def test_the_merged_node_is_where_the_first_was(first):
    x, dy = g.input("x", (6, 5)), g.input("dy", (6, 3))
    if first == "product":
        y, sums = g.matmul(dy, x, transpose_a=True), g.sum(dy, (0,))
    else:
        sums, y = g.sum(dy, (0,)), g.matmul(dy, x, transpose_a=True)
    graph = merge_bias_gradients(trace({"y": y * 2.0, "sums": sums}))
    verify(graph)
    assert next(node.op.name for node in graph.nodes if node.inputs) == "product_with_sums"


OTHERS = {
    "another axis": lambda x, dy: (g.matmul(dy, x, transpose_a=True), g.sum(dy, (1,))),
    "another operand": lambda x, dy: (g.matmul(dy, x, transpose_a=True), g.sum(x, (0,))),
    "kept axes": lambda x, dy: (
        g.matmul(dy, x, transpose_a=True), g.sum(dy, (0,), keepdims=True),
    ),
    "a factor computed later": lambda x, dy: (
        (sums := g.sum(dy, (0,))), g.matmul(dy, x * g.reshape(sums[0], (1, 1)), transpose_a=True)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_not_merged(name):
    one, other = OTHERS[name](g.input("x", (6, 5)), g.input("dy", (6, 3)))
    graph = trace({"one": one, "other": other})
    assert merge_bias_gradients(graph) is graph
