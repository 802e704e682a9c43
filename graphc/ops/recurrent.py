"""Recurrent cells and layers composed of separate products, activations and sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from graphc.errors import OptionError, ShapeError, quoted, whole_number
from graphc.ir.builder import as_value, layer_scope, parameter, scope
from graphc.ir.graph import Initial, Value
from graphc.ir.types import DType
from graphc.ops.activation import sigmoid, tanh
from graphc.ops.concat import split, stack
from graphc.ops.elementwise import add, mul, sub
from graphc.ops.indexing import slice_
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

    hidden = whole_number(f"{kind}_parameters: hidden", hidden)
    with layer_scope(kind, None):
        return CellParameters(*pair("input", inputs), *pair("hidden", hidden))


def _check(where: str, cell: object) -> None:
    if not isinstance(cell, CellParameters):
        kind, _ = where.split("_")
        raise OptionError(
            f"{where}: cell must be a result of graphc.{kind}_parameters, got {quoted(cell)}"
        )


def lstm_parameters(inputs: int, hidden: int, dtype: DType | str = "float32") -> CellParameters:
    """Create parameters for an LSTM, gates in the order input, candidate, forget, output.

    ``input/weight`` (4 · hidden, inputs) and ``hidden/weight`` (4 · hidden, hidden) are uniform
    within ±1 / √hidden. ``input/bias`` and ``hidden/bias`` (4 · hidden,) are zero. The names are in
    the current scope.
    """
    return _cell("lstm", 4, inputs, hidden, dtype)


def gru_parameters(inputs: int, hidden: int, dtype: DType | str = "float32") -> CellParameters:
    """Create parameters for a gated recurrent unit, gates in the order reset, update, candidate.

    ``input/weight`` (3 · hidden, inputs) and ``hidden/weight`` (3 · hidden, hidden) are uniform
    within ±1 / √hidden. ``input/bias`` and ``hidden/bias`` (3 · hidden,) are zero. The names are in
    the current scope.
    """
    return _cell("gru", 3, inputs, hidden, dtype)


def lstm_cell(x: Value, h: Value, c: Value, cell: CellParameters) -> tuple[Value, Value]:
    """Run one step of an LSTM (Hochreiter and Schmidhuber, 1997); returns the new h and c.

    x is (batch, inputs), h and c are (batch, hidden). `lstm_layer` runs all steps of a sequence;
    for other networks, call the cell in a Python loop. `graphc.full` creates the initial state.
    Raises `ShapeError` if shapes do not fit.
    """
    _check("lstm_cell", cell)
    return _lstm_step(affine(x, cell.input_weight, cell.input_bias), h, c, cell)


def _lstm_step(projected: Value, h: Value, c: Value, cell: CellParameters) -> tuple[Value, Value]:
    """Return the new h and c of one step, from the product of its inputs and their weight."""
    gates = add(projected, affine(h, cell.hidden_weight, cell.hidden_bias))
    i, g, f, o = split(gates, 4, axis=1)
    c = add(mul(sigmoid(f), c), mul(sigmoid(i), tanh(g)))
    return mul(sigmoid(o), tanh(c)), c


def lstm_layer(x: Value, h: Value, c: Value, cell: CellParameters) -> tuple[Value, Value, Value]:
    """Run an LSTM over a sequence; returns h of all steps, and the last h and c.

    x is (steps, batch, inputs), h and c are (batch, hidden), and the first result is (steps, batch,
    hidden). The layer computes the same as `lstm_cell` in a loop over the steps, but faster: the
    inputs of all steps are one product. It needs memory for the gates of all steps of the layer.
    Raises `ShapeError` if shapes do not fit.
    """
    _check("lstm_layer", cell)
    states = []
    for projected in _projected("lstm_layer", 4, x, (h, c), cell):
        h, c = _lstm_step(projected, h, c, cell)
        states.append(h)
    return stack(states), h, c


def _projected(
    where: str, gates: int, x: Value, states: Sequence[Value], cell: CellParameters
) -> list[Value]:
    """Return the products of the inputs of all steps and their weight, after checking shapes."""
    if as_value(where, x).type.rank != 3:
        raise ShapeError(f"{where}: x must have the axes (steps, batch, inputs), got {x.type}")
    rows, hidden = cell.hidden_weight.shape
    if rows != gates * hidden:
        raise ShapeError(
            f"{where}: the cell must have {gates} gates, so {gates * hidden} rows of weights for "
            f"{hidden} hidden numbers, got {rows}"
        )
    for state in states:
        if as_value(where, state).shape != (x.shape[1], hidden):
            raise ShapeError(
                f"{where}: initial states must be (batch, hidden), here {[x.shape[1], hidden]}, "
                f"got {list(state.shape)}"
            )
    projected = affine(x, cell.input_weight, cell.input_bias)
    return [slice_(projected, step) for step in range(x.shape[0])]


def gru_cell(x: Value, h: Value, cell: CellParameters) -> Value:
    """Run one step of a gated recurrent unit (Cho et al., 2014); returns the new h.

    x is (batch, inputs), h (batch, hidden). The reset gate acts on the product with the hidden
    weights, as in cuDNN. `gru_layer` runs all steps of a sequence; for other networks, call the
    cell in a Python loop. `graphc.full` creates the initial state. Raises `ShapeError` if shapes do
    not fit.
    """
    _check("gru_cell", cell)
    return _gru_step(affine(x, cell.input_weight, cell.input_bias), h, cell)


def _gru_step(projected: Value, h: Value, cell: CellParameters) -> Value:
    """Return the new h of one step, from the product of its inputs and their weight."""
    xr, xz, xn = split(projected, 3, axis=1)
    hr, hz, hn = split(affine(h, cell.hidden_weight, cell.hidden_bias), 3, axis=1)
    z = sigmoid(add(xz, hz))
    n = tanh(add(xn, mul(sigmoid(add(xr, hr)), hn)))
    return add(n, mul(z, sub(h, n)))


def gru_layer(x: Value, h: Value, cell: CellParameters) -> tuple[Value, Value]:
    """Run a gated recurrent unit over a sequence; returns h of all steps, and the last h.

    x is (steps, batch, inputs), h is (batch, hidden), and the first result is (steps, batch,
    hidden). The layer computes the same as `gru_cell` in a loop over the steps, but faster: the
    inputs of all steps are one product. It needs memory for the gates of all steps of the layer.
    Raises `ShapeError` if shapes do not fit.
    """
    _check("gru_layer", cell)
    states = []
    for projected in _projected("gru_layer", 3, x, (h,), cell):
        h = _gru_step(projected, h, cell)
        states.append(h)
    return stack(states), h
