"""Recurrent layers, unrolled over time into products, activations and sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import graphc
from graphc.importing.calls import UnsupportedError, check_turns
from graphc.ir.graph import Value
from graphc.torch.importing.calls import TorchCall, rule


@dataclass(frozen=True)
class Weights:
    """The weights of one direction of a layer."""

    inputs: Value
    recurrent: Value
    input_bias: Value | None = None
    recurrent_bias: Value | None = None
    projection: Value | None = None


Cell = Callable[[Weights, Value, list[Value]], list[Value]]
"""One time step: takes weights, projected input and states, and returns the new states."""


def _lstm(weights: Weights, row: Value, states: list[Value]) -> list[Value]:
    """Compute an LSTM step; gates are in the order input, forget, candidate, output."""
    h, c = states
    summed = graphc.add(row, graphc.affine(h, weights.recurrent, weights.recurrent_bias))
    i, forget, new, out = graphc.split(summed, 4, 1)
    kept = graphc.mul(graphc.sigmoid(forget), c)
    c = graphc.add(kept, graphc.mul(graphc.sigmoid(i), graphc.tanh(new)))
    h = graphc.mul(graphc.sigmoid(out), graphc.tanh(c))
    return [h if weights.projection is None else graphc.affine(h, weights.projection), c]


def _gru(weights: Weights, row: Value, states: list[Value]) -> list[Value]:
    """Compute a GRU step; gates are in the order reset, update, candidate."""
    (h,) = states
    n = h.shape[1]
    within = graphc.affine(h, weights.recurrent, weights.recurrent_bias)
    (a, new), (b, inner) = (graphc.split(x, (2 * n, n), 1) for x in (row, within))
    reset, update = graphc.split(graphc.sigmoid(graphc.add(a, b)), 2, 1)
    candidate = graphc.tanh(graphc.add(new, graphc.mul(reset, inner)))
    return [graphc.add(candidate, graphc.mul(update, graphc.sub(h, candidate)))]


def _plain(function: Callable[[Value], Value]) -> Cell:
    def cell(weights: Weights, row: Value, states: list[Value]) -> list[Value]:
        within = graphc.affine(states[0], weights.recurrent, weights.recurrent_bias)
        return [function(graphc.add(row, within))]

    return cell


CELLS: Mapping[str, Cell] = {
    "gru": _gru,
    "lstm": _lstm,
    "rnn_relu": _plain(graphc.relu),
    "rnn_tanh": _plain(graphc.tanh),
}


@rule(*CELLS)
def recurrent(call: TorchCall) -> Sequence[Value]:
    """Return layers over a sequence, in one direction or both."""
    if "input" not in call.arguments:
        raise UnsupportedError(
            "packed sequences are not supported; pad the sequences and mask the loss"
        )
    x, is_batch_first = call.value("input"), bool(call["batch_first"])
    if is_batch_first:
        x = graphc.transpose(x, (1, 0, 2))
    check_turns(x.shape[0])
    cell, layers, ways = CELLS[call.operator], call["num_layers"], 1 + bool(call["bidirectional"])
    listed = _weights(call, layers * ways)
    first = [call.as_value(state) for state in _states(call)]
    last: list[list[Value]] = []
    for layer in range(layers):
        shown = []
        for way in range(ways):
            number = layer * ways + way
            states = [graphc.slice(state, number) for state in first]
            steps, states = _one_way(cell, listed[number], x, states, is_reverse=way == 1)
            shown.append(steps)
            last.append(states)
        x = shown[0] if ways == 1 else graphc.concat(shown, 2)
        if call["dropout"] and call["train"] and layer < layers - 1:
            x = graphc.dropout(x, float(call["dropout"]))
    y = graphc.transpose(x, (1, 0, 2)) if is_batch_first else x
    return [y, *(graphc.stack(states) for states in zip(*last, strict=True))]


def _states(call: TorchCall) -> Sequence[object]:
    given = call["hx"]
    return list(given) if isinstance(given, list | tuple) else [given]


def _weights(call: TorchCall, count: int) -> list[Weights]:
    """Return the weights of all layers and directions, which are consecutive."""
    values = call.values("params")
    each = len(values) // count
    listed = [values[i * each : (i + 1) * each] for i in range(count)]
    if call["has_biases"]:
        return [Weights(*given) for given in listed]
    return [
        Weights(given[0], given[1], projection=given[2] if each == 3 else None) for given in listed
    ]


def _one_way(
    cell: Cell, weights: Weights, x: Value, states: list[Value], is_reverse: bool
) -> tuple[Value, list[Value]]:
    """Return the hidden states of all steps along a new first axis, and the last states."""
    rows = graphc.affine(x, weights.inputs, weights.input_bias)
    shown: dict[int, Value] = {}
    steps = range(x.shape[0])
    for step in reversed(steps) if is_reverse else steps:
        states = cell(weights, graphc.slice(rows, step), states)
        shown[step] = states[0]
    return graphc.stack([shown[step] for step in steps]), states


@rule("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def single(call: TorchCall) -> Value | Sequence[Value]:
    """Return one time step of a cell."""
    weights = Weights(
        call.value("w_ih"), call.value("w_hh"), call.optional("b_ih"), call.optional("b_hh")
    )
    row = graphc.affine(call.value("input"), weights.inputs, weights.input_bias)
    states = [call.as_value(state) for state in _states(call)]
    found = CELLS[call.operator.removesuffix("_cell")](weights, row, states)
    return found if len(found) > 1 else found[0]
