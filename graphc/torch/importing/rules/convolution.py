"""Convolutions and their transposes."""

from __future__ import annotations

import graphc
from graphc.importing.calls import UnsupportedError
from graphc.importing.windows import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS
from graphc.ir.graph import Value
from graphc.torch.importing.calls import TorchCall, numbers_of, rule


@rule("conv1d", "conv2d", "conv3d")
def conv(call: TorchCall) -> Value:
    """Return a convolution over one to three axes, of a batch or of a single map."""
    return _convolved(call, False)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(call: TorchCall) -> Value:
    """Return the transpose of a convolution."""
    return _convolved(call, True)


@rule("convolution")
def convolution(call: TorchCall) -> Value:
    """Return a convolution or its transpose."""
    return _convolved(call, bool(call["transposed"]))


def _convolved(call: TorchCall, is_transposed: bool) -> Value:
    x, weight = call.value("input"), call.value("weight")
    axes = weight.type.rank - 2
    if axes not in CONVOLUTIONS:
        raise UnsupportedError(f"convolutions must have one to three spatial axes, got {x.type}")
    is_single = x.type.rank == axes + 1
    maps = graphc.reshape(x, (1, *x.shape)) if is_single else x
    bias = call.optional("bias")
    dilation = numbers_of(call["dilation"], axes)
    arguments: dict[str, object] = {
        "weight": weight,
        "bias": False if bias is None else bias,
        "stride": numbers_of(call["stride"], axes),
        "dilation": dilation,
        "groups": int(call["groups"]),
    }
    if is_transposed:
        padding = numbers_of(call["padding"], axes)
        output_padding = numbers_of(call["output_padding"], axes)
        y = _transposed(maps, arguments, padding, output_padding)
    else:
        around = _padding(call, weight.shape[2:], dilation)
        y = CONVOLUTIONS[axes](maps, padding=around, **arguments)
    return graphc.reshape(y, y.shape[1:]) if is_single else y


def _padding(
    call: TorchCall, window: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """Return the padding before and after each axis; "same" adds an odd element after it."""
    given = call["padding"]
    if given == "valid":
        return ((0, 0),) * len(window)
    if given == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, window, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    return tuple((n, n) for n in numbers_of(given, len(window)))


def _transposed(
    x: Value, arguments: dict[str, object], padding: tuple[int, ...], extra: tuple[int, ...]
) -> Value:
    axes = len(padding)
    return TRANSPOSED_CONVOLUTIONS[axes](x, padding=padding, output_padding=extra, **arguments)
