"""Import of ONNX's optimizer operators, which map tensors to their updated values."""

from __future__ import annotations

from collections.abc import Sequence

import graphc
from graphc.ir.graph import Value
from graphc.ir.types import DType
from graphc.onnx.calls import OnnxCall, rule

DOMAIN = "ai.onnx.preview.training"


def _groups(call: OnnxCall, kinds: int) -> list[tuple[Value, ...]]:
    """Group the operands of an optimizer by tensor: value, gradient and moments.

    ONNX lists all values first, then all gradients, then all moments.
    """
    values = call.values[2:]
    count = len(values) // kinds
    return [tuple(values[i + kind * count] for kind in range(kinds)) for i in range(count)]


def _rate(call: OnnxCall) -> Value:
    """Return the learning rate of an optimizer node."""
    return call.value(0)


def _regularized(call: OnnxCall, gradient: Value, x: Value) -> Value:
    return graphc.add(gradient, graphc.mul(x, call.attribute("norm_coefficient", 0.0)))


def _by_kind(updated: Sequence[tuple[Value, ...]]) -> list[Value]:
    return [value for kind in zip(*updated, strict=True) for value in kind]


def _steps(call: OnnxCall, dtype: DType) -> Value:
    return graphc.cast(call.value(1), dtype)


@rule("Adagrad", domain=DOMAIN)
def adagrad(call: OnnxCall) -> Sequence[Value]:
    """Import Adagrad (Duchi et al., 2011)."""
    epsilon, updated = call.attribute("epsilon", 0.0), []
    for x, gradient, squares in _groups(call, 3):
        decay = graphc.mul(_steps(call, x.type.dtype), call.attribute("decay_factor", 0.0))
        rate = graphc.div(_rate(call), graphc.add(decay, 1.0))
        g = _regularized(call, gradient, x)
        total = graphc.add(squares, graphc.mul(g, g))
        step = graphc.div(graphc.mul(rate, g), graphc.add(graphc.sqrt(total), epsilon))
        updated.append((graphc.sub(x, step), total))
    return _by_kind(updated)


@rule("Momentum", domain=DOMAIN)
def momentum(call: OnnxCall) -> Sequence[Value]:
    """Import plain or Nesterov momentum; at the first step, the gradient has weight 1."""
    alpha, beta = call.required("alpha"), call.required("beta")
    is_nesterov, updated = call.required("mode") == "nesterov", []
    for x, gradient, moment in _groups(call, 3):
        g = _regularized(call, gradient, x)
        begun = graphc.greater(call.value(1), 0)
        dtype = x.type.dtype
        weight = graphc.where(begun, graphc.full((), beta, dtype), graphc.full((), 1.0, dtype))
        new = graphc.add(graphc.mul(moment, alpha), graphc.mul(g, weight))
        step = graphc.add(g, graphc.mul(new, alpha)) if is_nesterov else new
        updated.append((graphc.sub(x, graphc.mul(_rate(call), step)), new))
    return _by_kind(updated)


@rule("Adam", domain=DOMAIN)
def adam(call: OnnxCall) -> Sequence[Value]:
    """Import Adam (Kingma and Ba, 2014), without bias correction at step 0."""
    alpha, beta = call.attribute("alpha", 0.9), call.attribute("beta", 0.999)
    epsilon, after = call.attribute("epsilon", 0.0), call.attribute("norm_coefficient_post", 0.0)
    updated = []
    for x, gradient, first, second in _groups(call, 4):
        g = _regularized(call, gradient, x)
        v = graphc.add(graphc.mul(first, alpha), graphc.mul(g, 1 - alpha))
        h = graphc.add(graphc.mul(second, beta), graphc.mul(graphc.mul(g, g), 1 - beta))
        rate = _corrected(call, alpha, beta, x.type.dtype)
        step = graphc.div(graphc.mul(rate, v), graphc.add(graphc.sqrt(h), epsilon))
        updated.append((graphc.mul(graphc.sub(x, step), 1 - after), v, h))
    return _by_kind(updated)


def _corrected(call: OnnxCall, alpha: float, beta: float, dtype: DType) -> Value:
    steps, rate = _steps(call, dtype), _rate(call)
    has_begun = graphc.greater(steps, 0.0)
    counted = graphc.where(has_begun, steps, 1.0)  # avoids division by 0 at step 0
    first, second = (
        graphc.sub(1.0, graphc.power(graphc.full((), base, dtype), counted))
        for base in (alpha, beta)
    )
    factor = graphc.div(graphc.sqrt(second), first)
    return graphc.where(has_begun, graphc.mul(rate, factor), rate)
