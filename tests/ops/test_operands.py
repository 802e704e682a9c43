"""What is no operand is told as such, by every public op."""

import inspect

import numpy as np
import pytest

import graphc as g
from graphc.errors import GraphcError, OptionError, ShapeError

OPS = {
    name: found
    for name in g.__all__
    if inspect.isfunction(found := getattr(g, name)) and found.__module__.startswith("graphc.ops.")
}
WITHOUT_OPERANDS = {"full", "gru_parameters", "lstm_parameters", "normal", "uniform"}
SCALAR = g.full((), 1.0)
WRONG = [3, None, "x", np.ones((2, 3)), [1, 2], g.relu]


def test_the_ops_are_found():
    assert len(OPS) > 60
    assert set(OPS) > WITHOUT_OPERANDS


@pytest.mark.parametrize("name", sorted(set(OPS) - WITHOUT_OPERANDS))
def test_a_wrong_operand_raises_nothing_but_a_graphc_error_of_one_line(name):
    given = [p for p in inspect.signature(OPS[name]).parameters.values() if p.default is p.empty]
    x, told = g.input("x", (2, 3)), []
    for wrong in WRONG:
        with pytest.raises(GraphcError) as caught:
            OPS[name](*[wrong] * len(given))
        told.append(str(caught.value))
    for first in (x, SCALAR):
        for wrong in [*WRONG, SCALAR]:
            try:
                OPS[name](first, *[wrong] * (len(given) - 1))
            except GraphcError as error:
                told.append(str(error))
    assert not [text for text in told if "\n" in text]


@pytest.mark.parametrize("function", [g.linear, g.conv2d, g.layer_norm, g.mean, g.relu])
def test_an_array_as_an_operand_is_named_as_such(function):
    with pytest.raises(OptionError, match=r"an operand must be a graphc value, got array.*\.\.\."):
        function(np.ones((20, 30)))


def test_two_extents_of_minus_one_are_refused():
    with pytest.raises(ShapeError, match=r"at most one extent may be -1, got \[-1, -1\]"):
        g.reshape(g.input("x", (2, 3)), (-1, -1))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: g.input("y", (True, 2)),
        lambda x: g.reshape(x, (6, True)),
        lambda x: g.one_hot(g.cast(x, "int32"), True),
        lambda x: g.upsample2d(g.reshape(x, (1, 1, 2, 3)), True),
        lambda x: g.adaptive_average_pool2d(g.reshape(x, (1, 1, 2, 3)), True),
    ],
)
def test_a_bool_is_no_integer(call):
    with pytest.raises(GraphcError, match=r"integer.*True"):
        call(g.input("x", (2, 3)))
