"""Recurrent cells, in fine-grained form: products, activations and sums as ops of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphc.errors import OptionError
from graphc.ir.builder import parameter, scope
from graphc.ir.graph import Initial, Value
from graphc.ir.types import DType
from graphc.ops.activation import sigmoid, tanh
from graphc.ops.concat import split
from graphc.ops.elementwise import add, mul, sub
from graphc.ops.matmul import affine


@dataclass(frozen=True, slots=True)
class CellParameters:
    """Weights of one cell, shared over time; gates lie side by side in their rows.

    `lstm_parameters` and `gru_parameters` make them; values that are there are given here, as
    ``CellParameters(input_weight, None, hidden_weight, None)`` for a cell without biases.
    """

    input_weight: Value
    input_bias: Value | None
    hidden_weight: Value
    hidden_bias: Value | None


def _cell(gates: int, inputs: int, hidden: int, dtype: DType | str) -> CellParameters:
    def pair(name: str, width: int) -> tuple[Value, Value]:
        with scope(name):
            bound = Initial("uniform", 1 / math.sqrt(hidden))
            weight = parameter("weight", (gates * hidden, width), dtype, bound)
            return weight, parameter("bias", (gates * hidden,), dtype)

    return CellParameters(*pair("input", inputs), *pair("hidden", hidden))


def _check(where: str, cell: object) -> None:
    if not isinstance(cell, CellParameters):
        made = where.replace("cell", "parameters")
        raise OptionError(f"{where}: cell is what graphc.{made} returns, got {cell!r}")


def lstm_parameters(inputs: int, hidden: int, dtype: DType | str = "float32") -> CellParameters:
    """Parameters for `lstm_cell`, gates in the order input, candidate, forget, output.

    ``input/weight`` (4 · hidden, inputs) and ``hidden/weight`` (4 · hidden, hidden) are uniform
    within 1 / √hidden, their biases (4 · hidden,) zero; the names stand in the current scope.
    """
    return _cell(4, inputs, hidden, dtype)


def gru_parameters(inputs: int, hidden: int, dtype: DType | str = "float32") -> CellParameters:
    """Parameters for `gru_cell`, gates in the order reset, update, candidate.

    ``input/weight`` (3 · hidden, inputs) and ``hidden/weight`` (3 · hidden, hidden) are uniform
    within 1 / √hidden, their biases (3 · hidden,) zero; the names stand in the current scope.
    """
    return _cell(3, inputs, hidden, dtype)


def lstm_cell(x: Value, h: Value, c: Value, cell: CellParameters) -> tuple[Value, Value]:
    """One step of a long short-term memory (Hochreiter and Schmidhuber, 1997): the new h and c.

    x is (batch, inputs), h and c are (batch, hidden). A loop in Python over time steps makes a
    layer; start with `graphc.full`. Raises `ShapeError` where they do not fit.
    """
    _check("lstm_cell", cell)
    gates = add(
        affine(x, cell.input_weight, cell.input_bias),
        affine(h, cell.hidden_weight, cell.hidden_bias),
    )
    i, g, f, o = split(gates, 4, axis=1)
    c = add(mul(sigmoid(f), c), mul(sigmoid(i), tanh(g)))
    return mul(sigmoid(o), tanh(c)), c


def gru_cell(x: Value, h: Value, cell: CellParameters) -> Value:
    """One step of a gated recurrent unit (Cho et al., 2014): the new h.

    x is (batch, inputs), h (batch, hidden); the reset gate acts on the product with the hidden
    weights, as in cuDNN. A loop in Python over time steps makes a layer; start with `graphc.full`.
    Raises `ShapeError` where they do not fit.
    """
    _check("gru_cell", cell)
    xr, xz, xn = split(affine(x, cell.input_weight, cell.input_bias), 3, axis=1)
    hr, hz, hn = split(affine(h, cell.hidden_weight, cell.hidden_bias), 3, axis=1)
    z = sigmoid(add(xz, hz))
    n = tanh(add(xn, mul(sigmoid(add(xr, hr)), hn)))
    return add(n, mul(z, sub(h, n)))
