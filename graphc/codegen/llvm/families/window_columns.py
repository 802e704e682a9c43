"""Vectors of elements of a row that windows read: a stride apart, and partly in the padding."""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from graphc.codegen.llvm.elements import Lying
from graphc.codegen.llvm.lanes import (
    LANES,
    WORD,
    Builder,
    IrValue,
    at,
    constant,
    either,
    gather,
    index,
    lane_numbers,
    load,
    splat,
    widen,
)


@dataclass(frozen=True, slots=True)
class ColumnReader:
    """A reader of columns first, first + stride, ... of a row; columns outside of it are 0."""

    builder: Builder
    first: IrValue
    extent: IrValue
    stride: IrValue
    known_stride: int
    """1 or 2, or 0 if it is known only at run time."""

    @property
    def step(self) -> IrValue:
        """The distance in columns between adjacent lanes."""
        return index(self.known_stride) if self.known_stride else self.stride

    def stored(self, lying: Lying, row: IrValue, inner: IrValue) -> IrValue:
        """Return a vector as stored in memory."""
        return either(
            self.builder,
            self._is_inside(),
            lambda: [self._read(lying, row, inner, False)],
            lambda: [self._read(lying, row, inner, True)],
        )[0]

    def values(self, lying: Lying, row: IrValue, inner: IrValue, outside: float | None) -> IrValue:
        """Return a vector in the dtype of the arithmetic, with `outside` for columns outside of the
        row."""
        b = self.builder

        def at_edges() -> list[IrValue]:
            seen = widen(b, self._read(lying, row, inner, True), lying.dtype)
            if outside is None:
                return [seen]
            exists = self._existing(self.first, self.step)
            return [b.select(exists, seen, constant(seen.type, outside))]

        return either(
            b,
            self._is_inside(),
            lambda: [widen(b, self._read(lying, row, inner, False), lying.dtype)],
            at_edges,
        )[0]

    def _is_inside(self) -> IrValue:
        """Return a condition: all columns are in the row."""
        b = self.builder
        last = b.add(self.first, b.mul(self.step, index(LANES - 1)))
        above = b.icmp_signed(">=", self.first, index(0))
        return b.and_(above, b.icmp_signed("<", last, self.extent))

    def _existing(self, first: IrValue, step: IrValue) -> IrValue:
        """Return a mask of the columns first, first + step, ... that are in the row."""
        b = self.builder
        return b.icmp_unsigned("<", lane_numbers(b, first, step), splat(b, self.extent))

    def _read(self, lying: Lying, row: IrValue, inner: IrValue, edges: bool) -> IrValue:
        b, dtype = self.builder, lying.dtype
        if lying.step == "unit" and self.known_stride == 1:
            mask = self._existing(self.first, index(1)) if edges else None
            return load(b, at(b, row, self.first, dtype), dtype, mask)
        if lying.step == "unit" and self.known_stride == 2:
            return self._every_other(lying, row, edges)
        mask = self._existing(self.first, self.step) if edges else None
        inner = index(1) if lying.step == "unit" else inner
        base = at(b, row, b.mul(self.first, inner), dtype)
        return gather(b, base, b.mul(self.step, inner), dtype, mask)

    def _every_other(self, lying: Lying, row: IrValue, edges: bool) -> IrValue:
        """Load every other of contiguous elements; the second load starts one early, so that it
        ends at the last one."""
        b, dtype = self.builder, lying.dtype
        halves = []
        for first in (self.first, b.add(self.first, index(LANES - 1))):
            mask = self._existing(first, index(1)) if edges else None
            halves.append(load(b, at(b, row, first, dtype), dtype, mask))
        lanes = [2 * lane for lane in range(LANES // 2)]
        chosen = [*lanes, *(LANES + 1 + lane for lane in lanes)]
        return b.shuffle_vector(*halves, ir.Constant(ir.VectorType(WORD, LANES), chosen))
