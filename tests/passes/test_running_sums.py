"""Running sums: fewer live bytes, the same derivatives."""

import numpy as np
import pytest
import scipy.special

import graphc as g
from graphc.ir.builder import apply
from graphc.memory.allocate import Allocation
from graphc.memory.liveness import liveness
from graphc.memory.reorder import by_layers
from graphc.ops.conv import Conv2d
from graphc.ops.geometry import Conv2dAttributes
from graphc.passes.running_sums import use_running_sums


def shared_weight(steps, dtype="float64"):
    """h = tanh(h · wᵀ) `steps` times with one weight, and its loss."""
    x = g.input("x", (4, 8), dtype)
    w = g.parameter("w", (8, 8), dtype, g.Initial("uniform", 0.5))
    h = x
    for _ in range(steps):
        h = g.tanh(g.affine(h, w))
    return g.sum(h * h)


def added_products(graph):
    """Additions in the gradient that have a product with no other reader as operand."""
    producers = {"matmul", "conv2d_weight_gradient", "gather_gradient"}
    return [
        node
        for node in graph.nodes
        if node.op.name == "add"
        and node.phase == "gradient"
        and any(
            v.node is not None and v.node.op.name in producers and len(graph.uses[v]) == 1
            for v in node.inputs
        )
    ]


def accumulating(graph):
    return [node for node in graph.nodes if getattr(node.attributes, "accumulate", False)]


def test_a_weight_used_t_times_has_t_minus_one_accumulating_products():
    plan = g.plan(shared_weight(6), optimizer=g.optim.SGD(0.1))
    assert len(accumulating(plan.graph)) == 5
    assert not added_products(plan.graph)
    for node in accumulating(plan.graph):
        assert plan.placements[node.output].how == "over"


def two_layers_over_time(steps, drop=0.0):
    """Two layers of h = tanh(w · x + u · h), the second on the first, and the sum of the last h."""
    x = g.input("x", (steps, 4, 8))
    weights = {name: g.parameter(name, (8, 8)) for name in ("w0", "u0", "w1", "u1")}
    states = [g.parameter(f"h{layer}", (4, 8), trainable=False) for layer in range(2)]
    for step in range(steps):
        below = x[step]
        for layer in range(2):
            own = g.affine(states[layer], weights[f"u{layer}"])
            states[layer] = g.tanh(g.affine(below, weights[f"w{layer}"]) + own)
            below = g.dropout(states[layer], drop) if drop else states[layer]
    return g.sum(below)


def test_a_sum_of_a_layer_over_time_and_of_the_layer_above_stays_an_addition():
    plan = g.plan(two_layers_over_time(5), optimizer=g.optim.SGD(0.1), fuse=False)
    # The first layer's state is read by itself and by the layer above, but for the last one.
    assert len(added_products(plan.graph)) == 4
    # Each of the four weights has a product a step; the first of them opens the sum.
    assert len(accumulating(plan.graph)) == 4 * 4


@pytest.mark.parametrize("layers", ["over time", "apart"])
def test_the_step_counter_makes_no_layer(layers):
    if layers == "over time":
        loss = two_layers_over_time(5, drop=0.5)
    else:
        loss = g.input("x", (4, 8))
        for layer in range(6):
            loss = g.dropout(g.tanh(g.affine(loss, g.parameter(f"w{layer}", (8, 8)))), 0.5)
        loss = g.sum(loss)
    graph = g.plan(loss, optimizer=g.optim.SGD(0.1), fuse=False, reorder=False).graph
    assert bool(by_layers(Allocation(graph))) == (layers == "over time")


def test_several_forward_passes_have_no_order_by_layers_and_keep_their_running_sums():
    loss = two_layers_over_time(3)
    plan = g.plan(loss, optimizer=g.optim.SGD(0.1), fuse=False, accumulate=2)
    # What is left adds gradients of weights from pass to pass.
    assert {node.output.shape for node in added_products(plan.graph)} == {(8, 8)}


def test_products_of_one_value_are_added_where_no_layer_recurs():
    x = g.input("x", (4, 8))
    hidden = g.tanh(g.affine(x, g.parameter("w", (8, 8))))
    branches = [g.tanh(g.affine(hidden, g.parameter(f"w{i}", (8, 8)))) for i in range(3)]
    plan = g.plan(g.sum(branches[0] * branches[1] * branches[2]), optimizer=g.optim.SGD(0.1))
    assert not added_products(plan.graph)
    assert len(accumulating(plan.graph)) == 2


def test_the_gradient_is_that_of_the_chain_rule():
    loss = shared_weight(5)
    program = g.compile(loss, optimizer=g.optim.SGD(1.0), seed=3)
    w = program.parameters["w"]
    x = np.random.default_rng(0).standard_normal((4, 8))
    hidden = [x]
    for _ in range(5):
        hidden.append(np.tanh(hidden[-1] @ w.T))
    dh, dw = 2 * hidden[-1], np.zeros_like(w)
    for before, after in zip(hidden[-2::-1], hidden[:0:-1], strict=True):
        dz = dh * (1 - after**2)
        dw += dz.T @ before
        dh = dz @ w
    program.step(x=x)
    np.testing.assert_allclose(w - program.parameters["w"], dw, rtol=1e-12, atol=1e-14)


