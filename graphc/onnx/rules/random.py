"""Import of random numbers; they are drawn by graphc's generator."""

from __future__ import annotations

import graphc
from graphc.ir.graph import Value
from graphc.onnx.calls import OnnxCall, rule
from graphc.onnx.rules.shape import numpy_dtype


def _type(call: OnnxCall) -> tuple[tuple[int, ...], object]:
    """Return the shape and dtype of random numbers, from attributes or from an operand."""
    number = call.attribute("dtype")
    if call.has(0):
        return call.shape(0), call.dtype(0) if number is None else numpy_dtype(number)
    return tuple(call.required("shape")), numpy_dtype(1 if number is None else number)


@rule("RandomNormal", "RandomNormalLike")
def normal(call: OnnxCall) -> Value:
    """Import RandomNormal and RandomNormalLike."""
    shape, dtype = _type(call)
    return graphc.normal(shape, call.attribute("mean", 0.0), call.attribute("scale", 1.0), dtype)


@rule("RandomUniform", "RandomUniformLike")
def uniform(call: OnnxCall) -> Value:
    """Import RandomUniform and RandomUniformLike."""
    shape, dtype = _type(call)
    return graphc.uniform(shape, call.attribute("low", 0.0), call.attribute("high", 1.0), dtype)


@rule("Bernoulli")
def bernoulli(call: OnnxCall) -> Value:
    """Import Bernoulli: 1 with the probability given by the operand, else 0."""
    x = call.value(0)
    drawn = graphc.less(graphc.uniform(x.shape, dtype=x.type.dtype), x)
    number = call.attribute("dtype")
    return graphc.cast(drawn, x.type.dtype if number is None else numpy_dtype(number))
