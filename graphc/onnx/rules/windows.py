"""Windows of convolutions and pools: ONNX's paddings, strides and dilations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphc.importing.calls import UnsupportedError
from graphc.onnx.calls import OnnxCall

AUTO = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True)
class Window:
    """The window of a convolution or pool, by axis; `padding` is (before, after)."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]


def window_of(call: OnnxCall, extents: Sequence[int], size: Sequence[int]) -> Window:
    """Return the window of a convolution or pool over maps of these extents."""
    axes = len(extents)
    stride = _numbers(call, "strides", axes)
    dilation = _numbers(call, "dilations", axes)
    auto = call.choice("auto_pad", "NOTSET", AUTO)
    if auto.startswith("SAME"):
        pads = [
            _same(n, s, d * (k - 1) + 1, auto == "SAME_UPPER")
            for n, k, s, d in zip(extents, size, stride, dilation, strict=True)
        ]
    else:
        given = call.attribute("pads", [0] * 2 * axes) if auto == "NOTSET" else [0] * 2 * axes
        if len(given) != 2 * axes:
            raise UnsupportedError(f"pads must have {2 * axes} numbers, got {given}")
        pads = list(zip(given[:axes], given[axes:], strict=True))
    return Window(tuple(size), tuple(stride), tuple(dilation), tuple(pads))


def _numbers(call: OnnxCall, name: str, axes: int) -> list[int]:
    given = call.attribute(name, [1] * axes)
    if len(given) != axes:
        raise UnsupportedError(f"{name} must have {axes} numbers, got {given}")
    return list(given)


def _same(extent: int, stride: int, reach: int, is_upper: bool) -> tuple[int, int]:
    """Return the padding (before, after) of an axis that gives ⌈extent / stride⌉ windows."""
    total = max((-(-extent // stride) - 1) * stride + reach - extent, 0)
    less, more = total // 2, total - total // 2
    return (less, more) if is_upper else (more, less)
