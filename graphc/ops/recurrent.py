"""Recurrent cells composed of separate products, activations and sums."""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphc.errors import OptionError
from graphc.ir.builder import layer_scope, parameter, scope
from graphc.ir.graph import Initial, Value
from graphc.ir.types import DType
from graphc.ops.activation import sigmoid, tanh
from graphc.ops.concat import split
from graphc.ops.elementwise import add, mul, sub
from graphc.ops.matmul import affine


@dataclass(frozen=True, slots=True)
class CellParameters:
    """Weights and biases of one cell, shared by all time steps; rows are grouped by gate.

    `lstm_parameters` and `gru_parameters` create them. To use existing values, construct it, for
    example ``CellParameters(input_weight, None, hidden_weight, None)`` for a cell without biases.
    """

    input_weight: Value
    input_bias: Value | None
    hidden_weight: Value
    hidden_bias: Value | None


def _cell(kind: str, gates: int, inputs: int, hidden: int, dtype: DType | str) -> CellParameters:
    def pair(name: str, width: int) -> tuple[Value, Value]:
        with scope(name):
            bound = Initial("uniform", 1 / math.sqrt(hidden))
            weight = parameter("weight", (gates * hidden, width), dtype, bound)
            return weight, parameter("bias", (gates * hidden,), dtype)

    with layer_scope(kind, None):
        return CellParameters(*pair("input", inputs), *pair("hidden", hidden))


def _check(where: str, cell: object) -> None:
    if not isinstance(cell, CellParameters):
        made = where.replace("cell", "parameters")
        raise OptionError(f"{where}: cell must be a result of graphc.{made}, got {cell!r}")


def lstm_parameters(inputs: int, hidden: int, dtype: DType | str = "float32") -> CellParameters:
    """Create parameters for `lstm_cell`, gates in the order input, candidate, forget, output.

    ``input/weight`` (4 · hidden, inputs) and ``hidden/weight`` (4 · hidden, hidden) are uniform
    within ±1 / √hidden. ``input/bias`` and ``hidden/bias`` (4 · hidden,) are zero. The names are in
    the current scope.
    """
    return _cell("lstm", 4, inputs, hidden, dtype)


def gru_parameters(inputs: int, hidden: int, dtype: DType | str = "float32") -> CellParameters:
    """Create parameters for `gru_cell`, gates in the order reset, update, candidate.

    ``input/weight`` (3 · hidden, inputs) and ``hidden/weight`` (3 · hidden, hidden) are uniform
    within ±1 / √hidden. ``input/bias`` and ``hidden/bias`` (3 · hidden,) are zero. The names are in
    the current scope.
    """
    return _cell("gru", 3, inputs, hidden, dtype)


def lstm_cell(x: Value, h: Value, c: Value, cell: CellParameters) -> tuple[Value, Value]:
    """Run one step of an LSTM (Hochreiter and Schmidhuber, 1997); returns the new h and c.

    x is (batch, inputs), h and c are (batch, hidden). Build a layer by a Python loop over time
    steps; `graphc.full` creates the initial state. Raises `ShapeError` if shapes do not fit.
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
    """Run one step of a gated recurrent unit (Cho et al., 2014); returns the new h.

    x is (batch, inputs), h (batch, hidden). The reset gate acts on the product with the hidden
    weights, as in cuDNN. Build a layer by a Python loop over time steps; `graphc.full` creates the
    initial state. Raises `ShapeError` if shapes do not fit.
    """
    _check("gru_cell", cell)
    xr, xz, xn = split(affine(x, cell.input_weight, cell.input_bias), 3, axis=1)
    hr, hz, hn = split(affine(h, cell.hidden_weight, cell.hidden_bias), 3, axis=1)
    z = sigmoid(add(xz, hz))
    n = tanh(add(xn, mul(sigmoid(add(xr, hr)), hn)))
    return add(n, mul(z, sub(h, n)))
