"""Import of recurrent layers, unrolled over time into elementary ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import graphc
from graphc.importing.calls import UnsupportedError, check_turns
from graphc.ir.graph import Value
from graphc.onnx.calls import OnnxCall, rule

Function = Callable[[Value], Value]
Cell = Callable[["Direction", Value, list[Value]], list[Value]]
"""A function that computes one step of a cell: from a direction, the projected input of the step,
and the states, to the new states."""

DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@dataclass(frozen=True)
class Direction:
    """The weights of one direction, and the activations of its cells."""

    recurrent: Value
    input_bias: Value | None
    recurrent_bias: Value | None
    peepholes: tuple[Value, ...]
    functions: Sequence[Function]
    hidden: int
    linear_before_reset: bool


@rule("RNN", "GRU", "LSTM")
def recurrent(call: OnnxCall) -> Sequence[Value | None]:
    """Import a recurrent layer over a sequence, in one or both directions."""
    kind = call.operator
    is_batch_first = bool(call.attribute("layout", 0))
    x = call.value(0)
    if is_batch_first:
        x = graphc.transpose(x, (1, 0, 2))
    reversals = DIRECTIONS[call.choice("direction", "forward", tuple(DIRECTIONS))]
    if call.attribute("input_forget", 0):
        raise UnsupportedError("input_forget is not supported")
    check_turns(x.shape[0])
    mask = _mask(call, x)
    shown, last = [], []
    for number, is_reverse in enumerate(reversals):
        steps, states = _one_way(call, kind, x, number, is_reverse, is_batch_first, mask)
        shown.append(steps)
        last.append(states)
    return _results(call, shown, last, is_batch_first)


def _results(
    call: OnnxCall, shown: list[list[Value]], last: list[list[Value]], is_batch_first: bool
) -> list[Value | None]:
    """Return all hidden states and the last states, with an additional axis for the directions."""
    outputs: list[Value | None] = [None]
    if call.wants(0):
        by_time = [graphc.stack(step) for step in zip(*shown, strict=True)]
        y = graphc.stack(by_time)  # time, directions, batch, hidden
        outputs = [graphc.transpose(y, (2, 0, 1, 3)) if is_batch_first else y]
    for states in zip(*last, strict=True):
        each = graphc.stack(states)
        outputs.append(graphc.transpose(each, (1, 0, 2)) if is_batch_first else each)
    return outputs


def _mask(call: OnnxCall, x: Value) -> list[Value] | None:
    """Return a mask for each step of the rows that are not finished.

    Returns None if all rows have the full length.
    """
    if not call.has(4):
        return None
    if call.is_known(4) and all(n == x.shape[0] for n in call.integers(4)):
        return None
    lengths = graphc.reshape(call.value(4), (-1, 1))
    return [graphc.greater(lengths, step) for step in range(x.shape[0])]


def _part(call: OnnxCall, index: int, number: int) -> Value | None:
    """Return the slice of an operand for one direction."""
    return graphc.slice(call.value(index), number) if call.has(index) else None


def _one_way(
    call: OnnxCall,
    kind: str,
    x: Value,
    number: int,
    is_reverse: bool,
    is_batch_first: bool,
    mask: list[Value] | None,
) -> tuple[list[Value], list[Value]]:
    """Import one direction; return its hidden states by time, and its last states."""
    weight, direction = _part(call, 1, number), _direction(call, kind, number)
    assert weight is not None, "the weights are no optional operand"
    rows = graphc.affine(x, weight, direction.input_bias)
    states = _first(call, kind, x, number, is_batch_first, direction.hidden)
    zero = graphc.full((), 0.0, x.type.dtype)
    shown: dict[int, Value] = {}
    steps = range(x.shape[0])
    for step in reversed(steps) if is_reverse else steps:
        found = CELLS[kind](direction, graphc.slice(rows, step), states)
        if mask is None:
            states, shown[step] = found, found[0]
        else:
            goes_on = mask[step]
            pairs = zip(found, states, strict=True)
            states = [graphc.where(goes_on, new, old) for new, old in pairs]
            shown[step] = graphc.where(goes_on, found[0], zero)
    return [shown[step] for step in steps], states


def _first(
    call: OnnxCall, kind: str, x: Value, number: int, is_batch_first: bool, hidden: int
) -> list[Value]:
    """Return the initial states of one direction, which are 0 by default."""
    states = []
    for index in (5, 6)[: 2 if kind == "LSTM" else 1]:
        if call.has(index):
            given = call.value(index)
            part = (slice(None), number) if is_batch_first else (number,)
            states.append(graphc.slice(given, part))
        else:
            states.append(graphc.full((x.shape[1], hidden), 0.0, x.type.dtype))
    return states


def _direction(call: OnnxCall, kind: str, number: int) -> Direction:
    recurrent = _part(call, 2, number)
    assert recurrent is not None, "the recurrent weights are no optional operand"
    hidden = recurrent.shape[1]
    bias, peepholes = _part(call, 3, number), _part(call, 7, number)
    count = len(DEFAULTS[kind])
    names = call.attribute("activations") or list(DEFAULTS[kind]) * (number + 1)
    names = [n.decode() if isinstance(n, bytes) else n for n in names]
    names = names[number * count : (number + 1) * count]
    alphas, betas = call.attribute("activation_alpha", []), call.attribute("activation_beta", [])
    functions = [
        _clipped(call, _function(name, alphas[i : i + 1], betas[i : i + 1]))
        for i, name in enumerate(names, number * count)
    ]
    biases: tuple[Value | None, ...] = (None, None) if bias is None else graphc.split(bias, 2)
    return Direction(
        recurrent,
        biases[0],
        biases[1],
        () if peepholes is None else graphc.split(peepholes, 3),
        functions,
        hidden,
        bool(call.attribute("linear_before_reset", 0)),
    )


def _function(name: str, alpha: Sequence[float], beta: Sequence[float]) -> Function:
    a = alpha[0] if alpha else None
    b = beta[0] if beta else None
    plain: dict[str, Function] = {
        "Relu": graphc.relu,
        "Sigmoid": graphc.sigmoid,
        "Softplus": graphc.softplus,
        "Softsign": graphc.softsign,
        "Tanh": graphc.tanh,
        "Affine": lambda x: graphc.add(graphc.mul(x, 1.0 if a is None else a), b or 0.0),
        "Elu": lambda x: graphc.elu(x, 1.0 if a is None else a),
        "HardSigmoid": lambda x: graphc.hard_sigmoid(
            x, 0.2 if a is None else a, 0.5 if b is None else b
        ),
        "LeakyRelu": lambda x: graphc.leaky_relu(x, 0.01 if a is None else a),
        "ThresholdedRelu": lambda x: graphc.thresholded_relu(x, 1.0 if a is None else a),
    }
    if name not in plain:
        raise UnsupportedError(f"the activation must be one of {', '.join(plain)}, got {name!r}")
    return plain[name]


def _clipped(call: OnnxCall, function: Function) -> Function:
    bound = call.attribute("clip")
    if not bound:
        return function
    return lambda x: function(graphc.clip(x, -bound, bound))


def _with_state(direction: Direction, row: Value, h: Value) -> Value:
    """Return the preactivations of all gates from projected input `row` and hidden state `h`."""
    return graphc.add(row, graphc.affine(h, direction.recurrent, direction.recurrent_bias))


def _rnn(direction: Direction, row: Value, states: list[Value]) -> list[Value]:
    return [direction.functions[0](_with_state(direction, row, states[0]))]


def _gru(direction: Direction, row: Value, states: list[Value]) -> list[Value]:
    """Compute a GRU step; the gate order is update, reset, candidate."""
    f, g = direction.functions
    (h,), n = states, direction.hidden
    weights = graphc.split(direction.recurrent, (2 * n, n))
    bias = direction.recurrent_bias
    biases = (None, None) if bias is None else graphc.split(bias, (2 * n, n))
    gates, candidate = graphc.split(row, (2 * n, n), 1)
    z, r = graphc.split(f(graphc.add(gates, graphc.affine(h, weights[0], biases[0]))), 2, 1)
    if direction.linear_before_reset:
        inner = graphc.mul(r, graphc.affine(h, weights[1], biases[1]))
    else:
        inner = graphc.affine(graphc.mul(r, h), weights[1], biases[1])
    c = g(graphc.add(candidate, inner))
    return [graphc.add(c, graphc.mul(z, graphc.sub(h, c)))]


def _lstm(direction: Direction, row: Value, states: list[Value]) -> list[Value]:
    """Compute an LSTM step; the gate order is input, output, forget, candidate."""
    f, g, out = direction.functions
    h, c = states
    i, o, forget, new = graphc.split(_with_state(direction, row, h), 4, 1)
    holes = direction.peepholes
    if holes:
        i = graphc.add(i, graphc.mul(holes[0], c))
        forget = graphc.add(forget, graphc.mul(holes[2], c))
    c = graphc.add(graphc.mul(f(forget), c), graphc.mul(f(i), g(new)))
    if holes:
        o = graphc.add(o, graphc.mul(holes[1], c))
    return [graphc.mul(f(o), out(c)), c]


CELLS: dict[str, Cell] = {"GRU": _gru, "LSTM": _lstm, "RNN": _rnn}