def test_one_buffer_for_the_sum():
    """At no step do two full gradients of the weight live beside each other."""
    x = g.input("x", (2, 512))
    w = g.parameter("w", (512, 512))
    h = x
    for _ in range(8):
        h = g.tanh(g.affine(h, w))
    plan = g.plan(g.sum(h), optimizer=g.optim.SGD(0.1))
    live = liveness(plan.graph)
    weights = 512 * 512 * 4
    large = {
        buffer.index: (buffer.lifetime.first, buffer.lifetime.last)
        for buffer in plan.buffers
        if buffer.bytes == weights and buffer.kind == "gradient"
    }
    assert large
    for step in range(live.end):
        assert sum(first <= step < last for first, last in large.values()) <= 1


def test_convolutions_and_tables_accumulate():
    x = g.input("x", (2, 3, 6, 6), "float64")
    w = g.parameter("w", (3, 3, 3, 3), "float64", g.Initial("uniform", 0.3))
    same = Conv2dAttributes(padding=(1, 1))
    h = apply(Conv2d, apply(Conv2d, x, w, attributes=same).output, w, attributes=same).output
    table = g.parameter("table", (7, 5), "float64", g.Initial("uniform", 1.0))
    i, j = (g.input(name, (4,), "int32") for name in "ij")
    rows = g.sum(g.tanh(g.gather(table, i)) * g.sigmoid(g.gather(table, j)))
    loss = g.sum(h * h) + rows
    program = g.compile(loss, optimizer=g.optim.SGD(1.0), seed=1)
    names = sorted(node.op.name for node in accumulating(program.graph))
    assert names == ["conv2d_weight_gradient", "gather_gradient"]

    rng = np.random.default_rng(5)
    feeds = {
        "x": rng.standard_normal((2, 3, 6, 6)),
        "i": np.array([0, 3, 3, 6], np.int32),
        "j": np.array([3, 3, 1, 0], np.int32),
    }
    before = {name: program.parameters[name] for name in ("w", "table")}
    program.step(feeds)
    a, b = before["table"][feeds["i"]], before["table"][feeds["j"]]
    dtable = np.zeros((7, 5))
    s = scipy.special.expit(b)
    np.add.at(dtable, feeds["i"], (1 - np.tanh(a) ** 2) * s)
    np.add.at(dtable, feeds["j"], np.tanh(a) * s * (1 - s))
    np.testing.assert_allclose(before["table"] - program.parameters["table"], dtable, rtol=1e-12)

    dw = before["w"] - program.parameters["w"]
    evaluate = g.compile(g.sum(h * h), seed=1)
    for index in [(0, 0, 0, 0), (2, 1, 1, 2), (1, 2, 2, 1)]:
        loss_at = []
        for shift in (1e-5, -1e-5):
            moved = before["w"].copy()
            moved[index] += shift
            evaluate.parameters["w"] = moved
            loss_at.append(evaluate.step(x=feeds["x"])["loss"])
        slope = (loss_at[0] - loss_at[1]) / 2e-5
        assert dw[index] == pytest.approx(float(slope), rel=1e-6)


@pytest.mark.parametrize("allocate", ["none", "inplace", "sharing", "packed"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bits_do_not_depend_on_the_allocation(allocate, precision):
    feeds = {"x": np.random.default_rng(2).standard_normal((4, 8)).astype(np.float32)}
    steps = []
    for strategy in ("none", allocate):
        program = g.compile(
            shared_weight(4, "float32"), optimizer=g.optim.Adam(1e-2), allocate=strategy,
            precision=precision, seed=5, poison=True,
        )  # fmt: skip
        losses = [program.step(feeds)["loss"] for _ in range(3)]
        steps.append((losses, program.parameters["w"]))
    np.testing.assert_array_equal(steps[0][0], steps[1][0])
    np.testing.assert_array_equal(steps[0][1], steps[1][1])


def test_additions_of_the_forward_pass_stay():
    """A residual sum is cheap to repeat, and a product is not: they are not made one."""
    x = g.input("x", (4, 8))
    y = x + g.linear(x, 8)
    plan = g.plan(g.sum(g.tanh(y)), optimizer=g.optim.SGD(0.1), fuse=False)
    assert any(node.op.name == "add" and node.phase == "forward" for node in plan.graph.nodes)
    assert all(node.phase == "gradient" for node in accumulating(plan.graph))


def test_a_product_with_another_reader_stays():
    x = g.input("x", (4, 4))
    w = g.parameter("w", (4, 4))
    loss = g.sum(g.tanh(g.affine(g.tanh(g.affine(x, w)), w)))
    (dw,) = g.gradient(loss, [w])
    first, second = dw.producer.inputs
    shown = g.plan(outputs={"sum": dw, "first": first, "second": second}, training=True)
    assert not accumulating(use_running_sums(shown.graph))
    alone = g.plan(outputs={"sum": dw}, training=True)
    assert len(accumulating(use_running_sums(alone.graph))) == 1
