"""Pools."""

from __future__ import annotations

from collections.abc import Sequence

import graphc
from graphc.ir.graph import Value
from graphc.onnx.calls import Call, UnsupportedError
from graphc.onnx.rules import rule
from graphc.onnx.rules.windows import window_of

LARGEST = {1: graphc.max_pool1d, 2: graphc.max_pool2d, 3: graphc.max_pool3d}
AVERAGE = {1: graphc.average_pool1d, 2: graphc.average_pool2d, 3: graphc.average_pool3d}


@rule("MaxPool")
def max_pool(call: Call) -> Sequence[Value | None]:
    """The largest element of each window."""
    if call.wants(1):
        raise UnsupportedError("the places of the largest elements are not an output here")
    x = call.value(0)
    frame = window_of(call, x.shape[2:], call.required("kernel_shape"))
    y = LARGEST[x.type.rank - 2](
        x,
        frame.size,
        frame.stride,
        frame.padding,
        frame.dilation,
        bool(call.attribute("ceil_mode", 0)),
    )
    return (y, None)


@rule("AveragePool")
def average_pool(call: Call) -> Value:
    """The mean of each window, of the elements inside unless padding counts."""
    x = call.value(0)
    frame = window_of(call, x.shape[2:], call.required("kernel_shape"))
    return AVERAGE[x.type.rank - 2](
        x,
        frame.size,
        frame.stride,
        frame.padding,
        frame.dilation,
        bool(call.attribute("ceil_mode", 0)),
        bool(call.attribute("count_include_pad", 0)),
    )


@rule("LpPool")
def lp_pool(call: Call) -> Value:
    """A norm of each window."""
    x = call.value(0)
    frame = window_of(call, x.shape[2:], call.required("kernel_shape"))
    is_ceil = bool(call.attribute("ceil_mode", 0))
    order = float(call.attribute("p", 2))
    return graphc.lp_pool(
        x, order, frame.size, frame.stride, frame.padding, frame.dilation, is_ceil
    )


def _places(x: Value) -> list[int]:
    """The axes behind the channels."""
    if x.type.rank < 3:
        raise UnsupportedError(f"a global pool is over axes behind the channels, got {x.type}")
    return list(range(2, x.type.rank))


@rule("GlobalAveragePool")
def global_average_pool(call: Call) -> Value:
    """The mean of each channel."""
    x = call.value(0)
    return graphc.mean(x, _places(x), True)


@rule("GlobalMaxPool")
def global_max_pool(call: Call) -> Value:
    """The largest element of each channel."""
    x = call.value(0)
    return graphc.max(x, _places(x), True)
