"""Grid sampling against weights written down one axis at a time; tiles and errors."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from ops.samples.interpolate import interpolated
from ops.test_every_op import check_gradient

import graphc as g
from graphc.devices.device import CPU
from graphc.errors import DTypeError, GradientError, OptionError, ShapeError
from graphc.ir.builder import apply
from graphc.memory.allocate import Allocation
from graphc.ops import interpolate as ip
from graphc.target import target_of

RNG = np.random.default_rng(0)


def places_of(grid, extents, align_corners):
    """Centres of outermost elements at -1 and 1, or their outer edges."""
    n = np.array(extents[::-1])
    return (grid + 1) / 2 * (n - 1) if align_corners else ((grid + 1) * n - 1) / 2


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_a_grid_names_places_between_the_ends(padding, align_corners):
    """What lies beyond is in all forms what is there after the maps are extended so."""
    outside = {"zeros": "zeros", "border": "edge"}.get(
        padding, "reflect" if align_corners else "symmetric"
    )
    x, grid = g.input("x", (2, 2, 4, 3), "float64"), g.input("grid", (2, 3, 2, 2), "float64")
    forms = ("nearest", "linear", "cubic")
    outputs = {form: g.grid_sample(x, grid, form, padding, align_corners) for form in forms}
    feeds = {"x": RNG.standard_normal(x.shape), "grid": RNG.uniform(-2.5, 2.5, grid.shape)}
    found = g.compile(outputs=outputs, poison=True).step(feeds)
    places = places_of(feeds["grid"], x.shape[2:], align_corners)
    for form in forms:
        wanted = interpolated(feeds["x"], places, form, outside)
        np.testing.assert_allclose(found[form], wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("form", "padding", "align_corners"),
    [("linear", "reflection", False), ("cubic", "border", True), ("linear", "border", False)],
)
def test_gradients_reach_maps_and_grid(form, padding, align_corners):
    x, grid = g.input("x", (1, 2, 3, 4), "float64"), g.input("grid", (1, 3, 2, 2), "float64")
    loss = g.sum(g.tanh(g.grid_sample(x, grid, form, padding, align_corners)))
    feeds = {"x": RNG.standard_normal(x.shape), "grid": RNG.uniform(-1.7, 1.7, grid.shape)}
    check_gradient(loss, [x, grid], feeds)


@pytest.mark.parametrize(
    ("padding", "align_corners"), [("zeros", False), ("border", True), ("reflection", False)]
)
def test_the_gradient_of_a_linear_grid_has_gradients(padding, align_corners):
    x, grid = g.input("x", (1, 2, 3, 4), "float64"), g.input("grid", (1, 3, 2, 2), "float64")
    loss = g.sum(g.tanh(g.grid_sample(x, grid, "linear", padding, align_corners)))
    (dgrid,) = g.gradient(loss, [grid])
    feeds = {"x": RNG.standard_normal(x.shape), "grid": RNG.uniform(-1.7, 1.7, grid.shape)}
    check_gradient(g.sum(dgrid * dgrid), [x, grid], feeds)


@pytest.mark.parametrize("outside", ["zeros", "edge", "reflect", "symmetric"])
def test_slopes_at_elements_are_those_that_their_gradients_take(outside):
    """A slope is linear in x and in dy, so it is the product with its own gradient (Euler), also on
    elements, at the ends and beyond."""
    x, places = g.input("x", (1, 2, 3, 4), "float64"), g.input("p", (1, 30, 2), "float64")
    dy = g.input("dy", (1, 2, 30), "float64")
    a = ip.InterpolateAttributes("linear", outside)
    slopes = apply(ip.InterpolatePlaceGradient, dy, x, places, attributes=a).output
    loss = g.sum(slopes * g.constant(RNG.standard_normal(slopes.shape)))
    ddy, dx = g.gradient(loss, [dy, x])
    outputs = {"loss": loss, "by_dy": g.sum(ddy * dy), "by_x": g.sum(dx * x)}
    whole = np.array(list(itertools.product(range(-1, 5), range(-1, 4))), float)[None]
    feeds = {"x": RNG.standard_normal(x.shape), "p": whole, "dy": RNG.standard_normal(dy.shape)}
    found = g.compile(outputs=outputs).step(feeds)
    assert abs(found["loss"]) > 0.1
    np.testing.assert_allclose(found["by_dy"], found["loss"], rtol=1e-11)
    np.testing.assert_allclose(found["by_x"], found["loss"], rtol=1e-11)


def test_the_gradient_of_a_cubic_grid_has_none():
    x, grid = g.input("x", (1, 1, 3, 4)), g.input("grid", (1, 3, 2))
    (dgrid,) = g.gradient(g.sum(g.grid_sample(x, grid, "cubic")), [grid])
    with pytest.raises(GradientError, match="only for the form linear, got cubic"):
        g.gradient(g.sum(dgrid * dgrid), [grid])


def test_one_element_reflects_to_itself():
    x, grid = g.input("x", (1, 1, 1, 1)), g.input("grid", (1, 5, 2))
    for form, align in itertools.product(("nearest", "linear", "cubic"), (False, True)):
        y = g.grid_sample(x, grid, form, "reflection", align)
        given = RNG.uniform(-3, 3, grid.shape).astype("float32")
        found = g.compile(outputs={"y": y}).step(x=np.full(x.shape, 2.0, "float32"), grid=given)
        np.testing.assert_allclose(found["y"], np.full((1, 1, 5), 2.0), rtol=1e-6)


def test_zeros_are_zeros_beside_elements_that_are_not_numbers():
    x, grid = g.input("x", (1, 1, 2, 2)), g.input("grid", (1, 3, 2))
    y = g.grid_sample(x, grid)
    given = np.array([[[-9, 0], [0, 9], [9, 9]]], "float32")
    found = g.compile(outputs={"y": y}).step(x=np.full(x.shape, np.nan, "float32"), grid=given)
    np.testing.assert_array_equal(found["y"], np.zeros((1, 1, 3)))


@pytest.mark.parametrize("limit", [1, 600])
def test_tiles_change_no_number(limit):
    x, grid = g.input("x", (2, 3, 5, 4), "float64"), g.input("grid", (2, 4, 3, 2), "float64")
    y = g.grid_sample(x, grid, "cubic")
    dx, dgrid = g.gradient(g.sum(y * y), [x, grid])
    graph = g.plan(outputs={"y": y, "dx": dx, "dgrid": dgrid}).graph
    feeds = {v.name: RNG.standard_normal(v.shape) for v in (x, grid)}
    found = [
        g.Program(
            Allocation(graph, target_of(replace(CPU, workspace_limit_bytes=size))).plan("packed"),
            poison=True,
        ).step(feeds)
        for size in (limit, CPU.workspace_limit_bytes)
    ]
    for name in ("y", "dgrid"):
        np.testing.assert_array_equal(found[0][name], found[1][name])
    np.testing.assert_allclose(found[0]["dx"], found[1]["dx"], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda x, p: g.grid_sample(x, p[:, :, 0]), ShapeError),
        (lambda x, p: g.grid_sample(x, p[:1]), ShapeError),
        (lambda x, p: g.grid_sample(x[0], p), ShapeError),
        (lambda x, p: g.grid_sample(x, p, "bilinear"), OptionError),
        (lambda x, p: g.grid_sample(x, p, padding="edge"), OptionError),
        (lambda x, p: g.grid_sample(x, p, align_corners=1), OptionError),
        (lambda x, p: g.grid_sample(x, g.cast(p, "float64")), DTypeError),
    ],
)
def test_operands_that_do_not_fit_are_refused(build, error):
    with pytest.raises(error):
        build(g.input("x", (2, 3, 4, 5)), g.input("p", (2, 3, 2)))
