"""Regions that no map holds, and what does not fit."""

import numpy as np
import pytest

import graphc as g
from graphc.errors import DTypeError, OptionError, ShapeError


@pytest.mark.parametrize(("ratio", "mode"), [(0, "avg"), (2, "avg"), (0, "max"), (2, "max")])
def test_regions_that_no_map_holds_end_and_read_nothing_beyond(ratio, mode):
    """Sizes of 1e30, negative ones and NaN: as many points as a region has are not met one by
    one."""
    rois = np.array(
        [[0, 0, 1e30, 1e30], [-1e30, 1, 1e30, 2], [3, 3, 1, 1], [np.nan, 0, 2, 2],
         [0, 0, np.inf, 2], [40, 40, 50, 50]], "float32",
    )  # fmt: skip
    x, r = g.input("x", (1, 2, 4, 5)), g.input("rois", rois.shape)
    b = g.input("batch", (len(rois),), "int32")
    y = g.roi_align(x, r, b, 2, ratio, mode=mode)
    (dx,) = g.gradient(g.sum(y), [x])
    program = g.compile(outputs={"y": y, "dx": dx}, training=True, poison=True)
    ones = np.ones(x.shape, "float32")
    found = program.step(x=ones, rois=rois, batch=np.zeros(len(rois), "int32"))
    assert np.isfinite(found["dx"]).all()
    if mode == "avg":
        assert np.abs(found["y"][[0, 1, 3, 4, 5]]).max() < 1e-6
        inside = 0.0 if ratio == 0 else 1.0
        np.testing.assert_allclose(found["y"][2], np.full((2, 2, 2), inside))
    else:
        assert (found["y"] <= 1).all()
        assert not found["y"][[3, 4, 5]].any()


def test_a_region_of_whole_elements_is_their_means():
    """Points of centres of elements: bins of two by two elements with a point each."""
    x, r = g.input("x", (1, 1, 4, 6), "float64"), g.input("rois", (1, 4), "float64")
    y = g.roi_align(x, r, g.input("batch", (1,), "int64"), (2, 3))
    given = np.random.default_rng(0).standard_normal(x.shape)
    feeds = {"x": given, "rois": np.array([[0.0, 0, 6, 4]]), "batch": np.zeros(1, "int64")}
    found = g.compile(outputs={"y": y}).step(feeds)["y"]
    wanted = given.reshape(2, 2, 3, 2).mean((1, 3))[None, None]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_the_largest_product_gets_the_gradient():
    """One point in the middle of four elements: a quarter of the largest, of equal ones the first;
    where all are negative, elements beyond the map or without weight are 0."""
    x, r = g.input("x", (1, 3, 2, 2), "float64"), g.input("rois", (2, 4), "float64")
    y = g.roi_align(x, r, g.input("batch", (2,), "int64"), 1, 1, mode="max")
    (dx,) = g.gradient(g.sum(y), [x])
    given = np.array([[[[1.0, 3], [3, 2]], [[-4, -1], [-2, -1]], [[-1, -2], [-3, np.nan]]]])
    feeds = {"x": given, "rois": np.array([[0.5, 0.5, 1.5, 1.5], [-9, -9, -8, -8]])}
    found = g.compile(outputs={"y": y, "dx": dx}).step(feeds, batch=np.zeros(2, "int64"))
    np.testing.assert_array_equal(found["y"][:, :, 0, 0], [[0.75, -0.25, np.nan], [0, 0, 0]])
    first = [[[0, 0.25], [0, 0]], [[0, 0.25], [0, 0]]]
    np.testing.assert_array_equal(found["dx"][0, :2], first)


def test_samples_without_weight_count_as_0():
    """A point on the centre of an element of a map of -1: three elements around it weigh 0."""
    x, r = g.input("x", (1, 1, 3, 3)), g.input("rois", (1, 4))
    y = g.roi_align(x, r, g.input("batch", (1,), "int32"), 1, 1, mode="max")
    feeds = {"x": -np.ones(x.shape, "float32"), "rois": np.array([[0, 0, 1, 1]], "float32")}
    assert g.compile(outputs={"y": y}).step(feeds, batch=np.zeros(1, "int32"))["y"].item() == 0


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda x, r, b: g.roi_align(x, r[:, :3], b, 2), ShapeError),
        (lambda x, r, b: g.roi_align(x, r, b[:2], 2), ShapeError),
        (lambda x, r, b: g.roi_align(x[0], r, b, 2), ShapeError),
        (lambda x, r, b: g.roi_align(x, r, g.cast(b, "float32"), 2), DTypeError),
        (lambda x, r, b: g.roi_align(x, r, b, 0), OptionError),
        (lambda x, r, b: g.roi_align(x, r, b, 2, -1), OptionError),
        (lambda x, r, b: g.roi_align(x, r, b, 2, scale=0.0), OptionError),
        (lambda x, r, b: g.roi_align(x, r, b, 2, mode="sum"), OptionError),
    ],
)
def test_operands_that_do_not_fit_are_refused(build, error):
    x, r = g.input("x", (1, 2, 4, 5)), g.input("r", (3, 4))
    with pytest.raises(error):
        build(x, r, g.input("b", (3,), "int32"))
