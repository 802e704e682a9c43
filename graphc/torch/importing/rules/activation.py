"""Activation functions and softmax."""

from __future__ import annotations

import graphc
from graphc.ir.graph import Value
from graphc.torch.importing.calls import TorchCall, rule


@rule("log_sigmoid")
def log_sigmoid(call: TorchCall) -> Value:
    """Return -softplus(-x), which does not overflow."""
    return graphc.neg(graphc.softplus(graphc.neg(call.value("self"))))


@rule("gelu")
def gelu(call: TorchCall) -> Value:
    """Return x · Φ(x), or its approximation by tanh."""
    return graphc.gelu(call.value("self"), "tanh" if call["approximate"] == "tanh" else "exact")


@rule("leaky_relu")
def leaky_relu(call: TorchCall) -> Value:
    """Return x where positive, else slope · x."""
    x, slope = call.value("self"), float(call["negative_slope"])
    if slope > 0:
        return graphc.leaky_relu(x, slope)
    return graphc.where(graphc.greater(x, 0.0), x, graphc.mul(x, slope))


@rule("prelu")
def prelu(call: TorchCall) -> Value:
    """Return x where positive, else a learned slope times x; one slope, or one per channel."""
    x, slope = call.value("self"), call.value("weight")
    if slope.type.elements > 1 and x.type.rank > 1:
        slope = graphc.reshape(slope, (-1, *(1,) * (x.type.rank - 2)))
    return graphc.prelu(x, slope)


@rule("rrelu_with_noise_functional")
def random_leaky_relu(call: TorchCall) -> tuple[Value, None]:
    """Return x where positive, else slope · x; the slope is random in training, else the mean."""
    x, low, high = call.value("self"), float(call["lower"]), float(call["upper"])
    if call["training"]:
        slope = graphc.uniform(x.shape, low, high, x.type.dtype)
        return graphc.where(graphc.greater(x, 0.0), x, graphc.mul(x, slope)), None
    return graphc.leaky_relu(x, (low + high) / 2), None


@rule("elu")
def elu(call: TorchCall) -> Value:
    """Return scale · (x where positive, else alpha · (exp(input_scale · x) - 1))."""
    x = call.value("self")
    alpha, scale, inner = (float(call[name]) for name in ("alpha", "scale", "input_scale"))
    if inner == 1:
        y = graphc.elu(x, alpha)
    else:
        below = graphc.mul(graphc.sub(graphc.exp(graphc.mul(x, inner)), 1.0), alpha)
        y = graphc.where(graphc.greater(x, 0.0), x, below)
    return y if scale == 1 else graphc.mul(y, scale)


@rule("celu")
def celu(call: TorchCall) -> Value:
    """Return x where positive, else alpha · (exp(x / alpha) - 1)."""
    return graphc.celu(call.value("self"), float(call["alpha"]))


@rule("hardtanh")
def hardtanh(call: TorchCall) -> Value:
    """Clip x to bounds."""
    return graphc.clip(call.value("self"), float(call["min_val"]), float(call["max_val"]))


@rule("threshold")
def threshold(call: TorchCall) -> Value:
    """Return x above a threshold, else a number."""
    x = call.value("self")
    return graphc.where(graphc.greater(x, call["threshold"]), x, float(call["value"]))


@rule("softplus")
def softplus(call: TorchCall) -> Value:
    """Return log(1 + exp(beta · x)) / beta, or x where beta · x is above a threshold."""
    x, beta = call.value("self"), float(call["beta"])
    inner = x if beta == 1 else graphc.mul(x, beta)
    y = graphc.softplus(inner)
    y = y if beta == 1 else graphc.mul(y, 1 / beta)
    return graphc.where(graphc.greater(inner, float(call["threshold"])), x, y)


@rule("hardshrink", "softshrink")
def shrink(call: TorchCall) -> Value:
    """Return x outside ±lambd, moved toward 0 by lambd if soft, else 0."""
    x, bound = call.value("self"), float(call["lambd"])
    above, below = graphc.greater(x, bound), graphc.less(x, -bound)
    if call.operator == "hardshrink":
        return graphc.where(graphc.bitwise_or(above, below), x, 0.0)
    return graphc.where(above, graphc.sub(x, bound), graphc.where(below, graphc.add(x, bound), 0.0))


@rule("glu")
def glu(call: TorchCall) -> Value:
    """Return the first half times the sigmoid of the second half."""
    a, b = graphc.split(call.value("self"), 2, call.axis())
    return graphc.mul(a, graphc.sigmoid(b))


@rule("softmax", "log_softmax", "_softmax", "_log_softmax", "_safe_softmax")
def softmax(call: TorchCall) -> Value:
    """Return the softmax along an axis; the safe variant is 0 where all elements are -inf."""
    x = graphc.cast(call.value("self"), call.dtype)
    axis = call.axis()
    if x.type.rank == 0:
        return graphc.full((), float("log" not in call.operator), x.type.dtype)
    if call.operator == "_safe_softmax":
        lowest = graphc.full((), float("-inf"), x.type.dtype)
        return graphc.masked_softmax(x, graphc.greater(x, lowest), axis)
    function = graphc.log_softmax if "log" in call.operator else graphc.softmax
    return function(x, axis)
