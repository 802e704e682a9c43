"""Windows as columns and back, depth and space, and instance norm, against NumPy."""

import numpy as np
import pytest
from ops.windows_reference import all_windows

import graphc as g
from graphc.errors import OptionError, ShapeError

RNG = np.random.default_rng(0)

WINDOWS = {
    "line": ((2, 3, 9), (3,), (2,), ((1, 2),), (2,)),
    "map": ((2, 2, 5, 6), (2, 3), (1, 2), ((0, 1), (2, 0)), (2, 1)),
    "volume": ((1, 2, 4, 3, 5), (2, 1, 2), (2, 1, 1), ((0, 0), (0, 0), (1, 1)), (1, 1, 2)),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_columns_are_windows_and_folding_is_the_transpose(name):
    shape, size, stride, sides, dilation = WINDOWS[name]
    x = g.input("x", shape, "float64")
    columns = g.im2col(x, size, stride, sides, dilation)
    dy = g.input("dy", columns.shape, "float64")
    back = g.col2im(dy, shape[2:], size, stride, sides, dilation)
    (dx,) = g.gradient(g.sum(columns * dy), [x])
    outputs = {"columns": columns, "back": back, "dx": dx}
    feeds = {v.name: RNG.standard_normal(v.shape) for v in (x, dy)}
    found = g.compile(outputs=outputs, poison=True).step(feeds)
    seen = all_windows(feeds["x"], size, stride, sides, dilation)
    axes = len(size)
    taps_first = np.moveaxis(seen, range(-axes, 0), range(2, 2 + axes))
    np.testing.assert_array_equal(found["columns"], taps_first.reshape(columns.shape))
    assert np.vdot(found["columns"], feeds["dy"]) == pytest.approx(
        np.vdot(feeds["x"], found["back"]), rel=1e-12
    )
    np.testing.assert_allclose(found["back"], found["dx"], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space(mode):
    x = g.input("x", (2, 12, 2, 3), "int32")
    y = g.depth_to_space(x, 2, mode)
    given = RNG.integers(0, 100, x.shape).astype("int32")
    outputs = {"y": y, "x": g.space_to_depth(y, 2, mode)}
    found = g.compile(outputs=outputs, poison=True).step(x=given)
    np.testing.assert_array_equal(found["x"], given)
    for n, c, h, w in np.ndindex(2, 3, 4, 6):
        block = (h % 2) * 2 + w % 2
        channel = block * 3 + c if mode == "DCR" else c * 4 + block
        assert found["y"][n, c, h, w] == given[n, channel, h // 2, w // 2]


def test_instance_norm_standardises_each_channel_of_each_example():
    x = g.input("x", (2, 3, 4, 5), "float64")
    scale, bias = g.input("scale", (3,), "float64"), g.input("bias", (3,), "float64")
    y = g.instance_norm(x, 1e-3, scale=scale, bias=bias)
    feeds = {v.name: RNG.standard_normal(v.shape) for v in (x, scale, bias)}
    given = feeds["x"]
    centred = given - given.mean((2, 3), keepdims=True)
    unit = centred / np.sqrt(given.var((2, 3), keepdims=True) + 1e-3)
    wanted = unit * feeds["scale"][:, None, None] + feeds["bias"][:, None, None]
    found = g.compile(outputs={"y": y}, poison=True).step(feeds)["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda x: g.im2col(x, 7), ShapeError),
        (lambda x: g.im2col(x, 0), OptionError),
        (lambda x: g.im2col(x[0, 0], 1), ShapeError),
        (lambda x: g.col2im(x[0], (4, 6), 2), ShapeError),
        (lambda x: g.col2im(x, (4, 6), 2), ShapeError),
        (lambda x: g.col2im(x, (), 2), ShapeError),
        (lambda x: g.col2im(x, (4, 1.5), 2), OptionError),
        (lambda x: g.depth_to_space(x, 2), ShapeError),
        (lambda x: g.depth_to_space(x, 0), OptionError),
        (lambda x: g.depth_to_space(x, 1, "RCD"), OptionError),
        (lambda x: g.space_to_depth(x, 4), ShapeError),
        (lambda x: g.space_to_depth(x[0], 2), ShapeError),
        (lambda x: g.instance_norm(x[0, 0]), ShapeError),
    ],
)
def test_operands_that_do_not_fit_are_refused(build, error):
    with pytest.raises(error):
        build(g.input("x", (2, 3, 4, 6)))
