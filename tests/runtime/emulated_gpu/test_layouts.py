"""Whole steps on maps that lie channels-last, in a network of everything but convolutions.

Kernels of convolutions have tests of their own; the rule is told here that there are some.
"""

import numpy as np
import pytest
from runtime.emulated_gpu.networks import SEED, bits, fed, on_gpu, trained_each

import graphc as g
from graphc import Program, layouts
from graphc.ir.types import channels_last_strides, memory_order


def maps(dtype="float64"):
    """Norms, pools, upsampling, joining and cutting of maps, a weight like a map, and a loss."""
    x, t = g.input("x", (3, 4, 8, 8), dtype), g.input("t", (3,), "int32")
    h = g.relu(g.batch_norm(x, name="first"))
    low = g.max_pool2d(h, 3, 2, 1)
    low = g.gelu(g.batch_norm(low, name="low"))
    h = g.concat([h, g.upsample2d(low, 2)], 1)
    left, right = g.split(h, (3, 5), 1)
    h = g.concat([g.tanh(right), left * g.sigmoid(left)], 1)
    h = g.group_norm(h, 2, name="groups") * g.parameter(
        "mask", h.shape, dtype, g.Initial("uniform", 1.0)
    )
    h = g.average_pool2d(g.pad(h, ((0, 0), (0, 0), (1, 1), (1, 1))), 2) + g.reshape(
        g.parameter("shift", (8,), dtype), (8, 1, 1)
    )
    h = g.softmax(h, 1) + h[:, :, :, :]
    flat = g.reshape(h, (3, -1))
    logits = g.linear(g.concat([g.mean(h, (2, 3)), flat], 1), 5, name="last")
    return g.softmax_cross_entropy(logits, t)


@pytest.fixture(autouse=True)
def pretended(monkeypatch):
    monkeypatch.setattr(layouts, "has_convolutions", lambda graph: True)


def plan_of(**options):
    dtype = options.pop("dtype", "float64")
    return g.plan(maps(dtype), optimizer=g.optim.Adam(1e-2), device="cuda", **options)


def test_the_rule_reaches_every_kind_of_op():
    plan = plan_of(fuse=False)
    last = (0, 2, 3, 1)
    lying = {
        v.producer.op.name if v.node is not None else "state"
        for v, strides in plan.strided.items()
        if memory_order(v.shape, strides) == last and plan.placements[v].how != "view"
    }
    assert lying >= {
        "state", "adam_update", "batch_norm", "norm_input_gradient", "relu", "relu_gradient",
        "max_pool2d", "max_pool2d_gradient", "average_pool2d", "average_pool2d_gradient",
        "upsample_nearest2d", "concat", "group_norm", "pad_slice", "mul", "softmax",
        "softmax_gradient",
    }  # fmt: skip
    assert any(plan.placements[v].how == "part" for v in plan.graph.values)


@pytest.mark.parametrize(
    ("dtype", "precision", "tolerance"),
    [
        ("float64", "fp32", 1e-9),
        pytest.param("float32", "fp32", 2e-4, marks=pytest.mark.slow),
        ("float32", "bf16", 1e-1),
    ],
)
def test_steps_equal_the_cpu_program(dtype, precision, tolerance):
    loss = maps(dtype)
    plan = g.plan(loss, optimizer=g.optim.Adam(1e-2), device="cuda", precision=precision)
    emulated, _ = on_gpu(plan)
    cpu = g.plan(loss, optimizer=g.optim.Adam(1e-2), precision=precision)
    program = Program(cpu, SEED)
    feeds = fed(plan)
    for _ in range(3):
        expected, found = program.step(feeds), emulated.step(feeds)
        np.testing.assert_allclose(found["loss"], expected["loss"], rtol=tolerance)
    for name, array in emulated.states.items():
        expected = program.states[name]
        np.testing.assert_allclose(
            array.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance,
            err_msg=name,
        )  # fmt: skip


def test_all_strategies_have_the_same_bits():
    strategies = (
        {}, {"allocate": "none"}, {"allocate": "inplace"}, {"allocate": "sharing"},
        {"recompute": "cheap"}, {"recompute": "sublinear"}, {"recompute": "optimal"},
    )  # fmt: skip
    plans = [plan_of(dtype="float32", **options) for options in strategies]
    found = trained_each(plans, steps=2)
    for options, run in zip(strategies, found, strict=True):
        assert run == found[0], options


def test_states_come_and_go_in_the_order_of_their_axes(tmp_path):
    """Whatever way they lie in the arena."""
    plan = plan_of()
    program, _ = on_gpu(plan)
    cpu = Program(g.plan(maps(), optimizer=g.optim.Adam(1e-2)), SEED)
    (state,) = (s for s in plan.graph.states if s.name == "mask")
    assert plan.strided[state] == channels_last_strides(state.type)
    assert bits(program) == bits(cpu)  # as they were drawn
    program.step(fed(plan))
    program.save(tmp_path / "run.safetensors")
    cpu.load(tmp_path / "run.safetensors")
    assert bits(cpu) == bits(program)
    values = np.arange(state.type.elements, dtype=np.float64).reshape(state.shape)
    program.parameters["mask"] = values
    np.testing.assert_array_equal(program.parameters["mask"], values)


def wide_classes():
    """Logits of an odd number of classes, joined from two layers, and a product of activations."""
    x, t = g.input("x", (6, 8)), g.input("t", (6,), "int32")
    h = g.relu(g.linear(x, 75, name="a"))
    h = h + g.linear(g.tanh(h), 75, name="b")
    return g.softmax_cross_entropy(g.linear(h, 91, name="c") * 0.5, t)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_padded_rows_change_no_bit_of_another_strategy(precision):
    """The stand-in for cuBLASLt has other bits for other rows, and NaN lies between them."""
    plans = [
        g.plan(
            wide_classes(), optimizer=g.optim.Momentum(1e-2), device="cuda", precision=precision,
            **options,
        )
        for options in ({}, {"allocate": "none"}, {"recompute": "sublinear"}, {"fuse": False})
    ]  # fmt: skip
    for plan in plans:
        assert [s for v, s in plan.strided.items() if plan.placements[v].how != "view"]
    results = trained_each(plans, poison=True)
    losses = [np.frombuffer(loss, np.float32).item() for loss in results[0][0]]
    assert all(np.isfinite(losses))
    assert all(result == results[0] for result in results[1:])
    cpu = g.plan(wide_classes(), optimizer=g.optim.Momentum(1e-2), precision=precision)
    twin = Program(cpu, SEED)
    expected = [twin.step(fed(cpu, step))["loss"].item() for step in range(3)]
    np.testing.assert_allclose(losses, expected, rtol=2e-2)
