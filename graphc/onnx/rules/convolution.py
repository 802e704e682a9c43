"""Import of convolutions and transposed convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import graphc
from graphc.importing.calls import UnsupportedError
from graphc.importing.windows import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS
from graphc.ir.graph import Value
from graphc.onnx.calls import OnnxCall, rule
from graphc.onnx.rules.windows import AUTO, window_of


@rule("Conv")
def conv(call: OnnxCall) -> Value:
    """Import a convolution over one to three axes."""
    x, w = call.value(0), call.value(1)
    frame = window_of(call, x.shape[2:], w.shape[2:])
    return CONVOLUTIONS[_axes(x)](
        x,
        weight=w,
        bias=call.value(2) if call.has(2) else False,
        stride=frame.stride,
        padding=frame.padding,
        dilation=frame.dilation,
        groups=call.attribute("group", 1),
    )


def _axes(x: Value) -> int:
    if x.type.rank not in (3, 4, 5):
        raise UnsupportedError(f"convolutions must have one to three spatial axes, got {x.type}")
    return x.type.rank - 2


@rule("ConvTranspose")
def conv_transpose(call: OnnxCall) -> Value:
    """Import a transposed convolution; padding crops the result, negative padding extends it."""
    x, w = call.value(0), call.value(1)
    axes = _axes(x)
    frame = window_of(call, x.shape[2:], w.shape[2:])
    extra = call.attribute("output_padding", [0] * axes)
    full = [
        (n - 1) * s + d * (k - 1) + 1 + e
        for n, s, d, k, e in zip(
            x.shape[2:], frame.stride, frame.dilation, w.shape[2:], extra, strict=True
        )
    ]
    cut = _transposed_padding(call, x, full, frame.stride, frame.padding)
    more = tuple((max(0, -before), max(0, -after)) for before, after in cut)
    is_wider, bias = any(map(any, more)), call.optional(2)
    y = TRANSPOSED_CONVOLUTIONS[axes](
        x,
        weight=w,
        bias=False if is_wider or bias is None else bias,
        stride=frame.stride,
        padding=tuple((max(0, before), max(0, after)) for before, after in cut),
        output_padding=tuple(extra),
        dilation=frame.dilation,
        groups=call.attribute("group", 1),
    )
    if not is_wider:
        return y
    y = graphc.pad(y, ((0, 0), (0, 0), *more))
    return y if bias is None else graphc.add(y, graphc.reshape(bias, (-1, *(1,) * axes)))


def _transposed_padding(
    call: OnnxCall,
    x: Value,
    full: Sequence[int],
    stride: Sequence[int],
    given: Sequence[tuple[int, int]],
) -> tuple[tuple[int, int], ...]:
    """Return how far to crop the full result of a transposed convolution, by axis.

    If an output shape is given, the cropping follows from it.
    """
    auto = call.choice("auto_pad", "NOTSET", AUTO)
    wanted = call.attribute("output_shape")
    if wanted is None:
        if not auto.startswith("SAME"):
            return tuple(given)
        wanted = [n * s for n, s in zip(x.shape[2:], stride, strict=True)]
    cut = [n - m for n, m in zip(full, wanted[-len(full) :], strict=True)]
    if auto == "SAME_UPPER":
        return tuple((n // 2, n - n // 2) for n in cut)
    return tuple((n - n // 2, n // 2) for n in cut)


@rule("Col2Im")
def col2im(call: OnnxCall) -> Value:
    """Import Col2Im: sum the elements of windows at each position."""
    extents, size = call.integers(1), call.integers(2)
    frame = window_of(call, extents, size)
    return graphc.col2im(
        call.value(0), extents, frame.size, frame.stride, frame.padding, frame.dilation
    )


@rule("DeformConv")
def deform_conv(call: OnnxCall) -> Value:
    """Import a deformable convolution."""
    x, w, offset = (call.value(i) for i in range(3))
    frame = window_of(call, x.shape[2:], w.shape[2:])
    return graphc.deform_conv2d(
        x,
        offset,
        w,
        call.optional(3),
        frame.stride,
        frame.padding,
        frame.dilation,
        call.attribute("group", 1),
        call.attribute("offset_group", 1),
        call.optional(4),
    )
