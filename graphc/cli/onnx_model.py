"""Construction of a loss from an ONNX file on the command line."""

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
"""The suffix of a MODEL that is an ONNX file."""

LOSSES = ("cross_entropy", "mse")
"""Names of losses that are computed from an output; a colon and the name of the output may
follow."""

SOFTMAXES = ("softmax", "log_softmax")
"""Softmax ops. A cross entropy of their result is computed from their operand instead."""

MOVES = ("cast", "reshape", "transpose")
"""Operators that move elements and may follow the final softmax of a network."""


def onnx_model(path: str) -> Callable[..., Value]:
    """Return a function that builds the loss of a file from the extents that the file leaves open.

    The function reads no weights.
    """

    def network(loss: str | None = None, trainable: str | None = None, **dims: Any) -> Value:
        return loss_of(path, read(path, dims, trainable, weights=False), loss)

    return network


def read(path: str, dims: Mapping[str, Any], trainable: str | None, weights: bool) -> Network:
    """Return the network of a file; raises `OptionError` with a list of missing extents."""
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
    """Return the loss that `asked` names: an output, or a loss function of an output.

    Raises `OptionError` for other names.
    """
    if asked is None:
        scalars = [value for value in network.outputs.values() if value.shape == ()]
        if len(scalars) != 1:
            raise OptionError(
                f"{path} has {len(scalars)} scalar outputs, but needs one loss; {_cure(network)}"
            )
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
    raise OptionError(
        f"{path} has no float output of rank 1 or more to compare with labels; {_cure(network)}"
    )


def _cross_entropy(network: Network, output: Value) -> Value:
    """Return the cross entropy of an output and a new input of labels, one per row of classes."""
    logits, axis = _logits(output)
    if logits.type.rank < 2:
        raise OptionError(f"cross entropy needs an output (rows, ..., classes), got {logits.type}")
    places = (*logits.shape[:axis], *logits.shape[axis + 1 :])
    labels = graphc.input(_free(network, "labels"), places, "int64")
    return graphc.softmax_cross_entropy(logits, labels, axis=axis)


def _logits(output: Value) -> tuple[Value, int]:
    """Return the logits that an output is computed from, and the axis of classes.

    If the network ends with a softmax, possibly followed by operators of `MOVES`, the logits are
    the operand of the softmax, and the classes are along its axis. Otherwise the output itself is
    taken, with classes along the last axis, or along the second for more than 3 axes.
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
        if behind is None:  # the move splits the classes into several axes again
            break
        logits = apply(type(move.op), logits, attributes=move.attributes).output
        axis = behind
    return logits, axis


def _axis_behind(move: Node, axis: int) -> int | None:
    """Return the position of an axis after an operator of `MOVES`.

    Returns None if a reshape splits or merges the axis.
    """
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
    """Return `wanted`, changed if necessary so that no input of the network has that name."""
    taken, name, number = {value.name for value in network.inputs.values()}, wanted, 2
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name
