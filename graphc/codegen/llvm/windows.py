"""Window programs as LLVM IR: vectors along channels, or along a row.

Vectors run along channels if these are contiguous, or if rows are too short for vectors. Along a
row, the lanes of a vector are positions with the same taps. In gradients, these positions are a
stride apart. Each element iterates over its taps in ascending order, so sums have a fixed order,
and no two pieces write one element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llvmlite import ir

from graphc.codegen.llvm.elements import Lying, NumberReader, whole_or_masked
from graphc.codegen.llvm.kernel import NativeCall, kernel_of
from graphc.codegen.llvm.lanes import (
    BYTE,
    LANES,
    WORD,
    Builder,
    IrValue,
    at,
    constant,
    either,
    gather,
    held,
    index,
    lane_numbers,
    loop,
    narrow,
    scatter,
    splat,
    vector,
    widen,
)
from graphc.codegen.llvm.pieces import over_rows, over_vectors, rows_of_piece
from graphc.codegen.llvm.places import least
from graphc.codegen.llvm.taps import Axis, Taps, over_taps, raised_ratio
from graphc.codegen.llvm.tile import interleaved
from graphc.codegen.text.operands import Operand
from graphc.codegen.text.scalar import arithmetic_dtype
from graphc.codegen.windows.program import Geometry, Windowed

CHANNELS, COLUMNS = 1, 3
"""The axis of maps along which vectors run."""

SHORT = 4
"""Length of rows below which vectors run along channels."""


@dataclass(frozen=True, slots=True)
class _Structure:
    """The properties on which the text of a kernel depends."""

    windows: Geometry
    back: bool
    is_max: bool
    divisor: float
    axis: int
    sources: tuple[Lying, ...]
    targets: tuple[Lying, ...]


def windows_call(program: Windowed) -> NativeCall:
    """Return the call that runs a window program."""
    n, c, h, w = program.shape
    operands = (*program.inputs, *program.outputs)
    is_last = program.outputs[0].strides[CHANNELS] == 1 and c > 1
    axis = CHANNELS if is_last or (w < SHORT <= c) else COLUMNS
    known = tuple(_lying(each, axis) for each in operands)
    count = len(program.inputs)
    structure = _Structure(
        program.windows, program.back, program.combine == "Max", program.divisor,
        axis, known[:count], known[count:],
    )  # fmt: skip
    total, inner = (n * h, w * c) if axis == CHANNELS else (n * c * h, w)
    rows = rows_of_piece(inner * max(1, math.prod(program.windows.size) // 4))
    numbers = [stride for each in operands for stride in each.strides]
    return NativeCall(
        kernel_of(program.op, structure, lambda builder: _Writer(builder, structure).write()),
        tuple(each.buffer for each in operands if each.buffer is not None),
        (*numbers, *program.shape, *program.read[2:], total, rows),
        -(-total // rows),
        sum(map(math.prod, program.shapes)),
    )


def _lying(operand: Operand, axis: int) -> Lying:
    is_unit = operand.strides[axis] == 1  # a repeated operand has stride 0
    return Lying(operand.name, operand.dtype, "unit" if is_unit else "apart", False)


@dataclass(frozen=True, slots=True)
class _Maps:
    """A view of an operand that starts at some element, with strides along its four axes."""

    builder: Builder
    lying: Lying
    base: IrValue
    strides: list[IrValue]
    lane_stride: IrValue

    def moved(self, **places: IrValue) -> _Maps:
        """Return a view of the maps that starts at element (n, c, h, w); indices not given are
        0."""
        base = self.base
        for name, place in places.items():
            step = self.builder.mul(place, self.strides["nchw".index(name)])
            base = at(self.builder, base, step, self.lying.dtype)
        return replace(self, base=base)

    def read(self, mask: IrValue | None, every: int = 1) -> IrValue:
        """Load a vector along the structure's axis, of elements `every` positions apart."""
        return gather(self.builder, self.base, self.step(every), self.lying.dtype, mask)

    def write(self, stored: IrValue, mask: IrValue | None, every: int = 1) -> None:
        """Store a vector along the structure's axis, to elements `every` positions apart."""
        scatter(self.builder, stored, self.base, self.step(every), self.lying.dtype, mask)

    def step(self, every: int) -> IrValue | None:
        """Return the stride of elements `every` positions apart; None for contiguous ones."""
        if self.lying.step == "unit" and every == 1:
            return None
        return self.builder.mul(self.lane_stride, index(every))


Totals = list[IrValue]
Load = Callable[[Sequence[_Maps], IrValue], list[IrValue]]
"""A function from sources at a row, and a column, to the vector of values and, if any, of selected
taps."""


