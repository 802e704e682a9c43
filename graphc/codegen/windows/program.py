"""Window programs: reductions over sliding windows of maps, independent of their implementation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from graphc.codegen.node_calls import Program
from graphc.codegen.text.operands import Operand
from graphc.ops.geometry import Pair


@dataclass(frozen=True, slots=True)
class Geometry:
    """Size, stride, padding and dilation of windows, as (rows, columns); leading paddings come
    first."""

    size: Pair
    stride: Pair
    padding: tuple[int, ...]
    dilation: Pair


@dataclass(frozen=True)
class Windowed(Program):
    """A reduction, for each element of the output, over its taps in ascending order.

    A tap is an element's index in its window. Along an axis, tap k of window number w reads the
    element w · stride + k · dilation - padding. With `back`, outputs are elements and the inputs
    windows: an element reads with tap k the window (element + padding - k · dilation) / stride, if
    that is an integer. Taps that read padding are skipped.

    The first input is reduced. If there is a second, it has the selected tap of each window as a
    byte, and all other taps are skipped. A "Sum" is divided by `divisor`. A "Max" propagates NaN,
    and has a second output: the first tap with the largest element, as a byte.
    """

    op: str
    windows: Geometry
    back: bool
    combine: Literal["Sum", "Max"]
    read: tuple[int, ...]
    """The shape of the first input, (batch, channels, height, width)."""
    shape: tuple[int, ...]
    """The shape of the outputs."""
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    divisor: float = 1.0

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of inputs and outputs."""
        selected = self.read if self.back else self.shape
        return (self.read, selected)[: len(self.inputs)] + (self.shape,) * len(self.outputs)
