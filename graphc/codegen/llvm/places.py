"""Index arithmetic of kernels on 64-bit numbers."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.codegen.llvm.lanes import Builder, IrValue, index


def least(builder: Builder, a: IrValue, b: IrValue) -> IrValue:
    """Return the smaller of two numbers."""
    return builder.select(builder.icmp_signed("<", a, b), a, b)


def split(builder: Builder, number: IrValue, extents: Sequence[IrValue]) -> list[IrValue]:
    """Split a row-major number into one index per axis."""
    indices: list[IrValue] = []
    for extent in reversed(extents[1:]):
        indices.append(builder.urem(number, extent))
        number = builder.udiv(number, extent)
    return [number, *reversed(indices)] if extents else []


def advanced(
    builder: Builder, indices: Sequence[IrValue], extents: Sequence[IrValue]
) -> list[IrValue]:
    """Return the indices of the next element in row-major order."""
    found: list[IrValue] = []
    carry = index(1)
    for number, extent in zip(reversed(indices), reversed(extents), strict=True):
        raised = builder.add(number, carry)
        is_over = builder.icmp_signed("==", raised, extent)
        found.append(builder.select(is_over, index(0), raised))
        carry = builder.zext(is_over, carry.type)
    return found[::-1]


def offset_of(
    builder: Builder, start: IrValue, indices: Sequence[IrValue], strides: Sequence[IrValue]
) -> IrValue:
    """Return `start` plus the sum of index times stride over the axes with an index."""
    for number, stride in zip(indices, strides, strict=False):
        start = builder.add(start, builder.mul(number, stride))
    return start