class _Writer:
    """Writer of the kernel of a window program for operands of one structure."""

    def __init__(self, builder: Builder, structure: _Structure) -> None:
        self.builder, self.structure = builder, structure
        self.given = given = NumberReader(builder)
        maps: list[_Maps] = []
        for each in (*structure.sources, *structure.targets):
            base, strides = given.pointer(), given.some(4)
            lane = index(1) if each.step == "unit" else strides[structure.axis]
            maps.append(_Maps(builder, each, base, strides, lane))
        count = len(structure.sources)
        sources, self.targets = maps[:count], maps[count:]
        # The selected taps of windows are read with the windows.
        read = count if structure.back else 1
        self.at_taps, self.at_own = sources[:read], sources[read:]
        self.extents = given.some(4)
        windows, back = structure.windows, structure.back
        self.down, self.across = (
            Axis(
                builder, back, windows.size[axis], windows.stride[axis],
                windows.padding[axis], windows.dilation[axis], given.number(),
            )
            for axis in (0, 1)
        )  # fmt: skip
        self.kind = arithmetic_dtype(structure.sources[0].dtype)

    def write(self) -> None:
        """Write the loops over rows."""
        n, c, h, _ = self.extents
        if self.structure.axis == CHANNELS:
            over_rows(self.builder, self.given, [n, h], self.row_of_channels)
        else:
            over_rows(self.builder, self.given, [n, c, h], self.row)

    # Accumulation of values.

    def begun(self) -> Totals:
        """Return the initial totals of one vector."""
        of = held(self.kind)
        if self.structure.is_max:
            return [constant(of, -math.inf), constant(vector(WORD), 0)]
        return [constant(of, 0.0)]

    def with_seen(self, totals: Totals, tap: IrValue, seen: IrValue, *selected: IrValue) -> Totals:
        """Return the totals of a vector after they are combined with the values `seen` at a tap."""
        b = self.builder
        if self.structure.is_max:
            best, place = totals
            beats = b.fcmp_ordered(">", seen, best)
            takes = b.or_(beats, b.fcmp_unordered("uno", seen, seen))
            number = splat(b, b.trunc(tap, WORD))
            return [b.select(takes, seen, best), b.select(beats, number, place)]
        for each in selected:
            hit = b.icmp_signed("==", each, splat(b, b.trunc(tap, BYTE)))
            seen = b.select(hit, seen, constant(seen.type, 0.0))
        return [b.fadd(totals[0], seen)]

    def results(self, totals: Totals) -> list[IrValue]:
        """Return the results of a vector, as they are stored, from its totals."""
        b, (first, *more) = self.builder, totals
        first = b.fdiv(first, constant(first.type, self.structure.divisor))
        stored = narrow(b, first, self.kind, self.structure.targets[0].dtype)
        return [stored, *(b.trunc(place, vector(BYTE)) for place in more)]

    def reduced(
        self,
        vectors: Sequence[Sequence[_Maps]],
        own: Sequence[Sequence[IrValue]],
        down: Taps,
        across: Taps,
        load: Load,
    ) -> list[list[IrValue]]:
        """Return the results of several vectors with the same taps, given the sources and own
        selected taps of each."""
        b, begun = self.builder, self.begun()
        size = len(begun)

        def over_row(i: IrValue, row: IrValue, totals: Totals) -> Totals:
            first = b.mul(i, index(self.structure.windows.size[1]))

            def meet(j: IrValue, column: IrValue, totals: Totals) -> Totals:
                found = Totals()
                for number, (sources, selected) in enumerate(zip(vectors, own, strict=True)):
                    seen = load([source.moved(h=row) for source in sources], column)
                    before = totals[number * size : (number + 1) * size]
                    found += self.with_seen(before, b.add(first, j), *seen, *selected)
                return found

            return over_taps(b, across, totals, meet)

        totals = over_taps(b, down, begun * len(vectors), over_row)
        return [self.results(totals[n : n + size]) for n in range(0, len(totals), size)]

    def loaded(
        self, sources: Sequence[_Maps], column: IrValue, mask: IrValue | None
    ) -> list[IrValue]:
        """Return the vectors that a tap reads from `column` on, one per source."""
        b, every = self.builder, 1 if self.structure.axis == CHANNELS else self.apart
        found = [
            self.every_other(source, column, mask is not None)
            if every == 2 and source.lying.step == "unit"
            else source.moved(w=column).read(mask, every)
            for source in sources
        ]
        found[0] = widen(b, found[0], sources[0].lying.dtype)
        if mask is not None and self.structure.is_max:
            found[0] = b.select(mask, found[0], constant(found[0].type, -math.inf))
        return found

    @property
    def apart(self) -> int:
        """The number of columns between the elements that adjacent lanes of a row read."""
        return 1 if self.structure.back else self.structure.windows.stride[1]

    def store(
        self, targets: Sequence[_Maps], results: Sequence[IrValue], mask: IrValue | None, every: int
    ) -> list[IrValue]:
        """Write code that stores the results of a vector."""
        for target, stored in zip(targets, results, strict=True):
            target.write(stored, mask, every)
        return []

    # Vectors along channels.

    def row_of_channels(self, _: IrValue, indices: list[IrValue]) -> None:
        """Write the code for a row of positions, with vectors along channels."""
        b, (n, h) = self.builder, indices
        down = self.down.taps(h, inside=True)

        def position(w: IrValue, carried: Totals) -> Sequence[IrValue]:
            across = self.across.taps(w, inside=True)

            def vectors(firsts: list[IrValue], mask: IrValue | None) -> None:
                def load(sources: Sequence[_Maps], column: IrValue) -> list[IrValue]:
                    return self.loaded(sources, column, mask)

                sources = [[s.moved(n=n, c=f) for s in self.at_taps] for f in firsts]
                own = [
                    [s.moved(n=n, h=h, w=w, c=f).read(mask) for s in self.at_own] for f in firsts
                ]
                found = self.reduced(sources, own, down, across, load)
                for first, results in zip(firsts, found, strict=True):
                    targets = [t.moved(n=n, h=h, w=w, c=first) for t in self.targets]
                    self.store(targets, results, mask, 1)

            over_vectors(b, index(0), self.extents[CHANNELS], vectors)
            return ()

        loop(b, index(0), self.extents[COLUMNS], 1, (), position)

    # Vectors along rows.

    def row(self, _: IrValue, indices: list[IrValue]) -> None:
        """Write the code for a row of one channel.

        In a gradient, a vector has positions that are a stride apart. With stride 2, the vectors of
        even and of odd positions are interleaved before storing.
        """
        b, (n, c, h) = self.builder, indices
        down, width = self.down.taps(h, inside=True), self.extents[COLUMNS]
        sources = [s.moved(n=n, c=c) for s in self.at_taps]
        selected = [s.moved(n=n, c=c, h=h) for s in self.at_own]
        targets = [t.moved(n=n, c=c, h=h) for t in self.targets]
        every = self.across.stride if self.structure.back else 1

        def found(w: IrValue, own: Sequence[IrValue]) -> list[IrValue]:
            across = self.across.taps(w, inside=False)
            return self.reduced([sources], [own], down, across, self.partly_inside)[0]

        def store(w: IrValue, results: Sequence[IrValue], remaining: IrValue, every: int) -> None:
            here = [target.moved(w=w) for target in targets]
            whole_or_masked(b, remaining, lambda mask: self.store(here, results, mask, every))

        def pairs(w: IrValue, carried: Totals) -> Sequence[IrValue]:
            even, odd = (found(b.add(w, index(r)), [])[0] for r in (0, 1))
            for half in (0, 1):
                first = b.add(w, index(half * LANES))
                stored = interleaved(b, even, odd, half * (LANES // 2))
                store(first, [stored], b.sub(width, first), 1)
            return ()

        def residue(first: IrValue, carried: Totals) -> Sequence[IrValue]:
            count = raised_ratio(b, b.sub(width, first), every)

            def positions(number: IrValue, carried: Totals) -> Sequence[IrValue]:
                w, remaining = b.add(first, b.mul(number, index(every))), b.sub(count, number)
                own = whole_or_masked(
                    b, remaining, lambda mask: [s.moved(w=w).read(mask) for s in selected]
                )
                store(w, found(w, own), remaining, every)
                return ()

            loop(b, index(0), count, LANES, (), positions)
            return ()

        if every == 2:
            loop(b, index(0), width, 2 * LANES, (), pairs)
        else:
            loop(b, index(0), least(b, index(every), width), 1, (), residue)

    def partly_inside(self, sources: Sequence[_Maps], column: IrValue) -> list[IrValue]:
        """Return the vectors that a tap reads from `column` on; lanes in padding are masked."""
        b = self.builder
        last = b.add(column, index(self.apart * (LANES - 1)))
        is_above = b.icmp_signed(">=", column, index(0))
        return either(
            b,
            b.and_(is_above, b.icmp_signed("<", last, self.across.extent)),
            lambda: self.loaded(sources, column, None),
            lambda: self.loaded(sources, column, self.existing(column, self.apart)),
        )

    def existing(self, first: IrValue, step: int) -> IrValue:
        """Return a mask of the columns first, first + step, ... that are in the row."""
        b = self.builder
        columns = lane_numbers(b, first, index(step))
        return b.icmp_unsigned("<", columns, splat(b, self.across.extent))

    def every_other(self, source: _Maps, column: IrValue, is_masked: bool) -> IrValue:
        """Load elements 0, 2, 4, ... from `column` on, by two contiguous loads.

        The later load starts one element early, so that it reads nothing behind the last of them.
        """
        b, halves = self.builder, []
        for first in (column, b.add(column, index(LANES - 1))):
            mask = self.existing(first, 1) if is_masked else None
            halves.append(source.moved(w=first).read(mask))
        lanes = [2 * lane for lane in range(LANES // 2)]
        chosen = [*lanes, *(LANES + 1 + lane for lane in lanes)]
        return b.shuffle_vector(*halves, ir.Constant(ir.VectorType(WORD, LANES), chosen))
