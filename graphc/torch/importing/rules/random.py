"""Dropout and random numbers, drawn by graphc's own generator."""

from __future__ import annotations

import torch

import graphc
from graphc.importing.calls import UnsupportedError
from graphc.ir.graph import Value
from graphc.torch.importing.calls import Result, TorchCall, operator_of, rule


@rule("dropout", "native_dropout")
def dropout(call: TorchCall) -> Result:
    """Return a dropout node, or x if torch's dropout is not in training."""
    x, rate = call.value("input"), float(call["p"])
    y = x if rate == 0 or call["train"] is False else graphc.dropout(x, rate)
    if call.operator == "dropout":
        return y
    if call.wants(1):
        raise UnsupportedError("the dropout mask is not supported as an output")
    return (y, None)


@rule("feature_dropout")
def feature_dropout(call: TorchCall) -> Value:
    """Drop whole channels."""
    x, rate = call.value("input"), float(call["p"])
    if rate == 0 or not call["train"]:
        return x
    shape = (*x.shape[:2], *(1,) * (x.type.rank - 2))
    return graphc.mul(x, graphc.dropout(graphc.full(shape, 1.0, x.type.dtype), rate))


def dropped_in_place(call: TorchCall) -> Value | None:
    """Match x · (bernoulli(empty_like(x), keep) / keep), an in-place dropout; else return None."""
    scaled = call.node.args[1]
    if not isinstance(scaled, torch.fx.Node) or operator_of(scaled.target) != "div":
        return None
    drawn, keep = scaled.args[:2]
    if not isinstance(drawn, torch.fx.Node) or operator_of(drawn.target) != "bernoulli":
        return None
    source = drawn.args[0]
    is_mask = isinstance(source, torch.fx.Node) and operator_of(source.target) == "empty_like"
    if not is_mask or drawn.args[1:2] != (keep,) or source.args[0] is not call.node.args[0]:
        return None
    return graphc.dropout(call.value("self"), 1 - float(keep))


@rule("rand", "rand_like", "randn", "randn_like")
def draw(call: TorchCall) -> Value:
    """Draw from the standard normal distribution, or uniformly between 0 and 1."""
    function = graphc.normal if "randn" in call.operator else graphc.uniform
    return function(call.shape, dtype=call.dtype)


@rule("uniform")
def uniform(call: TorchCall) -> Value:
    """Draw uniformly between two numbers."""
    return graphc.uniform(call.shape, float(call["from"]), float(call["to"]), call.dtype)


@rule("normal_functional")
def normal_in_place(call: TorchCall) -> Value:
    """Draw from a normal distribution."""
    return graphc.normal(call.shape, float(call["mean"]), float(call["std"]), call.dtype)


@rule("normal")
def normal(call: TorchCall) -> Value:
    """Draw from normal distributions, each with its own mean and deviation."""
    drawn = graphc.normal(call.shape, dtype=call.dtype)
    spread = call["std"]
    scaled = graphc.mul(drawn, float(spread) if _is_number(spread) else call.as_value(spread))
    mean = call["mean"]
    return graphc.add(scaled, float(mean) if _is_number(mean) else call.as_value(mean))


def _is_number(given: object) -> bool:
    return isinstance(given, int | float)


@rule("bernoulli")
def bernoulli(call: TorchCall) -> Value:
    """Return 1 with a probability, elementwise or one for all elements, else 0."""
    given = call.get("p", call["self"])
    drawn = graphc.uniform(call.shape, dtype=call.dtype)
    likely = float(given) if _is_number(given) else graphc.cast(call.as_value(given), call.dtype)
    return graphc.cast(graphc.less(drawn, likely), call.dtype)
