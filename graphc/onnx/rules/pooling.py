"""Import of pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

import graphc
from graphc.importing.calls import UnsupportedError
from graphc.importing.windows import AVERAGE_POOLS, MAX_POOLS
from graphc.ir.graph import Value
from graphc.onnx.calls import OnnxCall, rule
from graphc.onnx.rules.windows import Window, window_of
from graphc.ops.pool import MaxPooling

Entry = TypeVar("Entry")


@rule("MaxPool")
def max_pool(call: OnnxCall) -> Sequence[Value | None]:
    """Import MaxPool."""
    x = call.value(0)
    frame = window_of(call, x.shape[2:], call.required("kernel_shape"))
    is_ceil = bool(call.attribute("ceil_mode", 0))
    if call.wants(1):
        return _with_places(call, x, frame, is_ceil)
    if x.type.dtype.kind == "int":  # 8 bits, exact in float32
        y = _largest(graphc.cast(x, "float32"), frame, is_ceil)
        return (graphc.cast(y, x.type.dtype), None)
    return (_largest(x, frame, is_ceil), None)


def _with_places(call: OnnxCall, x: Value, frame: Window, is_ceil: bool) -> tuple[Value, Value]:
    """Import MaxPool with two outputs: the maxima, and their indices into the whole tensor."""
    y, places = graphc.max_pool_with_indices(
        x, frame.size, frame.stride, frame.padding, frame.dilation, is_ceil
    )
    maps = np.arange(x.shape[0] * x.shape[1]) * math.prod(x.shape[2:])
    starts = maps.reshape((*x.shape[:2], *(1,) * (x.type.rank - 2)))
    if not call.attribute("storage_order", 0):
        return y, graphc.add(places, graphc.constant(starts))
    if x.type.rank != 4:
        raise UnsupportedError("storage_order=1 is supported only for two spatial axes")
    height, width = x.shape[2:]
    row, column = graphc.floor_divide(places, width), graphc.remainder(places, width)
    turned = graphc.add(graphc.mul(column, height), row)
    return y, graphc.add(turned, graphc.constant(starts))


@rule("MaxUnpool")
def max_unpool(call: OnnxCall) -> Value:
    """Import MaxUnpool: elements at the argmax indices of a pool, zeros elsewhere."""
    x, places = call.value(0), call.value(1)
    frame = window_of(call, x.shape[2:], call.required("kernel_shape"))
    inferred = [
        (n - 1) * s - sum(pads) + k
        for n, s, k, pads in zip(x.shape[2:], frame.stride, frame.size, frame.padding, strict=True)
    ]
    wanted = call.integers(2)[2:] if call.has(2) else inferred
    counted = math.prod(inferred)  # indices refer to the pool's input
    within = graphc.remainder(graphc.cast(places, "int64"), counted)
    y = graphc.max_unpool(x, within, inferred)
    more = [(0, n - m) for n, m in zip(wanted, inferred, strict=True)]
    return graphc.pad(y, ((0, 0), (0, 0), *more)) if any(map(any, more)) else y


def _largest(x: Value, frame: Window, is_ceil: bool) -> Value:
    """Apply max pooling; a large window is split into one pool per axis."""
    axes = len(frame.size)
    if math.prod(frame.size) <= MaxPooling.most_places:
        return MAX_POOLS[axes](x, frame.size, frame.stride, frame.padding, frame.dilation, is_ceil)
    for axis in range(axes):
        x = MAX_POOLS[axes](
            x,
            _alone(frame.size, axis, 1),
            _alone(frame.stride, axis, 1),
            _alone(frame.padding, axis, (0, 0)),
            _alone(frame.dilation, axis, 1),
            is_ceil,
        )
    return x


def _alone(numbers: tuple[Entry, ...], axis: int, other: Entry) -> tuple[Entry, ...]:
    """Return `numbers` with `other` in place of every entry except that of `axis`."""
    return tuple(number if i == axis else other for i, number in enumerate(numbers))


@rule("AveragePool")
def average_pool(call: OnnxCall) -> Value:
    """Import AveragePool; padding is excluded unless `count_include_pad` is set."""
    x = call.value(0)
    frame = window_of(call, x.shape[2:], call.required("kernel_shape"))
    return AVERAGE_POOLS[x.type.rank - 2](
        x,
        frame.size,
        frame.stride,
        frame.padding,
        frame.dilation,
        bool(call.attribute("ceil_mode", 0)),
        bool(call.attribute("count_include_pad", 0)),
    )


@rule("LpPool")
def lp_pool(call: OnnxCall) -> Value:
    """Import LpPool: the p-norm of each window."""
    x = call.value(0)
    frame = window_of(call, x.shape[2:], call.required("kernel_shape"))
    is_ceil = bool(call.attribute("ceil_mode", 0))
    order = float(call.attribute("p", 2))
    return graphc.lp_pool(
        x, order, frame.size, frame.stride, frame.padding, frame.dilation, is_ceil
    )


def _places(x: Value) -> list[int]:
    """Return the numbers of the axes after the channels."""
    if x.type.rank < 3:
        raise UnsupportedError(f"a global pool needs axes after the channels, got {x.type}")
    return list(range(2, x.type.rank))


@rule("GlobalAveragePool")
def global_average_pool(call: OnnxCall) -> Value:
    """Import GlobalAveragePool."""
    x = call.value(0)
    return graphc.mean(x, _places(x), True)


@rule("GlobalLpPool")
def global_lp_pool(call: OnnxCall) -> Value:
    """Import GlobalLpPool: the p-norm of each map."""
    x = call.value(0)
    return graphc.norm(x, float(call.attribute("p", 2)), _places(x), True)


@rule("GlobalMaxPool")
def global_max_pool(call: OnnxCall) -> Value:
    """Import GlobalMaxPool."""
    x = call.value(0)
    return graphc.max(x, _places(x), True)
