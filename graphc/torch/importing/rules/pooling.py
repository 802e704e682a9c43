"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

import graphc
from graphc.importing.calls import UnsupportedError, check_numbers
from graphc.importing.windows import AVERAGE_POOLS, MAX_POOLS
from graphc.ir.graph import Value
from graphc.ops.pool import MaxPooling
from graphc.torch.importing.calls import TorchCall, numbers_of, rule


def _axes(call: TorchCall) -> int:
    """Return the number of axes in the operator's name."""
    return next(int(sign) for sign in call.operator if sign.isdigit())


def _batched(call: TorchCall, axes: int) -> Value:
    """Return x with a batch axis, which the operand may omit."""
    x = call.value("self")
    return graphc.reshape(x, (1, *x.shape)) if x.type.rank == axes + 1 else x


def _frame(call: TorchCall, axes: int) -> tuple[tuple[int, ...], ...]:
    """Return window, stride and padding; the stride defaults to the window."""
    window = numbers_of(call["kernel_size"], axes)
    stride = call.get("stride") or window
    return window, numbers_of(stride, axes), numbers_of(call["padding"], axes)


@rule(
    "max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices",
    "max_pool1d_with_indices",
)  # fmt: skip
def max_pool(call: TorchCall) -> Value | Sequence[Value | None]:
    """Return the maximum of each window, and its index in the map."""
    axes = _axes(call)
    x = _batched(call, axes)
    window, stride, padding = _frame(call, axes)
    dilation, is_ceil = numbers_of(call["dilation"], axes), bool(call["ceil_mode"])
    frame = (window, stride, padding, dilation, is_ceil)
    is_asked = call.operator.endswith("_with_indices")
    if is_asked and call.wants(1):
        y, places = graphc.max_pool_with_indices(x, *frame)
        return graphc.reshape(y, call.shape), graphc.reshape(places, call.shape)
    y = graphc.reshape(_largest(x, axes, frame), call.shape)
    return (y, None) if is_asked else y


def _largest(x: Value, axes: int, frame: tuple[object, ...]) -> Value:
    window, _, padding, *_ = frame
    assert isinstance(window, tuple)
    if window == x.shape[2:] and not any(numbers_of(padding, axes)):
        return graphc.max(x, list(range(2, x.type.rank)), True)
    if math.prod(window) > MaxPooling.most_places:
        raise UnsupportedError(
            f"a window must have at most {MaxPooling.most_places} elements, got {window}"
        )
    return MAX_POOLS[axes](x, *frame)


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def average_pool(call: TorchCall) -> Value:
    """Return the mean of each window, or its sum divided by a number."""
    axes = _axes(call)
    window, stride, padding = _frame(call, axes)
    divisor = call.get("divisor_override")
    counts = bool(call["count_include_pad"]) or divisor is not None
    is_ceil = bool(call["ceil_mode"])
    if divisor is not None and is_ceil:
        raise UnsupportedError("divisor_override together with ceil_mode is not supported")
    y = AVERAGE_POOLS[axes](_batched(call, axes), window, stride, padding, 1, is_ceil, counts)
    if divisor is not None:
        y = graphc.mul(y, math.prod(window) / divisor)
    return graphc.reshape(y, call.shape)


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d")
def adaptive_average(call: TorchCall) -> Value:
    """Return means over parts that divide x as equally as possible into given extents."""
    axes = _axes(call)
    x, extents = _batched(call, axes), call.shape[-axes:]
    if all(n == 1 for n in extents):
        y = graphc.mean(x, list(range(2, x.type.rank)), True)
    elif axes == 2:
        y = graphc.adaptive_average_pool2d(x, (extents[0], extents[1]))
    elif (window := _equal_parts(x, extents)) is not None:
        y = AVERAGE_POOLS[axes](x, window, window)
    else:
        y = _last_two_averaged(x, (1, *extents)[-2:])
        if axes == 3:
            maps = graphc.reshape(y, (*x.shape[:3], math.prod(extents[1:])))
            y = _last_two_averaged(maps, (extents[0], maps.shape[3]))
    return graphc.reshape(y, call.shape)


def _last_two_averaged(x: Value, extents: tuple[int, ...]) -> Value:
    """Return means over parts of the last two axes; all others are as channels."""
    rows, columns = (1, *x.shape[2:])[-2:]
    maps = graphc.reshape(x, (x.shape[0], -1, rows, columns))
    return graphc.adaptive_average_pool2d(maps, (extents[0], extents[1]))


def _equal_parts(x: Value, extents: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the extents of the parts of x, or None if they are not equal."""
    if any(n % m for n, m in zip(x.shape[2:], extents, strict=True)):
        return None
    return tuple(n // m for n, m in zip(x.shape[2:], extents, strict=True))


@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_largest(call: TorchCall) -> Sequence[Value | None]:
    """Return the maxima of parts, and their indices in the map."""
    axes = _axes(call)
    x, extents = _batched(call, axes), call.shape[-axes:]
    window = _equal_parts(x, extents)
    if window is None:
        return [graphc.reshape(y, call.shape) for y in _largest_of_parts(x, extents)]
    if call.wants(1):
        y, places = graphc.max_pool_with_indices(x, window, window)
        return graphc.reshape(y, call.shape), graphc.reshape(places, call.shape)
    y = _largest(x, axes, (window, window, (0,) * axes, (1,) * axes, False))
    return graphc.reshape(y, call.shape), None


def _largest_of_parts(x: Value, extents: tuple[int, ...]) -> tuple[Value, Value]:
    """Return the maxima of adaptive pooling, and the flat index of the first of each in its map.

    Windows have different extents; those that are smaller are padded with their last element.
    """
    places = np.zeros((1, 1), np.int64)
    for n, m in zip(x.shape[2:], extents, strict=True):
        starts, stops = np.arange(m) * n // m, -(-np.arange(1, m + 1) * n // m)
        inside = np.arange((stops - starts).max())
        part = np.minimum(starts[:, None] + inside, stops[:, None] - 1)
        places = (places[:, None, :, None] * n + part[:, None, :]).reshape(
            len(places) * m, places.shape[1] * len(inside)
        )
    check_numbers(*places.shape)
    flat = graphc.reshape(x, (*x.shape[:2], -1))
    numbers = graphc.constant(places)
    windows = graphc.take(flat, numbers, 2)
    first = graphc.argmax(windows, 3, True)
    shown = graphc.broadcast_to(numbers, windows.shape)
    return graphc.gather_elements(windows, first, 3), graphc.gather_elements(shown, first, 3)
