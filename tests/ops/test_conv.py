"""Tiles within the workspace limit, layers' parameters, strided operands, and what does not fit."""

from dataclasses import replace

import numpy as np
import pytest

import graphc as g
from graphc import Program
from graphc.devices.device import CPU
from graphc.errors import OptionError, ShapeError
from graphc.memory.allocate import Allocation
from graphc.target import target_of

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("limit", [1, 3000, 20_000, 64 * 2**20])
def test_every_tiling_gives_the_same_numbers_within_the_limit(limit):
    """Down to one row of one image, which is the least a product works on."""
    x = g.input("x", (3, 4, 9, 11), "float64")
    y = g.conv2d(x, 5, 3, stride=(2, 1), padding=1, groups=1)
    (dx,) = g.gradient(g.sum(y * y), [x])
    w = next(s for s in g.plan(outputs=[y]).graph.states if s.name == "weight")
    (dw,) = g.gradient(g.sum(y * y), [w])
    outputs = {"y": y, "dx": dx, "dw": dw}
    graph = g.plan(outputs=outputs, kernels="numpy").graph
    plan = Allocation(graph, target_of(replace(CPU, workspace_limit_bytes=limit))).plan("packed")
    row = 4 * 3 * 3 * 11 * 8
    weights = 5 * 4 * 3 * 3 * 8
    assert plan.workspace_bytes <= max(limit, row) + weights + 2 * 256
    given = RNG.standard_normal((3, 4, 9, 11))
    found = Program(plan, poison=True).step(x=given)
    wanted = g.compile(outputs=outputs).step(x=given)
    for name in outputs:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-12)


def test_workspace_never_grows_with_the_batch():
    sizes = []
    for batch in (1, 64, 256):
        y = g.conv2d(g.input("x", (batch, 64, 56, 56)), 64, 3, padding=1)
        sizes.append(g.plan(outputs=[y]).workspace_bytes)
    assert sizes[1] == sizes[2] <= 64 * 2**20


def test_strided_operands_are_copied_into_the_workspace():
    x = g.input("x", (2, 3, 5, 4), "float64")
    turned = g.transpose(x, (0, 1, 3, 2))
    y = g.conv2d(turned, 2, 1, bias=False)
    z = g.layer_norm(turned)
    p = g.max_pool2d(turned, 2)
    program = g.compile(outputs={"y": y, "z": z, "p": p}, poison=True)
    given = RNG.standard_normal((2, 3, 5, 4))
    found = program.step(x=given)
    w = program.parameters["weight"]
    swapped = given.swapaxes(2, 3)
    np.testing.assert_allclose(found["y"], np.einsum("nchw,kc->nkhw", swapped, w[:, :, 0, 0]))
    mean, deviation = swapped.mean(-1, keepdims=True), swapped.std(-1, keepdims=True)
    np.testing.assert_allclose(found["z"], (swapped - mean) / deviation, rtol=1e-4)
    np.testing.assert_array_equal(
        found["p"], swapped[:, :, :, :4].reshape(2, 3, 2, 2, 2, 2).max((3, 5))
    )
    assert program.plan.strided


def test_parameters_of_the_layers():
    x = g.input("x", (2, 6, 8, 8))
    y = g.conv2d(x, 4, (3, 2), groups=2, name="a")
    z = g.conv_transpose2d(y, 6, 4, stride=2, padding=1, groups=2, name="b")
    shapes = {s.name: s.shape for s in g.plan(outputs=[z]).graph.states}
    assert shapes == {
        "a/weight": (4, 3, 3, 2), "a/bias": (4,), "b/weight": (4, 3, 4, 4), "b/bias": (6,)
    }  # fmt: skip
    assert y.shape == (2, 4, 6, 7)
    assert z.shape == (2, 6, 12, 14)


def test_transposed_convolution_undoes_the_shape_and_is_the_transpose():
    """<conv(x), y> = <x, conv_transpose(y)> with the same filters."""
    x, y = g.input("x", (2, 3, 7, 7), "float64"), g.input("y", (2, 4, 4, 4), "float64")
    forward = g.conv2d(x, 4, 3, stride=2, padding=1, bias=False, name="f")
    back = g.conv_transpose2d(y, 3, 3, stride=2, padding=1, bias=False, name="b")
    program = g.compile(outputs={"l": g.sum(forward * y), "r": g.sum(x * back)})
    program.parameters["b/weight"] = program.parameters["f/weight"]
    found = program.step(x=RNG.standard_normal((2, 3, 7, 7)), y=RNG.standard_normal((2, 4, 4, 4)))
    assert found["l"] == pytest.approx(found["r"], rel=1e-12)


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda x: g.conv2d(x, 4, 9), ShapeError),
        (lambda x: g.conv2d(x, 4, 3, groups=2), ShapeError),
        (lambda x: g.conv2d(x, 4, 3, groups=0), OptionError),
        (lambda x: g.conv2d(x, 4, 0), OptionError),
        (lambda x: g.conv2d(x, 4, (3, 3, 3)), OptionError),
        (lambda x: g.conv2d(x, 4, 3, stride=0), OptionError),
        (lambda x: g.conv2d(x, 4, 3, padding=-1), OptionError),
        (lambda x: g.conv2d(x[0], 4, 3), ShapeError),
        (lambda x: g.max_pool2d(x, 9), ShapeError),
        (lambda x: g.max_pool2d(x, 2, padding=2), ShapeError),
        (lambda x: g.max_pool2d(g.input("b", (1, 1, 20, 20)), 17), ShapeError),
        (lambda x: g.average_pool2d(x[0], 2), ShapeError),
        (lambda x: g.group_norm(x, 2), ShapeError),
        (lambda x: g.batch_norm(x[0, 0, 0]), ShapeError),
        (lambda x: g.upsample2d(x, 0), OptionError),
        (lambda x: g.upsample2d(x, 2, "cubic"), OptionError),
        (lambda x: g.pad(x, ((1, 1),)), ShapeError),
        (lambda x: g.rms_norm(x, epsilon=0.0), OptionError),
        (lambda x: g.input("empty", (0, 3, 8, 8)), ShapeError),
    ],
)
def test_operands_that_do_not_fit_are_refused(build, error):
    with pytest.raises(error):
        build(g.input("x", (2, 3, 8, 8)))


def test_zero_padding_is_a_gradient_of_a_slice_backwards():
    x = g.input("x", (2, 3), "float64")
    y = g.pad(x, ((1, 0), (2, 1)))
    given = RNG.standard_normal((2, 3))
    found = g.compile(outputs={"y": y}).step(x=given)["y"]
    np.testing.assert_array_equal(found, np.pad(given, ((1, 0), (2, 1))))
