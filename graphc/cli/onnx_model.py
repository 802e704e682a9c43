"""A loss, made from an ONNX file on the command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import graphc
from graphc.errors import OptionError, did_you_mean
from graphc.importing.network import Network
from graphc.ir.builder import apply
from graphc.ir.graph import Node, Value

SUFFIX = ".onnx"
"""How the name of a MODEL ends that is an ONNX file."""

LOSSES = ("cross_entropy", "mse")
"""Losses beside the outputs of a file; behind a colon stands the output that they are of."""

SOFTMAXES = ("softmax", "log_softmax")
"""Ops that cross entropy stands for."""

MOVES = ("cast", "reshape", "transpose")
"""Ops that may stand behind a softmax that ends a network."""


def onnx_model(path: str) -> Callable[..., Value]:
    """A function of the extents that a file leaves open; it gives a loss, and reads no weight."""

    def network(loss: str | None = None, trainable: str | None = None, **dims: Any) -> Value:
        return loss_of(path, read(path, dims, trainable, weights=False), loss)

    return network


def read(path: str, dims: Mapping[str, Any], trainable: str | None, weights: bool) -> Network:
    """The network of a file; raises `OptionError` that lists the extents that are missing."""
    given = {name: tuple(n) if isinstance(n, list) else n for name, n in dims.items()}
    _check_extents(path, given)
    chosen = None if trainable is None else str(trainable)
    return graphc.onnx.load(path, dims=given, trainable=chosen, weights=weights)


def _check_extents(path: str, given: Mapping[str, Any]) -> None:
    inputs = graphc.onnx.input_extents(path)
    missing = dict[str, None]()
    settled = {n for name in inputs.keys() & given.keys() for n in inputs[name] or ()}
    for name, extents in inputs.items():
        if name in given:
            continue
        if extents is None or None in extents:
            missing[f"{name}=(...)"] = None
        else:
            named = [n for n in extents if isinstance(n, str) and n not in given.keys() | settled]
            missing.update((f"{n}=...", None) for n in named)
    if missing:
        listed = ", ".join(f"{name} {_shown(extents)}" for name, extents in inputs.items())
        raise OptionError(f"{path} needs {', '.join(missing)}; its inputs are {listed}")


def _shown(extents: Sequence[int | str | None] | None) -> str:
    if extents is None:
        return "of any shape"
    return f"[{', '.join('?' if n is None else str(n) for n in extents)}]"


def loss_of(path: str, network: Network, asked: str | None) -> Value:
    """The loss that is asked for: an output, or of one; raises `OptionError` for another."""
    if asked is None:
        scalars = [value for value in network.outputs.values() if value.shape == ()]
        if len(scalars) != 1:
            raise OptionError(f"{path} has {len(scalars)} outputs of one number; {_cure(network)}")
        return scalars[0]
    kind, _, name = str(asked).partition(":")
    if kind not in LOSSES:
        return _output(path, network, str(asked))
    output = _output(path, network, name) if name else _first(path, network)
    return _cross_entropy(network, output) if kind == "cross_entropy" else _mse(network, output)


def _cure(network: Network) -> str:
    outputs = ", ".join(f"{name} {value.type}" for name, value in network.outputs.items())
    return f"give --loss {', '.join(LOSSES)}, or one of its outputs: {outputs}"


def _output(path: str, network: Network, name: str) -> Value:
    if name not in network.outputs:
        near = did_you_mean(name, (*network.outputs, *LOSSES), before="; ")
        raise OptionError(f"{path} has no output {name!r}; {_cure(network)}{near}")
    return network.outputs[name]


def _first(path: str, network: Network) -> Value:
    for value in network.outputs.values():
        if value.type.dtype.kind == "float" and value.type.rank > 0:
            return value
    raise OptionError(f"{path} has no output to compare with what is fed; {_cure(network)}")


def _cross_entropy(network: Network, output: Value) -> Value:
    """Against labels that are fed, one for each line of classes."""
    logits, axis = _logits(output)
    if logits.type.rank < 2:
        raise OptionError(f"cross entropy is of (rows, ..., classes), and the output {logits.type}")
    places = (*logits.shape[:axis], *logits.shape[axis + 1 :])
    labels = graphc.input(_free(network, "labels"), places, "int64")
    return graphc.softmax_cross_entropy(logits, labels, axis=axis)


def _logits(output: Value) -> tuple[Value, int]:
    """What cross entropy is of, and the axis of its classes.

    A softmax that ends the network is left out, also where others move its results, as its form up
    to opset 12 does. Classes lie along its axis; without one along the last, of maps the second.
    """
    moves, value = list[Node](), output
    while value.node is not None and value.node.op.name in MOVES:
        moves.append(value.node)
        value = value.node.inputs[0]
    softmax = value.node
    if softmax is None or softmax.op.name not in SOFTMAXES:
        return output, 1 if output.type.rank > 3 else output.type.rank - 1
    logits, axis = softmax.inputs[0], softmax.attributes.axis
    for move in reversed(moves):
        behind = _axis_behind(move, axis)
        if behind is None:  # classes were several axes, and are again from here on
            break
        logits = apply(type(move.op), logits, attributes=move.attributes).output
        axis = behind
    return logits, axis


def _axis_behind(move: Node, axis: int) -> int | None:
    """Where an axis is in what a node of `MOVES` makes; None where a reshape cuts or joins it."""
    have, want = move.inputs[0].shape, move.output.shape
    if move.op.name == "transpose":
        place: int = move.attributes.permutation.index(axis)
        return place
    lines = (math.prod(have[:axis]), have[axis])
    found = (i for i, extent in enumerate(want) if (math.prod(want[:i]), extent) == lines)
    return next(found, None)


def _mse(network: Network, output: Value) -> Value:
    target = graphc.input(_free(network, "target"), output.shape, output.type.dtype)
    return graphc.mse(output, target)


def _free(network: Network, wanted: str) -> str:
    """A name that no input of the network has."""
    taken, name, number = {value.name for value in network.inputs.values()}, wanted, 2
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name
