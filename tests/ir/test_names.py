"""Names of the states of layers that are created without a name."""

import numpy as np
import pytest

import graphc as g
from graphc.errors import CheckpointError, GraphError
from graphc.ir.builder import trace


def names(**outputs):
    return [state.name for state in trace(outputs).states]


def three_layers():
    h = g.input("x", (2, 4))
    with g.scope("block"):
        for _ in range(3):
            h = g.relu(g.linear(h, 4, bias=False))
    return h


NUMBERED = ["block/weight", "block/linear_1/weight", "block/linear_2/weight"]


def test_unnamed_layers_of_one_scope_are_numbered_in_every_network_alike():
    assert names(y=three_layers()) == NUMBERED
    assert names(y=three_layers()) == NUMBERED
    assert names(y=g.linear(g.input("x", (2, 4)), 3)) == ["weight", "bias"]


LAYERS = {
    "embedding": (lambda x, i: g.embedding(i, 3, 4), "embedding", "weight"),
    "linear": (lambda x, i: g.linear(x, 4), "linear", "weight"),
    "conv1d": (lambda x, i: g.conv1d(x[None], 4, 1), "conv1d", "weight"),
    "conv_transpose2d": (lambda x, i: g.conv_transpose2d(x[None, None], 1, 1), None, "weight"),
    "layer_norm": (lambda x, i: g.layer_norm(x), "norm", "norm/scale"),
    "group_norm": (lambda x, i: g.group_norm(x, 2), "norm", "norm/scale"),
    "instance_norm": (lambda x, i: g.instance_norm(x[None]), "norm", "norm/scale"),
    "batch_norm": (lambda x, i: g.batch_norm(x), "norm", "norm/scale"),
    "rms_norm": (lambda x, i: g.rms_norm(x), "norm", "norm/scale"),
    "lstm": (lambda x, i: g.lstm_parameters(2, 3).input_weight, "lstm", "input/weight"),
    "gru": (lambda x, i: g.gru_parameters(2, 3).hidden_weight, "gru", "hidden/weight"),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_function_is_numbered(layer):
    build, kind, first = LAYERS[layer]
    x, i = g.input("x", (2, 4)), g.input("i", (2,), "int32")
    found = names(a=g.sum(build(x, i)), b=g.sum(build(x, i)))
    kind = kind or layer
    assert first in found
    assert f"{kind}_1/{first.removeprefix('norm/')}" in found
    assert len(found) == len(set(found))


def test_kinds_are_numbered_separately_and_norms_count_together():
    x = g.input("x", (2, 4))
    h = g.rms_norm(g.layer_norm(g.linear(x, 4)))
    h = g.reshape(g.conv1d(g.reshape(h, (2, 4, 1)), 4, 1), (2, 4))
    found = names(y=g.linear(h, 4))
    assert [name for name in found if not name.endswith("bias")] == [
        "weight", "norm/scale", "norm_1/scale", "conv1d/weight", "linear_1/weight",
    ]  # fmt: skip


def test_names_that_users_give_come_first():
    x = g.input("x", (2, 4))
    h = g.linear(x, 4, bias=False)
    h = g.linear(h, 4, bias=False, name="linear")
    h = g.linear(h, 4, bias=False) * g.parameter("weight", (4,))
    assert names(y=h) == ["linear_1/weight", "linear/weight", "linear_2/weight", "weight"]


def test_layers_whose_names_differ_keep_them():
    x = g.input("x", (2, 4))
    h = g.linear(x, 4, bias=False) + g.lstm_parameters(4, 1).input_bias
    assert names(y=h + g.parameter("bias", (4,))) == ["weight", "input/bias", "bias"]


def test_a_tied_weight_and_copies_are_no_second_layer():
    x = g.input("x", (2, 4))
    h = g.linear(x, 4, bias=False)
    (weight,) = trace({"h": h}).states
    loss = g.sum(g.linear(g.relu(h), weight=weight))
    (slope,) = g.gradient(loss, [weight])
    assert names(loss=loss, slope=slope) == ["weight"]
    plan = g.plan(loss, optimizer=g.optim.SGD(0.1), recompute="sublinear")
    assert {s.name for s in plan.graph.states if s.role == "parameter"} == {"weight"}


def test_a_layer_keeps_its_name_in_later_programs():
    x = g.input("x", (2, 4))
    first, second = g.linear(x, 3, bias=False), g.linear(x, 3, bias=False)
    assert names(y=second) == ["weight"]
    assert names(y=first + second) == ["linear/weight", "weight"]
    assert names(y=first) == ["linear/weight"]


def test_checkpoints_of_two_builds_fit(tmp_path):
    def program(seed):
        y = three_layers()
        return g.compile(g.sum(y * y), outputs={"y": y}, optimizer=g.optim.Adam(1e-3), seed=seed)

    first, second = program(1), program(2)
    first.step(x=np.ones((2, 4), "float32"))
    first.save(tmp_path / "run.safetensors")
    second.load(tmp_path / "run.safetensors")
    assert list(second.parameters) == NUMBERED
    for name in NUMBERED:
        assert np.array_equal(first.parameters[name], second.parameters[name])
    part = g.compile(outputs=[g.linear(g.input("x", (2, 4)), 4, bias=False)])
    with pytest.raises(CheckpointError, match="linear_1"):
        part.load(tmp_path / "run.safetensors")


def test_equal_names_that_users_give_are_an_error_with_both_lines():
    x = g.input("x", (2, 3))
    with g.scope("head"):
        y = g.linear(g.linear(x, 3, name="fc"), 3, name="fc")
    places = (
        r"'head/fc/weight', f32\[3,3\] from .*test_names.py:\d+ and .*test_names.py:\d+; .*name="
    )
    with pytest.raises(GraphError, match=places):
        trace({"y": y})
