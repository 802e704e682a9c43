"""Pools along one, two and three axes against windows by NumPy; padding of every kind."""

import numpy as np
import pytest
from ops.test_every_op import check_gradient
from ops.windows_reference import all_windows

import graphc as g
from graphc.errors import OptionError, ShapeError
from graphc.importing.windows import AVERAGE_POOLS, MAX_POOLS

RNG = np.random.default_rng(0)

POOLS = {
    "line": ((2, 3, 11), (3,), (2,), ((1, 0),), (2,)),
    "map": ((2, 3, 9, 10), (3, 2), (2, 3), ((1, 2), (0, 1)), (1, 2)),
    "volume": ((2, 2, 7, 6, 8), (3, 2, 3), (2, 1, 3), ((1, 1), (0, 1), (2, 0)), (1, 2, 1)),
}


def extended(n, size, step, side, spread, up):
    """Padding such that whole windows cover what a count rounded up takes in."""
    reach = spread * (size - 1) + 1
    starts = [s for s in range(0, n + sum(side), step) if s + reach <= n + sum(side)]
    following = starts[-1] + step
    reaches_on = following + reach > n + sum(side) > starts[-1] + reach
    if up and reaches_on and following < n + side[0]:
        starts.append(following)
    return side[0], max(side[1], starts[-1] + reach - n - side[0])


def run(y, x):
    feeds = {"x": RNG.standard_normal(x.shape)}
    return feeds["x"], g.compile(outputs={"y": y}, poison=True).step(feeds)["y"]


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("name", POOLS)
def test_pools_are_reductions_of_windows(name, ceil_mode):
    shape, size, stride, sides, dilation = POOLS[name]
    x = g.input("x", shape, "float64")
    options = {"stride": stride, "padding": sides, "dilation": dilation, "ceil_mode": ceil_mode}
    wide = [
        extended(*given, ceil_mode)
        for given in zip(shape[2:], size, stride, sides, dilation, strict=True)
    ]
    assert ceil_mode == (wide != list(sides))
    within = tuple(range(-len(size), 0))

    def over(array, fill=0.0):
        return all_windows(array, size, stride, wide, dilation, fill)

    given, found = run(MAX_POOLS[len(size)](x, size, **options), x)
    np.testing.assert_array_equal(found, over(given, -np.inf).max(within))
    inside = over(np.ones(shape)).sum(within)
    given, found = run(AVERAGE_POOLS[len(size)](x, size, count_include_pad=False, **options), x)
    np.testing.assert_allclose(found, over(given).sum(within) / inside, rtol=1e-12)
    padded = np.pad(np.ones(shape), ((0, 0), (0, 0), *sides))
    padded[...] = 1
    beyond = [(p - a, q - b) for (p, q), (a, b) in zip(wide, sides, strict=True)]
    counted = all_windows(padded, size, stride, beyond, dilation).sum(within)
    given, found = run(AVERAGE_POOLS[len(size)](x, size, **options), x)
    np.testing.assert_allclose(found, over(given).sum(within) / counted, rtol=1e-12)
    given, found = run(g.lp_pool(x, 3, size, **options), x)
    wanted = (over(np.abs(given)) ** 3).sum(within) ** (1 / 3)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: g.max_pool3d(x, 2, padding=((0, 1), (1, 0), (0, 0)), ceil_mode=True),
        lambda x: g.average_pool3d(x, 2, padding=1, count_include_pad=False),
        lambda x: g.lp_pool(x, 2, 2),
    ],
)
def test_gradients_of_a_volume(pool):
    x = g.input("x", (1, 2, 3, 2, 3), "float64")
    given = (1.0 + RNG.permutation(36).reshape(x.shape)) / 36
    check_gradient(g.sum(g.tanh(pool(x))), [x], {"x": given})


def test_pools_of_a_fixed_number_of_axes():
    line, maps, volume = (g.input("x", (2, 3, *[6] * n)) for n in (1, 2, 3))
    for pools, x in (
        ((g.max_pool1d, g.average_pool1d), line),
        ((g.max_pool2d, g.average_pool2d), maps),
        ((g.max_pool3d, g.average_pool3d), volume),
    ):
        for pool in pools:
            assert pool(x, 2).shape == (2, 3, *[3] * (x.type.rank - 2))
            for other in {line, maps, volume} - {x}:
                with pytest.raises(ShapeError, match="more axes"):
                    pool(other, 2)


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda x: g.max_pool2d(x, 2, ceil_mode=1), OptionError),
        (lambda x: g.max_pool2d(x, 2, dilation=8), ShapeError),
        (lambda x: g.max_pool2d(x, 2, padding=((0, 2), (0, 0))), ShapeError),
        (lambda x: g.average_pool2d(x, 2, padding=((0, 1),)), OptionError),
        (lambda x: g.lp_pool(x, 0, 2), OptionError),
        (lambda x: g.lp_pool(g.reshape(x, (2, -1)), 2, 2), ShapeError),
        (lambda x: g.pad(x, ((1, 1),) * 3), ShapeError),
        (lambda x: g.pad(x, (0, 0, 0, (1, 1, 1))), OptionError),
        (lambda x: g.pad(x, (0, 0, 0, (-4, -4))), ShapeError),
        (lambda x: g.pad(x, (0, 0, 0, 1), "mirror"), OptionError),
    ],
)
def test_operands_that_do_not_fit_are_refused(build, error):
    with pytest.raises(error):
        build(g.input("x", (2, 3, 8, 8)))


def test_negative_widths_crop():
    x = g.input("x", (4, 5), "float64")
    given, found = run(g.pad(x, ((-1, 2), (1, -2)), value=7.0), x)
    np.testing.assert_array_equal(
        found, np.pad(given[1:, :-2], ((0, 2), (1, 0)), constant_values=7.0)
    )
    assert g.pad(x, (0, 0)) is x
