"""Convolutions along one and three axes against windows by NumPy, and their transposes."""

import numpy as np
import pytest
from ops.test_every_op import check_gradient
from ops.windows_reference import convolution

import graphc as g
from graphc.errors import OptionError, ShapeError

RNG = np.random.default_rng(0)

FORWARD = {
    "length": ((2, 4, 11), (6, 2, 3), (2,), ((1, 2),), (2,), 2),
    "volume": ((2, 2, 5, 6, 7), (4, 2, 3, 2, 3), (1, 2, 1), ((1, 0), (0, 2), (1, 1)), (1, 1, 2), 1),
    "strided volume": ((2, 4, 6, 4, 5), (6, 2, 2, 2, 1), (2, 1, 2), ((0, 1),) * 3, (3, 1, 1), 2),
    "one image": (
        (1, 2, 7, 3, 3), (3, 2, 3, 1, 2), (3, 1, 1), ((2, 2), (0, 0), (0, 0)), (1, 1, 1), 1
    ),
    "flat window": ((2, 3, 4, 3, 3), (2, 3, 1, 2, 2), (1, 1, 1), ((0, 0),) * 3, (1, 1, 1), 1),
}  # fmt: skip


def layers(axes):
    return {1: (g.conv1d, g.conv_transpose1d), 3: (g.conv3d, g.conv_transpose3d)}[axes]


@pytest.mark.parametrize("name", FORWARD)
def test_convolutions_are_windows_times_filters(name):
    x_shape, w_shape, stride, sides, dilation, groups = FORWARD[name]
    x, w, b = (
        g.input(n, s, "float64") for n, s in (("x", x_shape), ("w", w_shape), ("b", w_shape[:1]))
    )
    forward, _ = layers(len(stride))
    y = forward(x, stride=stride, padding=sides, dilation=dilation, groups=groups, weight=w, bias=b)
    feeds = {v.name: RNG.standard_normal(v.shape) for v in (x, w, b)}
    wanted = convolution(feeds["x"], feeds["w"], stride, sides, dilation, groups)
    wanted += feeds["b"].reshape(-1, *(1 for _ in stride))
    found = g.compile(outputs={"y": y}, poison=True).step(feeds)["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FORWARD)
def test_transposed_convolutions_are_transposes(name):
    """<conv(x), y> = <x, conv_transpose(y)>, where output_padding gives x its extents back."""
    x_shape, w_shape, stride, sides, dilation, groups = FORWARD[name]
    forward, transposed = layers(len(stride))
    options = {"stride": stride, "padding": sides, "dilation": dilation, "groups": groups}
    x, w = g.input("x", x_shape, "float64"), g.input("w", w_shape, "float64")
    y = forward(x, weight=w, **options)
    dy = g.input("dy", y.shape, "float64")
    short = transposed(dy, weight=w, **options)
    extra = [n - m for n, m in zip(x_shape[2:], short.shape[2:], strict=True)]
    dx = transposed(dy, weight=w, output_padding=extra, **options)
    assert dx.shape == x.shape
    program = g.compile(outputs={"forward": g.sum(y * dy), "back": g.sum(x * dx)}, poison=True)
    found = program.step({v.name: RNG.standard_normal(v.shape) for v in (x, w, dy)})
    assert found["forward"] == pytest.approx(found["back"], rel=1e-12)


@pytest.mark.parametrize("transpose", [False, True])
def test_gradients_of_a_volume(transpose):
    x, w = g.input("x", (1, 2, 3, 2, 3), "float64"), g.input("w", (2, 2, 2, 2, 2), "float64")
    layer = layers(3)[transpose]
    loss = g.sum(g.tanh(layer(x, stride=(2, 1, 1), padding=((1, 0), (0, 0), (1, 1)), weight=w)))
    check_gradient(loss, [x, w], {v.name: RNG.standard_normal(v.shape) for v in (x, w)})


def test_layers_make_their_parameters():
    y = g.conv1d(g.input("x", (2, 6, 8)), 4, 3, groups=2, name="a")
    z = g.conv_transpose1d(y, 6, 4, stride=2, padding=1, groups=2, name="b")
    volume = g.conv3d(g.reshape(z, (2, 6, 2, 2, 3)), 4, (1, 2, 3), bias=False, name="c")
    last = g.conv_transpose3d(volume, 3, (1, 2, 3), name="d")
    shapes = {s.name: s.shape for s in g.plan(outputs=[last]).graph.states}
    assert shapes == {
        "a/weight": (4, 3, 3), "a/bias": (4,), "b/weight": (4, 3, 4), "b/bias": (6,),
        "c/weight": (4, 6, 1, 2, 3), "d/weight": (4, 3, 1, 2, 3), "d/bias": (3,),
    }  # fmt: skip
    assert (y.shape, z.shape) == ((2, 4, 6), (2, 6, 12))
    assert (volume.shape, last.shape) == ((2, 4, 2, 1, 1), (2, 3, 2, 2, 3))


def test_a_line_is_a_row_of_a_map_and_copies_nothing():
    plan = g.plan(outputs=[g.conv1d(g.input("x", (2, 3, 9)), 4, 3)])
    assert [n.op.name for n in plan.graph.nodes] == ["reshape", "reshape", "conv2d", "reshape"]
    assert len([p for p in plan.placements.values() if p.how == "view"]) == 3


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda x, v: g.conv1d(v, 4, 3), ShapeError),
        (lambda x, v: g.conv1d(x, 4, 9), ShapeError),
        (lambda x, v: g.conv1d(x, 4), OptionError),
        (lambda x, v: g.conv1d(x, 4, (3, 3)), OptionError),
        (lambda x, v: g.conv1d(x, 4, 3, groups=2), ShapeError),
        (lambda x, v: g.conv1d(x, 4, 3, groups=0), OptionError),
        (lambda x, v: g.conv1d(x, 4, 3, padding=-1), OptionError),
        (lambda x, v: g.conv1d(x, 4, 3, padding=((1, 1), (1, 1))), OptionError),
        (lambda x, v: g.conv1d(x, weight=v), ShapeError),
        (lambda x, v: g.conv3d(v, 4, 4), ShapeError),
        (lambda x, v: g.conv3d(v, 0, 2), OptionError),
        (lambda x, v: g.conv1d(x, 5, weight=g.full((4, 3, 2), 1.0)), ShapeError),
        (lambda x, v: g.conv_transpose1d(x, 4, 3, output_padding=1), OptionError),
        (lambda x, v: g.conv_transpose3d(v, 4, 1, padding=2), ShapeError),
        (lambda x, v: g.conv2d(v[0], 4, 1, padding=((1, 1), (1, 1), (1, 1))), OptionError),
    ],
)
def test_operands_that_do_not_fit_are_refused(build, error):
    with pytest.raises(error):
        build(g.input("x", (2, 3, 6)), g.input("v", (2, 3, 3, 3, 3)))
