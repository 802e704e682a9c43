"""Lookups of rows of a table, and their reduction by bags."""

from __future__ import annotations

import numpy as np
import torch

import graphc
from graphc.importing.calls import UnsupportedError
from graphc.ir.graph import Value
from graphc.torch.importing.calls import Result, TorchCall, rule

MODES = ("sum", "mean", "max")
"""Reductions of bags, indexed by torch's codes."""


@rule("embedding")
def embedding(call: TorchCall) -> Value:
    """Return rows of a table; the row `padding_idx` gets no gradient."""
    indices, padding = call.value("indices"), int(call["padding_idx"])
    _refuse_scaling(call)
    y = graphc.gather(call.value("weight"), indices)
    if padding < 0:
        return y
    is_padding = graphc.reshape(graphc.equal(indices, padding), (*indices.shape, 1))
    return graphc.where(is_padding, graphc.stop_gradient(y), y)


def _refuse_scaling(call: TorchCall) -> None:
    if call["scale_grad_by_freq"]:
        raise UnsupportedError(
            "gradients scaled by the frequency of indices are not supported; set "
            "scale_grad_by_freq=False"
        )


@rule("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(call: TorchCall) -> Result:
    """Return the sum, mean or maximum of rows of a table over bags of consecutive indices."""
    _refuse_scaling(call)
    if any(call.wants(index) for index in (1, 2, 3)):
        raise UnsupportedError("the sizes and indices of bags are not supported as outputs")
    indices, mode = call.value("indices"), MODES[call["mode"]]
    rows = graphc.gather(call.value("weight"), indices)
    if call.has("per_sample_weights"):
        rows = graphc.mul(rows, graphc.reshape(call.value("per_sample_weights"), (-1, 1)))
    ones = graphc.full((rows.shape[0], 1), 1.0, rows.type.dtype)
    if call["padding_idx"] >= 0:
        is_padding = graphc.reshape(graphc.equal(indices, int(call["padding_idx"])), (-1, 1))
        nothing = float("-inf") if mode == "max" else 0.0
        rows = graphc.where(is_padding, graphc.full((), nothing, rows.type.dtype), rows)
        ones = graphc.where(is_padding, 0.0, ones)
    if mode == "max":
        return _largest(call, rows), None, None, None
    bags = graphc.reshape(_bags(call, rows.shape[0]), (-1, 1))
    y = _summed(call, bags, rows)
    if mode == "mean":
        y = graphc.div(y, graphc.maximum(_summed(call, bags, ones), 1.0))
    return y, None, None, None


def _summed(call: TorchCall, bags: Value, rows: Value) -> Value:
    nothing = graphc.full((call.shape[0], rows.shape[1]), 0.0, rows.type.dtype)
    return graphc.scatter_nd(nothing, bags, rows, "add")


def _bags(call: TorchCall, count: int) -> Value:
    """Return the bag of each position: the number of offsets up to it, less 1."""
    positions = np.arange(count)
    given = call["offsets"][: call.shape[0]] if _are_known(call) else None
    if given is not None:
        return graphc.constant(np.searchsorted(given.numpy(), positions, "right") - 1)
    offsets = graphc.slice(call.value("offsets"), slice(0, call.shape[0]))
    numbers = positions[:, None].astype(offsets.type.dtype.numpy)
    started = graphc.less_equal(offsets, graphc.constant(numbers))
    return graphc.sub(graphc.sum(graphc.cast(started, "int64"), 1), 1)


def _are_known(call: TorchCall) -> bool:
    return isinstance(call["offsets"], torch.Tensor)


def _largest(call: TorchCall, rows: Value) -> Value:
    """Return the maxima of bags, and 0 for empty ones; the first of equal rows has the gradient.

    Shorter bags repeat their last rows.
    """
    if not _are_known(call):
        raise UnsupportedError(
            "maxima of bags with computed offsets are not supported; give indices as a matrix, or "
            "offsets as a constant"
        )
    starts = call["offsets"][: call.shape[0]].numpy()
    stops = np.append(starts[1:], rows.shape[0])
    positions = starts[:, None] + np.arange(max((stops - starts).max(), 1))
    places = np.clip(positions, 0, np.maximum(stops - 1, 0)[:, None])
    windows = graphc.take(rows, graphc.constant(places.astype(np.int64)), 0)
    first = graphc.argmax(windows, 1, True)
    y = graphc.reshape(graphc.gather_elements(windows, first, 1), call.shape)
    is_empty = graphc.bitwise_or(
        graphc.constant((starts == stops)[:, None]),
        graphc.equal(y, graphc.full((), float("-inf"), y.type.dtype)),
    )
    return graphc.where(is_empty, 0.0, y)
