"""Import of activation functions, softmax and dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

import graphc
from graphc.importing.calls import UnsupportedError
from graphc.importing.weights import filled
from graphc.ir.graph import Value
from graphc.onnx.calls import OnnxCall, Operand, rule
from graphc.onnx.model import WRITTEN_FOR


@rule("Elu")
def elu(call: OnnxCall) -> Value:
    """Import Elu: x where positive, else alpha · (exp(x) - 1)."""
    return graphc.elu(call.value(0), call.attribute("alpha", 1.0))


@rule("Celu")
def celu(call: OnnxCall) -> Value:
    """Import Celu: x where positive, else alpha · (exp(x / alpha) - 1)."""
    return graphc.celu(call.value(0), call.attribute("alpha", 1.0))


@rule("Selu")
def selu(call: OnnxCall) -> Value:
    """Import Selu: gamma · elu(x, alpha)."""
    alpha = call.attribute("alpha", 1.6732631921768188)
    return graphc.selu(call.value(0), alpha, call.attribute("gamma", 1.0507010221481323))


@rule("HardSigmoid")
def hard_sigmoid(call: OnnxCall) -> Value:
    """Import HardSigmoid: alpha · x + beta, clipped to `[0, 1]`."""
    return graphc.hard_sigmoid(
        call.value(0), call.attribute("alpha", 0.2), call.attribute("beta", 0.5)
    )


@rule("ThresholdedRelu")
def thresholded_relu(call: OnnxCall) -> Value:
    """Import ThresholdedRelu: x where it is above a threshold, else 0."""
    return graphc.thresholded_relu(call.value(0), call.attribute("alpha", 1.0))


@rule("LeakyRelu")
def leaky_relu(call: OnnxCall) -> Value:
    """Import LeakyRelu: x where positive, else slope · x."""
    x, slope = call.value(0), call.attribute("alpha", 0.01)
    if slope > 0:
        return graphc.leaky_relu(x, slope)
    return graphc.where(graphc.greater(x, 0.0), x, graphc.mul(x, slope))


@rule("PRelu")
def prelu(call: OnnxCall) -> Value:
    """Import PRelu: x where positive, else a learned slope times x."""
    x, slope = call.value(0), call.value(1)
    if slope.type.rank == 1 and x.type.rank > 1 and slope.shape[0] not in (1, x.shape[-1]):
        slope = graphc.reshape(slope, (-1, *(1,) * (x.type.rank - 2)))  # the form before opset 7
    return graphc.prelu(x, slope)


@rule("Gelu")
def gelu(call: OnnxCall) -> Value:
    """Import Gelu: x · Φ(x), or its approximation by tanh."""
    form = call.choice("approximate", "none", ("none", "tanh"))
    return graphc.gelu(call.value(0), "tanh" if form == "tanh" else "exact")


@rule("Swish")
def swish(call: OnnxCall) -> Value:
    """Import Swish: x · sigmoid(alpha · x)."""
    x, alpha = call.value(0), call.attribute("alpha", 1.0)
    return graphc.silu(x) if alpha == 1 else graphc.mul(x, graphc.sigmoid(graphc.mul(x, alpha)))


@rule("Softmax", "LogSoftmax", "Hardmax")
def softmax(call: OnnxCall) -> Value:
    """Import Softmax, LogSoftmax or Hardmax; before opset 13 over all axes from `axis`."""
    x = call.value(0)
    functions = {"Softmax": graphc.softmax, "LogSoftmax": graphc.log_softmax, "Hardmax": _hardmax}
    function = functions[call.operator]
    if call.attribute(WRITTEN_FOR, call.opset) >= 13:
        return function(x, call.attribute("axis", -1))
    axis = call.attribute("axis", 1) % max(x.type.rank, 1)
    rows = graphc.reshape(x, (math.prod(x.shape[:axis]), -1))
    return graphc.reshape(function(rows, 1), x.shape)


def _hardmax(x: Value, axis: int) -> Value:
    """Return 1 at the first maximum along an axis, else 0."""
    axis %= x.type.rank
    place = graphc.argmax(x, axis)
    codes = graphc.one_hot(place, x.shape[axis], x.type.dtype)
    order = list(range(x.type.rank - 1))
    order.insert(axis, x.type.rank - 1)
    return graphc.transpose(codes, order)


@rule("Dropout")
def dropout(call: OnnxCall) -> Sequence[Operand | None]:
    """Import Dropout: identity in inference, random masks in a training program."""
    x = call.value(0)
    rate = float(call.number(1, 0.5)) if call.has(1) else call.attribute("ratio", 0.5)
    is_drawn = call.has(2) and bool(call.number(2)) and rate
    if is_drawn and call.wants(1):
        raise UnsupportedError("the dropout mask is not supported as an output")
    everywhere = filled("", x.shape, True, np.dtype(bool)) if call.wants(1) else None
    return (x if rate == 0 else graphc.dropout(x, rate)), everywhere
