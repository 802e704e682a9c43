"""Sliding windows: the taps of a position along an axis, and loops over them.

In the forward pass, tap k of a window reads the input at window · stride + k · dilation - padding.
In the gradient, window (element + padding - k · dilation) / stride reads an element of the input at
tap k, if that is an integer. In both cases, taps form an arithmetic progression, and so do the
positions that they read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from graphc.codegen.llvm.elements import NumberReader
from graphc.codegen.llvm.lanes import Builder, IrValue, index, loop
from graphc.codegen.llvm.places import least
from graphc.ir.graph import Node

NUMBERS = 7
"""The number of kernel arguments that describe the windows along an axis."""


def window_numbers(node: Node, axis: int, extent: int) -> tuple[int, ...]:
    """Return the numbers of the windows along an axis of maps, which read `extent` elements or
    windows."""
    a = node.attributes
    stride, dilation = a.stride[axis], a.dilation[axis]
    common = math.gcd(stride, dilation)
    period, step = stride // common, dilation // common
    return (a.window[axis], stride, a.padding[axis], dilation, extent, period, step)


@dataclass(frozen=True, slots=True)
class Taps:
    """The taps of a position along an axis: their `count`, and the position that the first one
    reads."""

    count: IrValue
    tap: IrValue
    tap_step: IrValue
    read: IrValue
    read_step: IrValue


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows along one axis, as numbers of a kernel."""

    builder: Builder
    back: bool
    size: IrValue
    stride: IrValue
    padding: IrValue
    dilation: IrValue
    extent: IrValue
    period: IrValue
    step: IrValue

    @classmethod
    def given(cls, builder: Builder, given: NumberReader, back: bool, stride: int) -> Windows:
        """Read windows from the next numbers.

        A stride other than 0 is known at compile time, and then there is no dilation, which avoids
        divisions.
        """
        found = cls(builder, back, *given.some(NUMBERS))
        if not stride:
            return found
        apart, one = index(stride), index(1)
        return replace(found, stride=apart, dilation=one, period=apart, step=one)

    def taps(self, place: IrValue) -> Taps:
        """Return the taps of a position of the output."""
        return self._back(place) if self.back else self._forward(place)

    def _forward(self, place: IrValue) -> Taps:
        b = self.builder
        start = b.sub(b.mul(place, self.stride), self.padding)
        first = self._ceiled(b.neg(start), self.dilation)
        end = least(b, self.size, self._ceiled(b.sub(self.extent, start), self.dilation))
        read = b.add(start, b.mul(first, self.dilation))
        return Taps(b.sub(end, first), first, index(1), read, self.dilation)

    def _back(self, place: IrValue) -> Taps:
        b = self.builder
        reach = b.add(place, self.padding)
        beyond = b.sub(reach, b.mul(b.sub(self.extent, index(1)), self.stride))
        first = self.first_whole(reach, self._ceiled(beyond, self.dilation))
        last = least(b, b.sub(self.size, index(1)), b.sdiv(reach, self.dilation))
        run = b.add(b.sdiv(b.sub(last, first), self.period), index(1))
        count = b.select(b.icmp_signed("<", last, first), index(0), run)
        read = b.sdiv(b.sub(reach, b.mul(first, self.dilation)), self.stride)
        return Taps(count, first, self.period, read, b.neg(self.step))

    def first_whole(self, reach: IrValue, first: IrValue) -> IrValue:
        """Return the first tap, from `first` on, for which reach - tap · dilation is a multiple of
        the stride.

        Returns the window's size if there is none within a period.
        """
        b = self.builder
        end = b.add(first, self.period)

        def look(tap: IrValue, found: list[IrValue]) -> Sequence[IrValue]:
            rest = b.srem(b.sub(reach, b.mul(tap, self.dilation)), self.stride)
            earlier = least(b, found[0], tap)
            return (b.select(b.icmp_signed("==", rest, index(0)), earlier, found[0]),)

        return loop(b, first, end, 1, (self.size,), look)[0]

    def _ceiled(self, number: IrValue, divisor: IrValue) -> IrValue:
        """Return the least integer that is not below number / divisor, and at least 0."""
        b = self.builder
        raised = b.sdiv(b.add(number, b.sub(divisor, index(1))), divisor)
        return b.select(b.icmp_signed("<", number, index(0)), index(0), raised)


Carried = list[IrValue]


def over_taps(
    builder: Builder,
    taps: Taps,
    carried: Carried,
    body: Callable[[IrValue, IrValue, Carried], Sequence[IrValue]],
) -> Carried:
    """Write a loop over taps in ascending order; `body` gets a tap's index and the position it
    reads."""
    b = builder

    def one(number: IrValue, so_far: Carried) -> Sequence[IrValue]:
        tap = b.add(taps.tap, b.mul(number, taps.tap_step))
        read = b.add(taps.read, b.mul(number, taps.read_step))
        return body(tap, read, so_far)

    return loop(b, index(0), taps.count, 1, carried, one)
