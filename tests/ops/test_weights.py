"""Functions that make weights also take them: the same numbers, sizes from the weight."""

import numpy as np
import pytest

import graphc as g
from graphc.errors import DTypeError, GraphcError, OptionError, ShapeError

X = np.random.default_rng(0).standard_normal((2, 4, 6, 6)).astype(np.float32)
ROWS = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)


def made_and_given(make, take, inputs):
    """The outputs of the form that makes weights, and of that which takes them, by equal ones."""
    values = {name: g.input(name, x.shape, x.dtype) for name, x in inputs.items()}
    made = g.compile(outputs=[make(*values.values())], seed=3)
    weights = {
        state.name.replace("/", "_"): g.parameter(state.name, state.shape, initial=state.initial)
        for state in made.graph.states
    }
    given = g.compile(outputs=[take(*values.values(), weights)], seed=3)
    assert {*given.states} <= {*made.states}
    return made.step(inputs)["output0"], given.step(inputs)["output0"]


FORMS = {
    "linear": (
        lambda x: g.linear(x, 5), lambda x, w: g.linear(x, weight=w["weight"], bias=w["bias"]),
    ),
    "linear without a bias": (
        lambda x: g.linear(x, 5, bias=False), lambda x, w: g.linear(x, 5, weight=w["weight"]),
    ),
    "embedding": (
        lambda x: g.embedding(g.cast(x * 0, "int32"), 7, 3),
        lambda x, w: g.embedding(g.cast(x * 0, "int32"), weight=w["weight"]),
    ),
    "layer_norm": (
        g.layer_norm, lambda x, w: g.layer_norm(x, scale=w["norm_scale"], bias=w["norm_bias"]),
    ),
    "layer_norm without a bias": (
        g.layer_norm, lambda x, w: g.layer_norm(x, scale=w["norm_scale"]),
    ),
    "rms_norm": (g.rms_norm, lambda x, w: g.rms_norm(x, scale=w["norm_scale"])),
}  # fmt: skip

