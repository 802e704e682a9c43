"""Deformable convolution against products point by point, and pools with their places."""

import itertools

import numpy as np
import pytest
from ops.samples.interpolate import interpolated
from ops.test_every_op import check_gradient
from ops.windows_reference import all_windows, convolution

import graphc as g
from graphc.errors import OptionError, ShapeError

RNG = np.random.default_rng(0)
STRIDE, SIDES, DILATION = (2, 1), ((1, 0), (0, 2)), (1, 2)


def operands(groups, offset_groups):
    x, w = g.input("x", (2, 4, 5, 6), "float64"), g.input("w", (6, 4 // groups, 2, 2), "float64")
    rows, columns = 3, 6
    offset = g.input("offset", (2, offset_groups * 8, rows, columns), "float64")
    mask = g.input("mask", (2, offset_groups * 4, rows, columns), "float64")
    return x, w, offset, mask


def deformed(x, w, offset, mask, groups, offset_groups):
    """Each filter at each window of the result, tap by tap."""
    y = np.zeros((x.shape[0], w.shape[0], *offset.shape[2:]))
    offsets = offset.reshape(x.shape[0], offset_groups, 4, 2, *offset.shape[2:])
    masks = mask.reshape(x.shape[0], offset_groups, 4, *offset.shape[2:])
    for n, f, p, q in np.ndindex(y.shape):
        for c, i, j in np.ndindex(w.shape[1:]):
            channel = f // (w.shape[0] // groups) * w.shape[1] + c
            part, tap = channel // (x.shape[1] // offset_groups), i * 2 + j
            down, across = offsets[n, part, tap, :, p, q]
            place = np.array(
                [[q * STRIDE[1] - 0 + j * DILATION[1] + across, p * STRIDE[0] - 1 + i + down]]
            )
            value = interpolated(x[n : n + 1, channel : channel + 1], place, "linear", "zeros")
            y[n, f, p, q] += w[f, c, i, j] * masks[n, part, tap, p, q] * value.item()
    return y


@pytest.mark.parametrize(("groups", "offset_groups"), [(1, 2), (2, 1)])
def test_windows_read_where_offsets_say(groups, offset_groups):
    x, w, offset, mask = operands(groups, offset_groups)
    y = g.deform_conv2d(x, offset, w, None, STRIDE, SIDES, DILATION, groups, offset_groups, mask)
    feeds = {v.name: RNG.uniform(-1.5, 1.5, v.shape) for v in (x, w, offset, mask)}
    found = g.compile(outputs={"y": y}, poison=True).step(feeds)["y"]
    wanted = deformed(*feeds.values(), groups, offset_groups)
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12)


def test_without_offsets_it_is_a_convolution():
    x, w, _, _ = operands(2, 1)
    zeros = g.full((2, 8, 3, 6), 0.0, "float64")
    bias = g.input("bias", (6,), "float64")
    y = g.deform_conv2d(x, zeros, w, bias, STRIDE, SIDES, DILATION, 2)
    feeds = {v.name: RNG.standard_normal(v.shape) for v in (x, w, bias)}
    wanted = convolution(feeds["x"], feeds["w"], STRIDE, SIDES, DILATION, 2)
    found = g.compile(outputs={"y": y}, poison=True).step(feeds)["y"]
    np.testing.assert_allclose(found, wanted + feeds["bias"][:, None, None], atol=1e-12)


def test_gradients_reach_all_values():
    x, w = g.input("x", (1, 2, 3, 3), "float64"), g.input("w", (2, 2, 2, 2), "float64")
    offset, mask = (
        g.input("offset", (1, 8, 2, 2), "float64"),
        g.input("mask", (1, 4, 2, 2), "float64"),
    )
    loss = g.sum(g.tanh(g.deform_conv2d(x, offset, w, mask=mask)))
    values = [x, w, offset, mask]
    check_gradient(loss, values, {v.name: RNG.uniform(-0.9, 0.9, v.shape) for v in values})


@pytest.mark.parametrize(
    ("shape", "size", "stride", "sides", "dilation"),
    [
        ((2, 3, 9), (3,), (2,), ((1, 0),), (2,)),
        ((2, 2, 5, 6), (2, 3), (1, 2), ((0, 1), (1, 0)), (2, 1)),
    ],
)
def test_places_of_largest_elements_and_back(shape, size, stride, sides, dilation):
    x = g.input("x", shape, "float64")
    y, places = g.max_pool_with_indices(x, size, stride, sides, dilation)
    back = g.max_unpool(y, places, shape[2:])
    (dx,) = g.gradient(g.sum(back * back), [x])
    given = RNG.standard_normal(shape)
    outputs = {"y": y, "places": places, "back": back, "dx": dx}
    found = g.compile(outputs=outputs, training=True, poison=True).step(x=given)
    within = tuple(range(-len(size), 0))
    seen = all_windows(given, size, stride, sides, dilation, -np.inf)
    np.testing.assert_array_equal(found["y"], seen.max(within))
    assert found["places"].dtype == np.int64
    flat = given.reshape(*shape[:2], -1)
    wanted = np.zeros_like(flat)
    for n, c in itertools.product(range(shape[0]), range(shape[1])):
        chosen = found["places"][n, c].reshape(-1)
        np.testing.assert_array_equal(flat[n, c, chosen], found["y"][n, c].reshape(-1))
        wanted[n, c, chosen] = flat[n, c, chosen]
    np.testing.assert_array_equal(found["back"].reshape(flat.shape), wanted)
    np.testing.assert_allclose(found["dx"].reshape(flat.shape), 2 * wanted)


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda x, w, o, m: g.deform_conv2d(x, m, w), ShapeError),
        (lambda x, w, o, m: g.deform_conv2d(x, o, w, mask=o), ShapeError),
        (lambda x, w, o, m: g.deform_conv2d(x, o, w, groups=2), ShapeError),
        (lambda x, w, o, m: g.deform_conv2d(x, o, w, groups=0), OptionError),
        (lambda x, w, o, m: g.deform_conv2d(x[0], o, w), ShapeError),
        (lambda x, w, o, m: g.max_pool_with_indices(g.reshape(x, (2, 2, 2, 5, 6)), 2), ShapeError),
        (lambda x, w, o, m: g.max_unpool(x, w, (5, 6)), ShapeError),
    ],
)
def test_operands_that_do_not_fit_are_refused(build, error):
    with pytest.raises(error):
        build(*operands(1, 1))
