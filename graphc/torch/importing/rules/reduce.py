"""Reductions: sums, means, extremes and their indices, and cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import graphc
from graphc.importing.calls import check_turns
from graphc.ir.graph import Value
from graphc.ir.types import bool_
from graphc.torch.importing.calls import TorchCall, rule
from graphc.torch.importing.rules.elementwise import operands, truth

Reducer = Callable[[Value, list[int], bool], Value]

REDUCTIONS: Mapping[str, Reducer] = {
    "logsumexp": graphc.logsumexp,
    "mean": graphc.mean,
    "prod": graphc.prod,
    "sum": graphc.sum,
}


def _keeps(call: TorchCall) -> bool:
    return bool(call.get("keepdim", False))


def _reduced(call: TorchCall, function: Reducer, x: Value) -> Value:
    if x.type.rank == 0:
        return graphc.reshape(function(graphc.reshape(x, (1,)), [0], False), ())
    return function(x, call.axes(x), _keeps(call))


@rule(*REDUCTIONS)
def reduction(call: TorchCall) -> Value:
    """Return a reduction over some or all axes, in torch's dtype."""
    x = graphc.cast(call.value("self"), call.dtype)
    return _reduced(call, REDUCTIONS[call.operator], x)


@rule("amax", "amin")
def extremes(call: TorchCall) -> Value:
    """Return the maximum or minimum over some axes."""
    return _reduced(call, _extreme(call), call.value("self"))


def _extreme(call: TorchCall) -> Reducer:
    function: Reducer = graphc.max if "max" in call.operator else graphc.min
    return function


@rule("max", "min")
def extreme(call: TorchCall) -> Value | Sequence[Value]:
    """Return the extreme of two operands, over all axes, or along an axis with its indices."""
    if "other" in call.arguments:
        function = graphc.maximum if call.operator == "max" else graphc.minimum
        return function(*operands(call))
    x = call.value("self")
    if "dim" not in call.arguments:
        return _reduced(call, _extreme(call), x)
    axis, keeps = call.axis(), _keeps(call)
    place = _place(call)(x, axis, True)
    if not call.wants(0):
        values = _extreme(call)(x, [axis], keeps)
    else:  # only the first of equal elements gets the gradient, as in torch
        values = graphc.gather_elements(x, place, axis)
    shape = x.shape[:axis] + (1,) * keeps + x.shape[axis + 1 :]
    return graphc.reshape(values, shape), graphc.reshape(place, shape)


def _place(call: TorchCall) -> Callable[..., Value]:
    return graphc.argmax if "max" in call.operator else graphc.argmin


@rule("argmax", "argmin")
def place(call: TorchCall) -> Value:
    """Return the index of the first extreme along an axis, or among all elements."""
    x = call.value("self")
    if not call.has("dim"):
        return graphc.reshape(_place(call)(graphc.reshape(x, (-1,)), 0), call.shape)
    return _place(call)(x, call.axis(), _keeps(call))


@rule("all", "any")
def test(call: TorchCall) -> Value:
    """Return whether all or any elements differ from 0."""
    function: Reducer = graphc.all if call.operator == "all" else graphc.any
    return graphc.cast(_reduced(call, function, truth(call.value("self"))), bool_)


@rule("var", "std", "var_mean", "std_mean")
def spread(call: TorchCall) -> Value | Sequence[Value]:
    """Return the variance with divisor n - correction, or its root, and the mean if requested."""
    x = call.value("self")
    given = call.arguments.get("correction")
    correction = float(call.get("unbiased", True)) if given is None else float(given)
    function = graphc.var if call.operator.startswith("var") else graphc.std
    found = function(x, call.axes(x), correction, _keeps(call))
    if not call.operator.endswith("_mean"):
        return found
    return found, graphc.mean(x, call.axes(x), _keeps(call))


@rule("norm", "linalg_vector_norm")
def norm(call: TorchCall) -> Value:
    """Return the norm of an order over some axes, or of all elements as one vector."""
    x = graphc.cast(call.value("self"), call.dtype)
    order = call.get("p", call.get("ord", 2))
    if math.isinf(order):
        function: Reducer = graphc.max if order > 0 else graphc.min
        return _reduced(call, function, graphc.abs(x))
    return _reduced(call, lambda y, axes, keep: graphc.norm(y, order, axes, keep), x)


@rule("cumsum")
def cumsum(call: TorchCall) -> Value:
    """Return a cumulative sum."""
    return graphc.cumsum(graphc.cast(call.value("self"), call.dtype), call.axis())


@rule("cumprod")
def cumprod(call: TorchCall) -> Value:
    """Return a cumulative product, computed one element after another."""
    x, axis = graphc.cast(call.value("self"), call.dtype), call.axis()
    check_turns(x.shape[axis])
    shown = [*graphc.split(x, x.shape[axis], axis)] if x.shape[axis] > 1 else [x]
    for place in range(1, len(shown)):
        shown[place] = graphc.mul(shown[place - 1], shown[place])
    return graphc.concat(shown, axis) if len(shown) > 1 else x
