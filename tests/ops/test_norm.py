"""Accuracy of statistics, running statistics, and inference."""

import numpy as np
import pytest

import graphc as g
from graphc.errors import OptionError
from graphc.ir.builder import apply
from graphc.ops.norm import EpsilonAttributes, LayerNorm

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("norm", "axes"),
    [
        (lambda x: g.batch_norm(x), (0, 2, 3)),
        (lambda x: g.group_norm(x, 2), None),
        (lambda x: g.layer_norm(x), (3,)),
    ],
    ids=["batch", "group", "layer"],
)
def test_mean_100_deviation_1_in_float32(norm, axes):
    x = (100 + RNG.standard_normal((16, 4, 24, 64))).astype(np.float32)
    y = norm(g.input("x", x.shape))
    found = g.compile(outputs={"y": y}, training=True, poison=True).step(x=x)["y"]
    exact = x.astype(np.float64)
    if axes is None:
        exact, axes = exact.reshape(16, 2, -1), (2,)
    mean, variance = exact.mean(axes, keepdims=True), exact.var(axes, keepdims=True)
    wanted = ((exact - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape)
    np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-5)


def trained(recompute, steps=3):
    x = g.input("x", (8, 3, 5, 5))
    with g.mirror(1):
        h = g.relu(g.batch_norm(g.conv2d(x, 4, 3, name="conv")))
    loss = g.mean(g.global_average_pool2d(h))
    program = g.compile(loss, optimizer=g.optim.SGD(0.1), recompute=recompute, poison=True)
    feeds = [RNG_FEEDS[i] for i in range(steps)]
    losses = [program.step(x=feed)["loss"].item() for feed in feeds]
    return program, losses


RNG_FEEDS = np.random.default_rng(1).standard_normal((3, 8, 3, 5, 5)).astype(np.float32)


def test_running_statistics_move_once_a_step_also_with_recomputation():
    (plain, losses), (again, other) = trained("none"), trained("mirror")
    assert again.plan.recomputation.nodes > 0
    assert losses == other
    for name, array in plain.states.items():
        np.testing.assert_array_equal(array, again.states[name])


def test_running_statistics_follow_the_formula():
    x = g.input("x", (6, 2, 3, 3))
    w = g.parameter("w", (1,), initial=g.Initial("constant", 1.0))
    program = g.compile(g.mean(g.batch_norm(x, momentum=0.25) * w), optimizer=g.optim.SGD(0.0))
    mean, variance = np.zeros(2), np.ones(2)
    for feed in (2 + 3 * RNG.standard_normal((4, 6, 2, 3, 3))).astype(np.float32):
        program.step(x=feed)
        exact = feed.astype(np.float64)
        mean = 0.75 * mean + 0.25 * exact.mean((0, 2, 3))
        variance = 0.75 * variance + 0.25 * exact.var((0, 2, 3), ddof=1)
    np.testing.assert_allclose(program.states["norm/running_mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(program.states["norm/running_variance"], variance, rtol=1e-5)


def test_inference_uses_the_running_statistics():
    x = g.input("x", (6, 2, 3, 3))
    program = g.compile(outputs={"y": g.batch_norm(x)})
    program.states["norm/running_mean"] = np.array([1, 2], np.float32)
    program.states["norm/running_variance"] = np.array([4, 9], np.float32)
    given = RNG.standard_normal((6, 2, 3, 3)).astype(np.float32)
    shape = (1, 2, 1, 1)
    mean, deviation = np.array([1, 2]).reshape(shape), np.array([2, 3]).reshape(shape)
    np.testing.assert_allclose(
        program.step(x=given)["y"], (given - mean) / deviation, rtol=1e-5, atol=1e-6
    )


def test_equal_channels_do_not_divide_by_zero():
    y = g.batch_norm(g.input("x", (4, 2)))
    found = g.compile(outputs={"y": y}, training=True).step(x=np.full((4, 2), 7, np.float32))["y"]
    np.testing.assert_array_equal(found, np.zeros((4, 2), np.float32))


def test_a_loss_may_depend_on_statistics_alone():
    """Scale and bias then get no gradient, which is no error."""
    x = g.input("x", (3, 5), "float64")
    scale, bias = (g.parameter(name, (5,), "float64") for name in ("scale", "bias"))
    node = apply(LayerNorm, x, scale, bias, attributes=EpsilonAttributes(1e-5))
    loss = g.sum(node.outputs[1] * node.outputs[2])
    slopes = g.gradient(loss, [x, scale, bias])
    given = RNG.standard_normal((3, 5))
    found = list(g.compile(outputs=slopes, training=True).step(x=given).values())
    left, inverse = given - given.mean(1, keepdims=True), (given.var(1) + 1e-5)[:, None] ** -0.5
    expected = inverse / 5 - given.mean(1, keepdims=True) * inverse**3 * left / 5
    np.testing.assert_allclose(found[0], expected, rtol=1e-11)
    np.testing.assert_array_equal(found[1:], np.zeros((2, 5)))


@pytest.mark.parametrize(
    "norm",
    [
        g.layer_norm,
        lambda x, scale: g.group_norm(x, 2, scale=scale),
        g.instance_norm,
        g.batch_norm,
        g.rms_norm,
    ],
    ids=["layer", "group", "instance", "batch", "rms"],
)
def test_a_gradient_penalty_in_16_bits_is_near_that_in_64(norm):
    """The norm of the input's gradient is a loss: it passes every gradient of the norm again."""
    slopes, rng = {}, np.random.default_rng(0)
    given, target = rng.standard_normal((2, 3, 4, 5, 4))
    factors = rng.uniform(0.5, 1.5, 4)
    for dtype in ("float16", "float64"):
        feeds = {"x": given.astype(dtype), "scale": factors.astype(dtype)}
        x, scale = (g.input(name, array.shape, dtype) for name, array in feeds.items())
        y = norm(x, scale=scale)
        (inner,) = g.gradient(g.sum(y * y * g.constant(target.astype(dtype))), [x])
        penalty = g.mean(inner * inner)
        named = dict(zip(feeds, g.gradient(penalty, [x, scale]), strict=True))
        program = g.compile(penalty, outputs=named, training=True, poison=True)
        slopes[dtype] = program.step(feeds)
    for name in ("x", "scale"):
        exact = slopes["float64"][name]
        size = np.abs(exact).max()
        assert size > 0.1
        np.testing.assert_allclose(slopes["float16"][name], exact, atol=0.01 * size, rtol=0)


@pytest.mark.parametrize(
    "norm",
    [g.layer_norm, g.rms_norm, g.batch_norm, g.instance_norm, lambda x, e: g.group_norm(x, 2, e)],
)
@pytest.mark.parametrize("epsilon", [1, 8, 1.5])
def test_an_extent_in_the_place_of_epsilon_is_refused(norm, epsilon):
    x = g.input("x", (2, 4, 8))
    with pytest.raises(OptionError, match=rf"epsilon must be below 1, got {epsilon}; the extent"):
        norm(x, epsilon)
