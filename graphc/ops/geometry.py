"""The geometry of convolutions and windows: shapes, strides, padding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from graphc.ir.types import TensorType

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Conv2dAttributes:
    """Window geometry: (rows, columns) each; padding is zeros on both sides."""

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def output_extent(self, axis: int, extent: int, kernel: int) -> int:
        """Windows along an axis."""
        reach = self.dilation[axis] * (kernel - 1) + 1
        return (extent + 2 * self.padding[axis] - reach) // self.stride[axis] + 1


class Window(NamedTuple):
    """One kernel position on one axis: windows [first, last) read start, start + step, ..."""

    first: int
    last: int
    start: int
    stop: int
    step: int

    def outer(self) -> slice:
        """Which windows."""
        return slice(self.first, self.last)

    def inner(self) -> slice:
        """Which input elements they read."""
        return slice(self.start, self.stop, self.step)


def window(
    position: int, windows: range, extent: int, stride: int, padding: int, dilation: int
) -> Window:
    """The windows of a range whose kernel `position` falls inside the input, relative to its start.

    `extent` is the input's; window i reads the input at i·stride + position·dilation - padding.
    """
    shift = position * dilation - padding
    first = max(windows.start, math.ceil(-shift / stride))
    last = min(windows.stop, (extent - 1 - shift) // stride + 1)
    last = max(first, last)
    start = first * stride + shift
    stop = start + (last - first - 1) * stride + 1 if last > first else start
    return Window(first - windows.start, last - windows.start, start, stop, stride)


@dataclass(frozen=True, slots=True)
class Geometry:
    """Shapes of a convolution x * w = y."""

    attributes: Conv2dAttributes
    x: tuple[int, int, int, int]
    w: tuple[int, int, int, int]
    y: tuple[int, int, int, int]
    itemsize: int

    @property
    def depth(self) -> int:
        """Products summed for one output element."""
        return self.w[1] * self.w[2] * self.w[3]

    @property
    def is_pointwise(self) -> bool:
        """Whether the input is its own unfolding."""
        return (
            self.w[2:] == (1, 1)
            and self.attributes.stride == (1, 1)
            and (self.attributes.padding == (0, 0))
        )


def geometry_of(attributes: Any, x: TensorType, w: TensorType, y: TensorType) -> Geometry:
    """The geometry of a convolution from the types of its three tensors."""
    plain = Conv2dAttributes(
        attributes.stride, attributes.padding, attributes.dilation, attributes.groups
    )
    itemsize = max(4, x.dtype.itemsize)  # 16-bit floats are unfolded as float32
    return Geometry(plain, _four(x), _four(w), _four(y), itemsize)


def _four(type: TensorType) -> tuple[int, int, int, int]:
    a, b, c, d = type.shape
    return a, b, c, d
