"""Import of reductions over axes, argmax and argmin, cumulative sums and top-k."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import graphc
from graphc.importing.weights import empty
from graphc.ir.graph import Value
from graphc.ir.types import bool_, int64, normalize_axis
from graphc.onnx.calls import OnnxCall, Operand, rule
from graphc.onnx.rules.integers import through_floats

Reducer = Callable[[Value, list[int] | None, bool], Value]


def reduced(call: OnnxCall, function: Reducer, x: Value | None = None) -> Value:
    """Apply a reduction over the axes of a node.

    Without axes, it reduces over all axes, or over none if `noop_with_empty_axes` is set.
    """
    x = call.value(0) if x is None else x
    axes = call.axes()
    if not axes and call.attribute("noop_with_empty_axes", 0):
        return x
    return function(x, axes or None, bool(call.attribute("keepdims", 1)))


@rule("ReduceSum")
def reduce_sum(call: OnnxCall) -> Value:
    """Import ReduceSum."""
    return reduced(call, graphc.sum)


@rule("ReduceMean")
def reduce_mean(call: OnnxCall) -> Value:
    """Import ReduceMean; integer means are truncated towards zero."""
    x = call.value(0)
    if x.type.dtype.kind == "float":
        return reduced(call, graphc.mean, x)
    return through_floats(lambda y: reduced(call, graphc.mean, y), x)


@rule("ReduceMax", "ReduceMin")
def reduce_extreme(call: OnnxCall) -> Value:
    """Import ReduceMax or ReduceMin, which are any and all for bools."""
    x = call.value(0)
    function = graphc.max if call.operator == "ReduceMax" else graphc.min
    if x.type.dtype == bool_:
        return graphc.cast(reduced(call, function, graphc.cast(x, "uint8")), bool_)
    return reduced(call, function, x)


@rule("ReduceProd")
def reduce_prod(call: OnnxCall) -> Value:
    """Import ReduceProd."""
    return reduced(call, graphc.prod)


@rule("ReduceSumSquare")
def reduce_sum_square(call: OnnxCall) -> Value:
    """Import ReduceSumSquare."""
    x = call.value(0)
    return reduced(call, graphc.sum, graphc.mul(x, x))


@rule("ReduceL1", "ReduceL2")
def reduce_norm(call: OnnxCall) -> Value:
    """Import ReduceL1 or ReduceL2."""
    order = int(call.operator[-1])
    return _in_floats(
        call, lambda x: reduced(call, lambda y, axes, keep: graphc.norm(y, order, axes, keep), x)
    )


@rule("ReduceLogSum")
def reduce_log_sum(call: OnnxCall) -> Value:
    """Import ReduceLogSum: the logarithm of a sum."""
    return _in_floats(call, lambda x: _log_of_sum(call, x))


def _log_of_sum(call: OnnxCall, x: Value) -> Value:
    """Return the logarithm of a sum, in float32 for 16-bit floats, whose sums may be infinite."""
    wide = graphc.cast(x, "float32") if x.type.dtype.itemsize == 2 else x
    return graphc.cast(graphc.log(reduced(call, graphc.sum, wide)), x.type.dtype)


@rule("ReduceLogSumExp")
def reduce_log_sum_exp(call: OnnxCall) -> Value:
    """Import ReduceLogSumExp, without overflow."""
    return _in_floats(call, lambda x: reduced(call, graphc.logsumexp, x))


def _in_floats(call: OnnxCall, function: Callable[[Value], Value]) -> Value:
    x = call.value(0)
    return function(x) if x.type.dtype.kind == "float" else through_floats(function, x)


@rule("ArgMax", "ArgMin")
def place(call: OnnxCall) -> Value:
    """Import ArgMax or ArgMin: the first or last index of the extreme along an axis."""
    function = graphc.argmax if call.operator == "ArgMax" else graphc.argmin
    return function(
        call.value(0),
        call.attribute("axis", 0),
        bool(call.attribute("keepdims", 1)),
        bool(call.attribute("select_last_index", 0)),
    )


@rule("CumSum")
def cumsum(call: OnnxCall) -> Value:
    """Import CumSum."""
    return graphc.cumsum(
        call.value(0),
        int(call.number(1)),
        bool(call.attribute("exclusive", 0)),
        bool(call.attribute("reverse", 0)),
    )


@rule("CumProd")
def cumprod(call: OnnxCall) -> Value:
    """Import CumProd, with one multiplication per element of the axis."""
    x = call.value(0)
    axis = normalize_axis(int(call.number(1)), x.type.rank, "CumProd")
    parts = list(graphc.split(x, x.shape[axis], axis))
    if call.attribute("reverse", 0):
        parts.reverse()
    one = graphc.full(parts[0].shape, 1, x.type.dtype)
    shown, total = [], one
    for part in parts:
        following = part if total is one else graphc.mul(total, part)
        shown.append(total if call.attribute("exclusive", 0) else following)
        total = following
    if call.attribute("reverse", 0):
        shown.reverse()
    return graphc.concat(shown, axis)


@rule("TopK")
def top_k(call: OnnxCall) -> Sequence[Operand]:
    """Import TopK: the largest or smallest elements along an axis, and their indices."""
    x, axis = call.value(0), call.attribute("axis", -1)
    k = int(call.number(1)) if call.has(1) else call.required("k")
    if k == 0:
        shape = list(x.shape)
        shape[normalize_axis(axis, x.type.rank, "TopK")] = 0
        return empty(shape, x.type.dtype), empty(shape, int64)
    return graphc.top_k(x, k, axis, bool(call.attribute("largest", 1)))