MAP_FORMS = {
    "conv2d": (
        lambda x: g.conv2d(x, 6, (3, 2), stride=2, padding=1, groups=2),
        lambda x, w: g.conv2d(
            x, window=(3, 2), stride=2, padding=1, groups=2, weight=w["weight"], bias=w["bias"]
        ),
    ),
    "conv_transpose2d": (
        lambda x: g.conv_transpose2d(x, 6, (3, 2), stride=2, groups=2),
        lambda x, w: g.conv_transpose2d(
            x, 6, stride=2, groups=2, weight=w["weight"], bias=w["bias"]
        ),
    ),
    "group_norm": (
        lambda x: g.group_norm(x, 2),
        lambda x, w: g.group_norm(x, 2, scale=w["norm_scale"], bias=w["norm_bias"]),
    ),
    "batch_norm": (
        g.batch_norm,
        lambda x, w: g.batch_norm(
            x, scale=w["norm_scale"], running_mean=w["norm_running_mean"],
            running_variance=w["norm_running_variance"], frozen=True,
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_given_weights_compute_what_made_ones_do(name):
    made, given = made_and_given(*FORMS[name], {"x": ROWS})
    assert made.tobytes() == given.tobytes()


@pytest.mark.parametrize("name", MAP_FORMS)
def test_given_weights_of_maps_compute_what_made_ones_do(name):
    made, given = made_and_given(*MAP_FORMS[name], {"x": X})
    assert made.tobytes() == given.tobytes()


def test_any_value_may_be_a_weight():
    x, factor = g.input("x", (3, 4)), g.parameter("factor", (), initial=g.Initial("constant", 2.0))
    table = np.arange(8, dtype=np.float32).reshape(2, 4)
    y = g.linear(x, weight=g.constant(table) * factor, bias=g.constant([1.0, -1.0]))
    program = g.compile(g.mean(y), outputs={"y": y}, optimizer=g.optim.SGD(0.5))
    found = program.step(x=ROWS)
    expected = ROWS.astype(float) @ (2 * table.T.astype(float)) + [1, -1]
    assert found["y"] == pytest.approx(expected, rel=1e-5)
    slope = np.mean(ROWS.astype(float) @ table.T.astype(float))
    assert program.parameters["factor"] == pytest.approx(2 - 0.5 * slope, rel=1e-5)


def test_a_cell_takes_weights_without_biases():
    x, h = g.input("x", (3, 4)), g.input("h", (3, 2))
    w, u = (
        g.constant(np.ones((6, 4)) / 8, dtype="float32"),
        g.constant(np.eye(6, 2), dtype="float32"),
    )
    program = g.compile(outputs=[g.gru_cell(x, h, g.CellParameters(w, None, u, None))])
    state = ROWS[:, :2]
    a, b = ROWS.astype(float) @ np.ones((4, 6)) / 8, state.astype(float) @ np.eye(6, 2).T
    r, z = (1 / (1 + np.exp(-a[:, i : i + 2] - b[:, i : i + 2])) for i in (0, 2))
    n = np.tanh(a[:, 4:] + r * b[:, 4:])
    assert program.step(x=ROWS, h=state)["output0"] == pytest.approx(n + z * (state - n), rel=1e-5)


def test_given_statistics_move_in_training_and_frozen_ones_do_not():
    def program(frozen):
        x = g.input("x", X.shape)
        mean = g.parameter("mean", (4,), trainable=False)
        variance = g.parameter(
            "variance", (4,), initial=g.Initial("constant", 1.0), trainable=False
        )
        y = g.batch_norm(
            x, running_mean=mean, running_variance=variance, momentum=0.5, frozen=frozen
        )
        loss = g.mean(y * y)
        return g.compile(loss, outputs={"y": y}, optimizer=g.optim.SGD(0.0))

    moving, frozen = program(frozen=False), program(frozen=True)
    x = X.astype(float)
    axes = (0, 2, 3)
    moving.step(x=X)
    assert moving.states["mean"] == pytest.approx(x.mean(axes) / 2, rel=1e-4)
    assert moving.states["variance"] == pytest.approx(0.5 + x.var(axes, ddof=1) / 2, rel=1e-4)
    assert frozen.step(x=X)["y"] == pytest.approx(x / np.sqrt(1 + 1e-5), rel=1e-5)
    assert (frozen.states["mean"] == 0).all()
    assert "norm/scale" in frozen.parameters


def weight(*shape):
    return g.parameter("w", shape)


MAP, ROW = g.input("x", (2, 4, 6, 6)), g.input("x", (3, 4))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: g.conv2d(MAP), OptionError, "filters and window not given"),
        (lambda: g.conv2d(MAP, 3), OptionError, "window not given"),
        (lambda: g.conv2d(MAP, 3, weight=weight(5, 4, 3, 3)), ShapeError,
         r"filters is 3, but the weight, f32\[5,4,3,3\], has 5"),
        (lambda: g.conv2d(MAP, window=2, weight=weight(5, 4, 3, 3)), ShapeError,
         r"window is \(2, 2\), but the weight, f32\[5,4,3,3\], has \(3, 3\)"),
        (lambda: g.conv2d(MAP, weight=weight(5, 3, 3, 3)), ShapeError,
         "x's channels is 4, but the weight, .*, has 3"),
        (lambda: g.conv2d(MAP, weight=weight(5, 4)), ShapeError, "rows, columns"),
        (lambda: g.conv2d(MAP, weight=weight(5, 4, 3, 3), bias=weight(4)), ShapeError, "bias"),
        (lambda: g.conv2d(MAP, 5, 3, bias=[1.0]), OptionError, "bias must be True or False, or a"),
        (lambda: g.conv2d(MAP, "x", 3), OptionError, "filters must be an integer"),
        (lambda: g.conv2d(MAP, weight=np.ones((5, 4, 3, 3))), OptionError, "constant"),
        (lambda: g.conv2d(MAP, weight=weight(5, 4, 3, 3), trainable=False), OptionError,
         "trainable=False applies only to a weight"),
        (lambda: g.conv_transpose2d(MAP, weight=weight(3, 5, 2, 2)), ShapeError,
         "x's channels is 4, but the weight, .*, has 3"),
        (lambda: g.conv_transpose2d(MAP, 7, weight=weight(4, 5, 2, 2)), ShapeError, "filters is 7"),
        (lambda: g.conv_transpose2d(MAP, 5, 2, groups=2), ShapeError,
         "divisible by the 2 groups, got 5"),
        (lambda: g.conv_transpose2d(MAP), OptionError, "filters and window not given"),
        (lambda: g.linear(ROW), OptionError, "outputs not given"),
        (lambda: g.linear(ROW, 7, weight=weight(5, 4)), ShapeError, "outputs is 7, .* has 5"),
        (lambda: g.linear(ROW, weight=weight(5, 3)), ShapeError, "x's last axis is 4, .* has 3"),
        (lambda: g.linear(ROW, weight=weight(5)), ShapeError, r"weight must be \(outputs, in"),
        (lambda: g.linear(ROW, weight(5, 4)), ShapeError, "outputs must be an integer"),
        (lambda: g.linear(ROW, True), ShapeError, "outputs must be an integer .*, got True"),
        (lambda: g.linear(g.cast(ROW, "int32"), 3), DTypeError,
         "linear: needs a float dtype, got int32; convert with graphc.cast"),
        (lambda: g.conv2d(g.cast(MAP, "int32"), 4, 3), DTypeError, "conv2d: needs a float dtype"),
        (lambda: g.embedding(g.cast(ROW, "int32"), 3, 4, "int32"), OptionError,
         "a random initial value needs a float dtype"),
        (lambda: g.embedding(g.cast(ROW, "int32"), True, 4), ShapeError,
         r"a shape must be a sequence of integers, got \(True, 4\)"),
        (lambda: g.lstm_parameters(4, 0), OptionError, "lstm_parameters: hidden must be an int"),
        (lambda: g.embedding(ROW, 3), OptionError, "width not given"),
        (lambda: g.embedding(ROW, 3, weight=weight(5, 2)), ShapeError, "rows is 3, .* has 5"),
        (lambda: g.layer_norm(ROW, scale=weight(3)), ShapeError, r"one number per channel, \(4,"),
        (lambda: g.layer_norm(ROW, bias=3.0), OptionError, "bias: an operand must be a graphc"),
        (lambda: g.rms_norm(ROW, scale=weight(3)), ShapeError, "scale"),
        (lambda: g.rms_norm(ROW, scale=weight(4), trainable=False), OptionError, "trainable"),
        (lambda: g.batch_norm(MAP, running_mean=weight(4)), OptionError, "together"),
        (lambda: g.batch_norm(MAP, running_mean=weight(4), running_variance=weight(4)), OptionError,
         "a training step updates running_mean"),
        (lambda: g.batch_norm(MAP, running_mean=weight(3), running_variance=weight(4)), ShapeError,
         "running_mean must have one number per channel"),
    ],
)  # fmt: skip
def test_contradiction_errors_name_both_values(call, error, match):
    with pytest.raises(GraphcError, match=match) as caught:
        call()
    assert isinstance(caught.value, error)
