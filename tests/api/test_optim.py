"""Optimizers against their papers' formulas in float64, and what frozen parameters cost."""

import dataclasses

import numpy as np
import pytest

import graphc as g
from graphc.errors import OptionError
from graphc.ir.verify import verify
from graphc.memory.order.place_updates import place_updates

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


def nesterov(w, state, t, rate):
    gradient = slope(w) + 0.1 * w
    state["v"] = 0.8 * state.get("v", 0) + gradient
    return w - rate * (gradient + 0.8 * state["v"])


def adagrad(w, state, t, rate):
    gradient = slope(w) + 0.1 * w
    state["s"] = state.get("s", 0.5) + gradient**2
    return w - rate * gradient / (np.sqrt(state["s"]) + 1e-3)


def rmsprop(momentum=0.0, centered=False):
    def formula(w, state, t, rate):
        gradient = slope(w) + 0.1 * w
        state["v"] = 0.9 * state.get("v", 0) + 0.1 * gradient**2
        state["a"] = 0.9 * state.get("a", 0) + 0.1 * gradient
        spread = state["v"] - state["a"] ** 2 * centered
        state["b"] = momentum * state.get("b", 0) + gradient / (np.sqrt(spread) + 1e-3)
        return w - rate * state["b"]

    return formula


def lion(w, state, t, rate):
    m, gradient = state.get("m", np.zeros_like(w)), slope(w)
    state["m"] = 0.95 * m + 0.05 * gradient
    return w * (1 - rate * 0.1) - rate * np.sign(0.8 * m + 0.2 * gradient)


def lamb(w, state, t, rate):
    gradient = slope(w)
    state["m"] = 0.8 * state.get("m", 0) + 0.2 * gradient
    state["v"] = 0.95 * state.get("v", 0) + 0.05 * gradient**2
    m, v = state["m"] / (1 - 0.8**t), state["v"] / (1 - 0.95**t)
    direction = m / (np.sqrt(v) + 1e-3) + 0.1 * w
    return w - rate * np.linalg.norm(w) / np.linalg.norm(direction) * direction


def orthogonal(x, rounds=5):
    """Newton and Schulz in the other order of products: on the longer side of a wide matrix."""
    x = x / max(np.linalg.norm(x), 1e-7)
    for _ in range(rounds):
        gram = x.T @ x
        x = 3.4445 * x - 4.7750 * x @ gram + 2.0315 * x @ gram @ gram
    return x


def muon(nesterov, factor):
    def formula(w, state, t, rate):
        gradient = slope(w)
        state["b"] = 0.8 * state.get("b", 0) + 0.2 * gradient
        ahead = 0.2 * gradient + 0.8 * state["b"] if nesterov else state["b"]
        return w * (1 - rate * 0.1) - rate * factor * orthogonal(ahead)

    return formula


RATE = 0.25  # exact in float32, as the learning rate is fed in float32
RMS = {"alpha": 0.9, "epsilon": 1e-3, "weight_decay": 0.1}
CASES = {
    "sgd": (g.optim.SGD(RATE, weight_decay=0.1), sgd),
    "momentum": (g.optim.Momentum(RATE, 0.8, weight_decay=0.1), momentum),
    "nesterov": (g.optim.Nesterov(RATE, 0.8, weight_decay=0.1), nesterov),
    "adam": (g.optim.Adam(RATE, 0.8, 0.95, weight_decay=0.1), adam),
    "adamw": (g.optim.AdamW(RATE, 0.8, 0.95, weight_decay=0.1), adamw),
    "adagrad": (g.optim.Adagrad(RATE, 1e-3, weight_decay=0.1, initial=0.5), adagrad),
    "rmsprop": (g.optim.RMSProp(RATE, **RMS), rmsprop()),
    "rmsprop momentum": (g.optim.RMSProp(RATE, **RMS, momentum=0.7), rmsprop(0.7)),
    "rmsprop centered": (g.optim.RMSProp(RATE, **RMS, centered=True), rmsprop(0, True)),
    "rmsprop both": (
        g.optim.RMSProp(RATE, **RMS, momentum=0.7, centered=True), rmsprop(0.7, True),
    ),
    "lion": (g.optim.Lion(RATE, 0.8, 0.95, weight_decay=0.1), lion),
    "lamb": (g.optim.LAMB(RATE, 0.8, 0.95, 1e-3, weight_decay=0.1), lamb),
    "muon": (g.optim.Muon(RATE, 0.8, weight_decay=0.1), muon(True, 0.2 * 2)),
    "muon plain": (
        g.optim.Muon(RATE, 0.8, nesterov=False, weight_decay=0.1, adjust="original"),
        muon(False, 1.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_follows_the_formula(name):
    optimizer, formula = CASES[name]
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


def parameter_after_two_steps(optimizer):
    program = g.compile(quadratic(), optimizer=optimizer)
    start = program.parameters["w"]
    for _ in range(2):
        program.step({"target": TARGET})
    return start, program.parameters["w"]


def test_adam_with_integer_betas_of_zero_divides_the_gradient_by_its_size():
    start, found = parameter_after_two_steps(g.optim.Adam(RATE, beta1=0, beta2=0))
    for _ in range(2):
        start = start - RATE * slope(start) / (np.abs(slope(start)) + 1e-8)
    np.testing.assert_allclose(found, start, rtol=1e-6)


@pytest.mark.parametrize("kind", sorted({type(o) for o, _ in CASES.values()}, key=str))
def test_integers_are_floats(kind):
    names = {each.name for each in dataclasses.fields(kind) if isinstance(each.default, float)}
    for name in sorted(names):
        number = int(name in {"learning_rate", "epsilon"})
        _, floats = parameter_after_two_steps(kind(**{name: float(number)}))
        _, integers = parameter_after_two_steps(kind(**{name: number}))
        np.testing.assert_array_equal(floats, integers, err_msg=name)


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
        lambda: g.optim.Adagrad(initial=-1),
        lambda: g.optim.RMSProp(alpha=1.0),
        lambda: g.optim.RMSProp(momentum=1.5),
        lambda: g.optim.Lion(beta2=1.0),
        lambda: g.optim.LAMB(epsilon=-1),
        lambda: g.optim.Muon(momentum=1.0),
        lambda: g.optim.Muon(rounds=100),
    ],
)
def test_settings_out_of_range(make):
    with pytest.raises(OptionError, match="must be between"):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: g.optim.Adam(beta2=1.0), r"beta2 must be between 0 and 0\.999999999, got 1\.0"),
        (lambda: g.optim.Adam("0.1"), "learning_rate must be a number between 0 and .*, got '0.1'"),
        (lambda: g.optim.Lion(beta1=True), "beta1 must be a number between 0 and .*, got True"),
    ],
)
def test_errors_of_settings_state_bounds_and_kind(make, message):
    with pytest.raises(OptionError, match=message):
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
