"""What is no operand is told as such, by every public op."""

import inspect

import numpy as np
import pytest

import graphc as g
from graphc.errors import GraphcError

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
def test_a_wrong_operand_raises_nothing_but_a_graphc_error(name):
    given = [p for p in inspect.signature(OPS[name]).parameters.values() if p.default is p.empty]
    x = g.input("x", (2, 3))
    for wrong in WRONG:
        with pytest.raises(GraphcError):
            OPS[name](*[wrong] * len(given))
    for first in (x, SCALAR):
        for wrong in [*WRONG, SCALAR]:
            try:
                OPS[name](first, *[wrong] * (len(given) - 1))
            except GraphcError:
                continue
