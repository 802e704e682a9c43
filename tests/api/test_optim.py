"""Optimizers against their papers' formulas in float64, and what frozen parameters cost."""

import numpy as np
import pytest

import graphc as g
from graphc.errors import OptionError
from graphc.ir.verify import verify
from graphc.passes.place_updates import place_updates

RNG = np.random.default_rng(0)
TARGET = RNG.standard_normal((3, 4))
STEPS = 5


def quadratic(trainable=True):
    """loss = mean((w - target)²): the gradient is known in closed form."""
    w = g.parameter("w", (3, 4), "float64", g.Initial("normal", 1.0), trainable)
    target = g.input("target", (3, 4), "float64")
    return g.mse(w, target)


def slope(w):
    return 2 * (w - TARGET) / TARGET.size


def sgd(w, state, t, rate):
    return w - rate * (slope(w) + 0.1 * w)


def momentum(w, state, t, rate):
    state["v"] = 0.8 * state.get("v", 0) + slope(w) + 0.1 * w
    return w - rate * state["v"]


def adam(w, state, t, rate, decay=0.1, decoupled=0.0):
    gradient = slope(w) + decay * w
    state["m"] = 0.8 * state.get("m", 0) + 0.2 * gradient
    state["v"] = 0.95 * state.get("v", 0) + 0.05 * gradient**2
    m, v = state["m"] / (1 - 0.8**t), state["v"] / (1 - 0.95**t)
    return w - rate * (m / (np.sqrt(v) + 1e-8) + decoupled * w)


def adamw(w, state, t, rate):
    return adam(w, state, t, rate, decay=0.0, decoupled=0.1)


RATE = 0.25  # exact in float32, as the learning rate is fed in float32
CASES = [
    (g.optim.SGD(RATE, weight_decay=0.1), sgd),
    (g.optim.Momentum(RATE, 0.8, weight_decay=0.1), momentum),
    (g.optim.Adam(RATE, 0.8, 0.95, weight_decay=0.1), adam),
    (g.optim.AdamW(RATE, 0.8, 0.95, weight_decay=0.1), adamw),
]


@pytest.mark.parametrize(("optimizer", "formula"), CASES, ids=["sgd", "momentum", "adam", "adamw"])
def test_follows_the_formula(optimizer, formula):
    program = g.compile(quadratic(), optimizer=optimizer, poison=True)
    w, state = program.parameters["w"], {}
    for t in range(1, STEPS + 1):
        rate = RATE if t != 3 else 0.125  # one step with another rate
        feeds = {"target": TARGET} | ({} if t != 3 else {"learning_rate": 0.125})
        loss = program.step(feeds)["loss"]
        assert loss == pytest.approx(np.mean((w - TARGET) ** 2), rel=1e-6)
        w = formula(w, state, t, rate)
        # the shared numbers of a step are float32
        np.testing.assert_allclose(program.parameters["w"], w, rtol=1e-6, atol=1e-7)


def test_updates_stand_right_after_the_last_reader():
    x = g.input("x", (2, 8))
    h = x
    for number in range(4):
        h = g.relu(g.linear(h, 8, bias=False, name=f"layer{number}"))
    graph = g.plan(g.mean(h), optimizer=g.optim.SGD()).graph
    updates = [node for node in graph.nodes if node.op.name == "sgd_update"]
    assert len(updates) == 4
    for node in updates:
        w, gradient, _ = node.inputs
        step = graph.position[node]
        last_reader = max(s for s in graph.uses[w] if s != step)
        assert step == max(last_reader, graph.position[gradient.node]) + 1


def test_an_update_waits_for_every_reader_of_its_state():
    """A reader that stands after the gradient: the update goes behind it."""
    graph = g.parse_graph(LATE_READER)
    placed = place_updates(graph)
    assert [node.op.name for node in placed.nodes] == ["mul", "relu", "sgd_update", "sum"]
    verify(placed)


LATE_READER = """graph {
  %x: f32[4] = input()
  @w: f32[4] = parameter() {initial='uniform', scale=1.0}
  %rate: f32[] = input() {default=0.5}
  %0: f32[4] = mul(%x, %x) [gradient]
  %1: f32[4] = relu(@w)
  %2: f32[] = sum(%1) {axes=(0,), keepdims=False}
  %3: f32[4] = sgd_update(@w, %0, %rate) {weight_decay=0.0} [update]
  output loss = %2
}
"""


def test_frozen_parameters_cost_no_gradient_no_moment_no_update():
    x = g.input("x", (2, 8))
    frozen = g.linear(x, 8, trainable=False, name="frozen")
    loss = g.mean(g.linear(frozen, 8, name="trained"))
    program = g.compile(loss, optimizer=g.optim.Adam(0.1))
    names = {state.name for state in program.graph.states}
    assert not any("frozen" in name for name in names if name.startswith("adam"))
    before = program.parameters["frozen/weight"]
    program.step(x=np.ones((2, 8), np.float32))
    np.testing.assert_array_equal(program.parameters["frozen/weight"], before)
    gradients = [node for node in program.graph.nodes if node.phase == "gradient"]
    assert all(node.scope != "frozen" for node in gradients)


def test_nothing_to_train():
    with pytest.raises(OptionError, match="trainable"):
        g.compile(quadratic(trainable=False), optimizer=g.optim.SGD())
    with pytest.raises(OptionError, match="needs a loss"):
        g.compile(outputs=[quadratic()], optimizer=g.optim.SGD())


@pytest.mark.parametrize(
    "make",
    [
        lambda: g.optim.SGD(-1),
        lambda: g.optim.SGD(float("nan")),
        lambda: g.optim.SGD(momentum=2),
        lambda: g.optim.Adam(beta1=1.0),
        lambda: g.optim.AdamW(beta2=-0.1),
        lambda: g.optim.AdamW(weight_decay=-1),
    ],
)
def test_settings_out_of_range(make):
    with pytest.raises(OptionError, match="must lie between"):
        make()


@pytest.mark.parametrize(
    ("dtypes", "wide"),
    [
        (("float32", "float32"), "float32"),
        (("float32", "float64"), "float64"),
        (("float64", "float64"), "float64"),
    ],
)
def test_one_parameter_in_float64_makes_the_rates_of_a_step_float64(dtypes, wide):
    parts = [g.mean(g.parameter(f"w{i}", (4,), dtype=dtype)) for i, dtype in enumerate(dtypes)]
    loss = g.add(*(g.cast(part, "float64") for part in parts))
    graph = g.plan(loss, optimizer=g.optim.SGD(0.1)).graph
    (rate,) = [source for source in graph.inputs if source.name == "learning_rate"]
    assert rate.type.dtype.name == wide
