"""Optimizers by parameters' names, and what each optimizer does beside matrices of one dtype."""

import numpy as np
import pytest

import graphc as g
from graphc.errors import OptionError
from graphc.optim import OPTIMIZERS

RNG = np.random.default_rng(0)
TARGETS = {"first/w": RNG.standard_normal((3, 2)), "first/b": RNG.standard_normal(4),
           "last/w": RNG.standard_normal((2, 2))}  # fmt: skip


def quadratics(names=tuple(TARGETS)):
    """The sum of mean((w - target)²) over parameters that begin with 1."""
    one, total = g.Initial("constant", 1.0), None
    for name in names:
        target = TARGETS[name]
        w = g.parameter(name, target.shape, "float64", one)
        term = g.mse(w, g.constant(target))
        total = term if total is None else total + term
    return total


def slope(name, w):
    return 2 * (w - TARGETS[name]) / w.size


def after_a_step(optimizer, feeds=None, **options):
    program = g.compile(quadratics(), optimizer=optimizer, **options)
    program.step(feeds or {})
    return program.parameters


def test_the_first_pattern_found_decides():
    optimizer = g.optim.Groups(
        [("/b$", g.optim.SGD(0.5)), ("first", g.optim.Momentum(0.25))],
        default=g.optim.AdamW(0.125, weight_decay=0.0),
    )
    found = after_a_step(optimizer)
    for name, rate in (("first/b", 0.5), ("first/w", 0.25)):
        expected = 1 - rate * slope(name, np.ones(TARGETS[name].shape))
        np.testing.assert_allclose(found[name], expected, rtol=1e-12)
    sign = np.sign(slope("last/w", np.ones((2, 2))))
    np.testing.assert_allclose(found["last/w"], 1 - 0.125 * sign, rtol=1e-6)


def test_every_group_has_a_rate_of_its_own():
    optimizer = g.optim.Groups(
        [("/b", g.optim.SGD(0.5)), ("last", g.optim.SGD(g.optim.Schedule(0.5, 9, form="linear")))],
        g.optim.SGD(0.25),
    )
    program = g.compile(quadratics(), optimizer=optimizer)
    rates = {x.name: x.default for x in program.graph.inputs}
    assert rates == {"group0/learning_rate": 0.5, "learning_rate": 0.25}
    found = after_a_step(optimizer, {"group0/learning_rate": 0.0, "learning_rate": 0.125})
    np.testing.assert_array_equal(found["first/b"], np.ones(4))
    expected = 1 - 0.125 * slope("first/w", np.ones((3, 2)))
    np.testing.assert_allclose(found["first/w"], expected, rtol=1e-12)


def test_groups_are_found_in_plans_files(tmp_path):
    optimizer = g.optim.Groups([("/b", g.optim.Lion())], g.optim.Adam())
    plan = g.plan(quadratics(), optimizer=optimizer)
    g.save_plan(plan, tmp_path / "plan")
    assert g.format_graph(g.load_plan(tmp_path / "plan").graph) == g.format_graph(plan.graph)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda: g.optim.Groups([("(", g.optim.SGD())], g.optim.SGD()),
            "not a valid regular expression",
        ),
        (
            lambda: g.optim.Groups([(3, g.optim.SGD())], g.optim.SGD()),
            "not a valid regular expression",
        ),
        (lambda: g.optim.Groups([g.optim.SGD()], g.optim.SGD()), "pairs"),
        (lambda: g.optim.Groups([("w", 0.1)], g.optim.SGD()), "must be an object such as"),
        (lambda: g.optim.Groups([], g.optim.SGD), "must be an object such as"),
        (lambda: g.optim.SGD(nesterov=True), "momentum above 0"),
        (lambda: g.optim.Muon(adjust="rms"), "adjust"),
    ],
)
def test_malformed_parameter_groups_are_refused(make, match):
    with pytest.raises(OptionError, match=match):
        make()


