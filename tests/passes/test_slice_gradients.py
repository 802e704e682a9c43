"""Gradients of values that are read in slices: one concatenation where slices are disjoint."""

import numpy as np
import pytest

import graphc as g
from graphc.ir.builder import trace

SHAPE = (6, 4, 3)


def read(slices):
    """Slices of x, and of a fixed array."""
    x = g.input("x", SHAPE, "float64")
    weights = np.random.default_rng(1).standard_normal(SHAPE)
    loss = g.full((), 0.0, "float64")
    for index in slices:
        part = g.tanh(x[index]) * g.constant(weights[index])
        loss = loss + g.sum(part)
    return x, loss, weights


def names(value):
    return [n.op.name for n in trace({"y": value}).nodes if n.phase == "gradient"]


CASES = {
    # slices, and whether their gradients are one concatenation
    "every row": ([0, 1, 2, 3, 4, 5], True),
    "in reverse": ([5, 4, 3, 2, 1, 0], True),
    "rows of different extents": ([slice(0, 2), 2, slice(3, 6)], True),
    "another axis": ([np.s_[:, 0], np.s_[:, 1:3], np.s_[:, 3]], True),
    "gaps": ([1, 3, 4], True),
    "two far apart": ([0, 5], True),
    "one": ([2], False),
    "the whole twice": ([slice(0, 6), slice(0, 6)], False),
    "overlapping": ([slice(0, 3), slice(2, 6)], False),
    "one within another": ([slice(0, 6), 2], False),
    "the same twice": ([1, 1], False),
    "two axes": ([np.s_[0], np.s_[1:, 0]], False),
    "every second": ([slice(0, 6, 2), slice(1, 6, 2)], False),
}


@pytest.mark.parametrize("name", CASES)
def test_gradient(name):
    slices, is_joined = CASES[name]
    x, loss, weights = read(slices)
    (dx,) = g.gradient(loss, [x])
    found = names(dx)
    assert ("pad_slice" not in found, found.count("concat")) == (is_joined, int(is_joined))
    at = np.random.default_rng(0).standard_normal(SHAPE)
    wanted = np.zeros(SHAPE)
    for index in slices:
        wanted[index] += weights[index] / np.cosh(at[index]) ** 2
    np.testing.assert_allclose(g.compile(outputs={"dx": dx}).step(x=at)["dx"], wanted, atol=1e-12)


def test_slices_beside_other_uses():
    x = g.input("x", SHAPE, "float64")
    loss = g.sum(x * x)
    for step in range(6):
        loss = loss + g.sum(x[step] * float(step))
    loss = loss + g.sum(x * x * x)
    (dx,) = g.gradient(loss, [x])
    at = np.random.default_rng(0).standard_normal(SHAPE)
    wanted = 2 * at + 3 * at**2 + np.arange(6.0)[:, None, None]
    np.testing.assert_allclose(g.compile(outputs={"dx": dx}).step(x=at)["dx"], wanted)
    assert "pad_slice" not in names(dx)


def test_second_derivative():
    x = g.input("x", (3, 2), "float64")
    loss = g.sum(x[0] * x[0] * x[1] + x[2] * x[2] * x[2])
    (first,) = g.gradient(loss, [x])
    (second,) = g.gradient(g.sum(first), [x])
    at = np.random.default_rng(0).standard_normal((3, 2))
    found = g.compile(outputs={"second": second}).step(x=at)["second"]
    a, b, c = at
    np.testing.assert_allclose(found, [2 * b + 2 * a, 2 * a, 6 * c])


def test_gradients_of_a_loop_over_slices_write_no_more_than_the_whole():
    """The bytes that the gradient's nodes write do not grow with the square of the steps."""

    def written(steps):
        x = g.input("x", (steps, 8))
        y = g.tanh(x)
        loss = g.full((), 0.0)
        for step in range(steps):
            loss = loss + g.sum(g.sin(y[step]))
        (dx,) = g.gradient(loss, [x])
        return sum(
            node.op.cost(node).bytes_written
            for node in trace({"dx": dx}).nodes
            if node.phase == "gradient"
        )

    assert written(64) < 2.2 * written(32)


@pytest.mark.parametrize(
    "slices",
    [[slice(t, t + 2) for t in range(23)], [np.s_[t, :5] for t in range(24)]],
    ids=["windows", "two axes"],
)
def test_slices_that_are_no_parts_are_added_at_once(slices):
    """At most the sum, a summand and the next one are live, however many slices there are."""
    x = g.input("x", (24, 1000))
    y = g.tanh(x)
    loss = g.full((), 0.0)
    for index in slices:
        loss = loss + g.sum(g.sin(y[index]))
    (dx,) = g.gradient(loss, [x])
    plan = g.plan(outputs={"dx": dx}, reorder=False, kernels="numpy")
    assert plan.live_bytes < 6 * 24 * 1000 * 4


def test_every_row_twice():
    x = g.input("x", (4, 3), "float64")
    loss = g.full((), 0.0, "float64")
    for power in (2.0, 3.0):
        for step in range(4):
            loss = loss + g.sum(x[step] ** power)
    (dx,) = g.gradient(loss, [x])
    assert names(dx).count("concat") == 2
    assert "pad_slice" not in names(dx)
    at = np.random.default_rng(0).uniform(1, 2, (4, 3))
    found = g.compile(outputs={"dx": dx}).step(x=at)["dx"]
    np.testing.assert_allclose(found, 2 * at + 3 * at**2)


def test_slices_of_a_parameter_are_complete_at_the_end():
    stack = g.parameter("w", (3, 4, 4), "float64", g.Initial("normal", 0.5))
    x = h = g.input("x", (2, 4), "float64")
    for layer in range(3):
        h = g.tanh(g.matmul(h, stack[layer]))
    (dw,) = g.gradient(g.sum(h), [stack])
    assert "pad_slice" not in names(dw)
    program = g.compile(outputs={"dw": dw, "loss": g.sum(h)})
    at = np.random.default_rng(0).standard_normal(x.shape)
    w = np.random.default_rng(1).standard_normal((3, 4, 4))
    direction = np.random.default_rng(2).standard_normal(w.shape)

    def loss(weights):
        program.parameters["w"] = weights
        return program.step(x=at)["loss"]

    program.parameters["w"] = w
    slope = np.sum(program.step(x=at)["dw"] * direction)
    numeric = (loss(w + 1e-6 * direction) - loss(w - 1e-6 * direction)) / 2e-6
    np.testing.assert_allclose(slope, numeric, rtol=1e-7)
