"""The taps of a position along an axis of sliding windows, and loops over them.

Taps form an arithmetic progression, and so do the positions that they read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graphc.codegen.llvm.lanes import Builder, IrValue, index, loop
from graphc.codegen.llvm.places import least


@dataclass(frozen=True, slots=True)
class Taps:
    """The taps of a position along an axis: their count, the first tap and the position that it
    reads. Each further tap adds `tap_step` to the tap and `read_step` to the position read."""

    count: IrValue
    tap: IrValue
    tap_step: IrValue
    read: IrValue
    read_step: IrValue


@dataclass(frozen=True, slots=True)
class Axis:
    """The windows along one axis. `extent` is the number of elements that are read or, with `back`,
    of windows."""

    builder: Builder
    back: bool
    size: int
    stride: int
    padding: int
    dilation: int
    extent: IrValue

    def taps(self, place: IrValue, inside: bool) -> Taps:
        """Return the taps of an output position; if `inside`, only the taps that read no
        padding."""
        b, first, end = self.builder, index(0), index(self.size)
        if not self.back:
            start = b.sub(b.mul(place, index(self.stride)), index(self.padding))
            if inside:
                first = raised_ratio(b, b.neg(start), self.dilation)
                beyond = raised_ratio(b, b.sub(self.extent, start), self.dilation)
                end = least(b, end, beyond)
            read = b.add(start, b.mul(first, index(self.dilation)))
            return Taps(b.sub(end, first), first, index(1), read, index(self.dilation))
        common = math.gcd(self.stride, self.dilation)
        period, step = self.stride // common, self.dilation // common
        reach = b.add(place, index(self.padding))
        # The window's number is an integer for every `period`th tap if `common` divides the rest.
        rest = b.srem(reach, index(self.stride))
        steps = b.mul(b.sdiv(rest, index(common)), index(pow(step, -1, period)))
        first = b.srem(steps, index(period))
        is_met = b.icmp_signed("==", b.srem(rest, index(common)), index(0))
        end = b.select(is_met, end, index(0))
        if inside:
            farthest = b.mul(b.sub(self.extent, index(1)), index(self.stride))
            low = raised_ratio(b, b.sub(reach, farthest), self.dilation)
            skipped = raised_ratio(b, b.sub(low, first), period)
            first = b.add(first, b.mul(skipped, index(period)))
            end = least(b, end, b.add(b.sdiv(reach, index(self.dilation)), index(1)))
        read = b.sdiv(b.sub(reach, b.mul(first, index(self.dilation))), index(self.stride))
        count = raised_ratio(b, b.sub(end, first), period)
        return Taps(count, first, index(period), read, index(-step))


def raised_ratio(builder: Builder, number: IrValue, divisor: int) -> IrValue:
    """Return number / divisor, rounded up to an integer, and at least 0."""
    b = builder
    raised = b.sdiv(b.add(number, index(divisor - 1)), index(divisor))
    return b.select(b.icmp_signed("<", number, index(0)), index(0), raised)


def over_taps(
    builder: Builder,
    taps: Taps,
    carried: list[IrValue],
    body: Callable[[IrValue, IrValue, list[IrValue]], Sequence[IrValue]],
) -> list[IrValue]:
    """Write a loop over taps in ascending order; `body` gets a tap's index and the position it
    reads."""
    b = builder

    def one(number: IrValue, so_far: list[IrValue]) -> Sequence[IrValue]:
        tap = b.add(taps.tap, b.mul(number, taps.tap_step))
        read = b.add(taps.read, b.mul(number, taps.read_step))
        return body(tap, read, so_far)

    return loop(b, index(0), taps.count, 1, carried, one)