@pytest.mark.parametrize("patterns", [["bias"], ["first", "first/w"]])
def test_a_group_without_a_parameter_is_told(patterns):
    groups = [(pattern, g.optim.SGD()) for pattern in patterns]
    with pytest.raises(OptionError, match=f"no parameter belongs to the group '{patterns[-1]}'"):
        g.plan(quadratics(), optimizer=g.optim.Groups(groups, g.optim.SGD()))


# --- what all optimizers can ---

every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


def network(batch, dtype="float32"):
    x = g.input("x", (batch, 4), dtype)
    h = g.tanh(g.linear(x, 6, name="a"))
    h = g.layer_norm(g.linear(h, 5, name="b"))
    return g.mean(g.linear(h, 3, name="c") ** 2)


@every_optimizer
def test_micro_batches_give_the_step_of_the_whole_batch(name):
    make, x = OPTIMIZERS[name], RNG.standard_normal((8, 4))
    options = {"optimizer": make(0.0625), "clip_norm": 0.5, "kernels": "numpy"}
    whole = g.compile(network(8, "float64"), **options)
    parts = g.compile(network(4, "float64"), accumulate=2, **options)
    whole.step(x=x)
    parts.step(x=x.reshape(2, 4, 4))
    for each, value in whole.parameters.items():
        np.testing.assert_allclose(parts.parameters[each], value, rtol=1e-7, atol=1e-9)


@every_optimizer
def test_a_step_that_overflows_changes_nothing(name):
    make = OPTIMIZERS[name]
    program = g.compile(network(4), optimizer=make(1e-3), precision="fp16")
    x = RNG.standard_normal((4, 4)).astype(np.float32)
    program.step(x=x)
    before = dict(program.states)
    program.step(x=x * np.float32(1e7))
    for state, value in program.states.items():
        if not state.startswith("loss_scale/"):
            np.testing.assert_array_equal(value, before[state], err_msg=state)
    program.step(x=x)
    assert any(not np.array_equal(v, before[s]) for s, v in program.parameters.items())


@every_optimizer
def test_bits_do_not_depend_on_the_allocation(name):
    x = RNG.standard_normal((4, 4)).astype(np.float32)
    results = []
    for allocate in ("none", "packed"):
        program = g.compile(network(4), optimizer=OPTIMIZERS[name](0.1), allocate=allocate)
        for _ in range(2):
            program.step(x=x)
        results.append(dict(program.states))
    for state, value in results[0].items():
        np.testing.assert_array_equal(value, results[1][state], err_msg=state)


@pytest.mark.parametrize("optimizer", [g.optim.LAMB(0.5), g.optim.Muon(0.5)])
def test_parameters_and_gradients_of_zeros_stay(optimizer):
    w = g.parameter("w", (3, 2), "float64")
    loss = g.sum(w * g.input("x", (3, 2), "float64"))
    program = g.compile(loss, optimizer=optimizer, check_finite=True)
    program.step(x=np.zeros((3, 2)))
    np.testing.assert_array_equal(program.parameters["w"], np.zeros((3, 2)))


def test_muon_makes_singular_values_alike():
    x = g.input("x", (20, 7), "float64")
    y = g.compile(outputs={"y": g.optim.muon.orthogonal(x, 5)}).step(
        x=RNG.standard_normal((20, 7))
    )["y"]
    values = np.linalg.svd(y, compute_uv=False)
    assert 0.6 < values.min() < values.max() < 1.3


def test_muon_leaves_vectors_to_another_optimizer():
    own = g.optim.Muon(0.5, others=g.optim.SGD(0.25))
    program = g.compile(quadratics(), optimizer=own)
    assert {"learning_rate", "others/learning_rate"} == {x.name for x in program.graph.inputs}
    program.step()
    expected = 1 - 0.25 * slope("first/b", np.ones(4))
    np.testing.assert_allclose(program.parameters["first/b"], expected, rtol=1e-12)
    shared = g.plan(quadratics(), optimizer=g.optim.Muon(0.5)).graph
    assert [x.name for x in shared.inputs] == ["learning_rate"]
    assert {n.op.name for n in shared.effects} == {"muon_update", "adamw_update", "increment"}
