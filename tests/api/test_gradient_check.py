"""`graphc.check_gradient`, on gradients that are right and on wrong ones."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

import graphc as g
from graphc.errors import GradientError, OptionError
from graphc.ir.builder import apply
from graphc.ir.op import REGISTRY
from graphc.ops.elementwise import Scale
from graphc.ops.unary import Unary


@pytest.fixture(scope="module", autouse=True)
def ops():
    """Ops that no other test meets."""
    with mock.patch.dict(REGISTRY):

        class Cubed(Unary):
            """x³."""

            name, expression, bend = "test_cubed", "x * x * x", "6 * x"
            backward = "dy * (3 * x * x)"

        class Halved(Unary):
            """x³ with half of its gradient."""

            name, expression, backward = "test_halved", "x * x * x", "dy * (1.5 * x * x)"

        class Straight(Unary):
            """x³ with the right gradient, whose own gradient lacks the slope."""

            name, expression, backward = "test_straight", "x * x * x", "dy * (3 * x * x)"

        yield SimpleNamespace(Cubed=Cubed, Halved=Halved, Straight=Straight)


X = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]], np.float32)


def test_right_gradients_pass(ops):
    found = g.check_gradient(ops.Cubed, [X], orders=2)
    assert [(row.order, row.input, row.elements) for row in found.rows] == [(1, 0, 6), (2, 0, 6)]
    assert all(row.error < 1e-8 for row in found.rows)
    assert str(found).count("\n") == 1


def test_the_numbers_are_those_of_the_derivative():
    """The derivative of x³ at 2 is 12, times the weight of that element in the loss."""
    row = g.check_gradient(lambda x: g.sum(x * x * x), [np.array([2.0])]).rows[0]
    assert row.index == (0,)
    assert row.found / np.random.default_rng(0).uniform(0.5, 1.5) == pytest.approx(12, rel=1e-12)


def test_a_wrong_gradient_is_refused_with_place_and_numbers(ops):
    with pytest.raises(GradientError, match=r"order 1, input 0: 6 elements.* at \[0, 2\]") as error:
        g.check_gradient(ops.Halved, [X])
    assert "by differences" in str(error.value)


@pytest.mark.parametrize("factor", [1e-7, 1.0])
def test_each_gradient_is_compared_by_its_own_size(ops, factor):
    """The second input has a derivative of 1e8."""
    with pytest.raises(GradientError, match="order 1, input 0"):
        g.check_gradient(
            lambda x, y: (apply(ops.Halved, x).output * factor, y * (1e8 * factor)),
            [X, np.zeros(2)],
        )


def test_a_wrong_second_gradient_is_refused(ops):
    g.check_gradient(ops.Straight, [X])
    with pytest.raises(GradientError, match="order 2, input 0"):
        g.check_gradient(ops.Straight, [X], orders=2)


def test_functions_of_several_inputs_and_outputs():
    def function(a, b, rows):
        picked = g.gather(a, rows)
        return picked @ b, g.exp(b), rows

    found = g.check_gradient(function, [X, X.T, np.array([1, 0, 1])], orders=2)
    assert [(row.order, row.input) for row in found.rows] == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_the_second_gradient_of_a_linear_function_is_zero():
    found = g.check_gradient(lambda x: x * 2.0, [X], orders=2)
    assert (found.rows[1].found, found.rows[1].expected) == (0, 0)


def test_large_inputs_are_sampled():
    found = g.check_gradient(g.tanh, [np.linspace(-1, 1, 5000)])
    assert found.rows[0].elements == 200


@pytest.mark.parametrize(
    ("function", "inputs", "options", "error", "words"),
    [
        (g.tanh, [X], {"orders": 3}, OptionError, "orders must be 1 or 2, got 3"),
        (g.tanh, [X], {"step": 0}, OptionError, "step must be a finite number above 0"),
        (g.tanh, [X], {"tolerance": np.nan}, OptionError, "tolerance must be a finite number"),
        (g.tanh, 0.5, {}, OptionError, "inputs must be a list of arrays"),
        (Scale, [X], {}, OptionError, "Scale is not an op class without attributes"),
        (int, [X], {}, OptionError, "int is not an op class"),
        (3, [X], {}, OptionError, "function must be a function of values, got 3"),
        (g.dropout, [X], {}, GradientError, "draws random numbers, as dropout does"),
        (lambda x: x * g.input("w", (3,), "float64"), [X], {}, OptionError, "reads 'w', which is"),
        (lambda x: x > 0, [X], {}, GradientError, "no float output"),
        (
            lambda x: g.full((2,), 1.0),
            [X],
            {},
            GradientError,
            "depends on none of its float inputs",
        ),
        (lambda x: "y", [X], {}, g.GraphcError, "outputs of the function"),
        (g.relu, [np.zeros(2)], {}, GradientError, "If the function has a kink"),
    ],
)
def test_what_cannot_be_checked_is_refused(function, inputs, options, error, words):
    with pytest.raises(error, match=words):
        g.check_gradient(function, inputs, **options)


def test_the_op_of_the_guide_is_applied_by_its_class(ops):
    x = g.input("x", (3,), "float64")
    assert apply(ops.Cubed, x).output.shape == (3,)
