"""Pooling kernels: vectors along channels, or along a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graphc.codegen.llvm.elements import Lying, NumberReader, whole_or_masked
from graphc.codegen.llvm.families.window_columns import ColumnReader
from graphc.codegen.llvm.families.windows import Taps, Windows, over_taps
from graphc.codegen.llvm.lanes import (
    BYTE,
    HELD,
    LANES,
    WORD,
    Builder,
    IrValue,
    at,
    constant,
    gather,
    held,
    index,
    load,
    loop,
    narrow,
    scatter,
    splat,
    store,
    vector,
    widen,
)
from graphc.codegen.llvm.pieces import over_rows, over_vectors
from graphc.codegen.llvm.tile import interleaved
from graphc.codegen.text.scalar import arithmetic_dtype

CHANNELS, COLUMNS = 1, 3
"""The axis of maps along which vectors run."""


@dataclass(frozen=True, slots=True)
class Structure:
    """The properties on which the text of a kernel depends."""

    back: bool
    largest: bool
    chosen: bool
    """True if a byte per window selects one of its positions."""
    mean: bool
    axis: int
    stride: int
    """The stride of windows along a row, if vectors run there and it is 1 or 2; else 0."""
    plain: int
    """The stride of windows along both axes if it is 1 or 2 and they have no dilation; else 0."""
    sources: tuple[Lying, ...]
    targets: tuple[Lying, ...]


Totals = list[IrValue]
_Meeting = Callable[[IrValue, IrValue, IrValue, Totals], Totals]
"""The code at a tap, given the row and the column that it reads."""


@dataclass(frozen=True, slots=True)
class _Map:
    """An operand of a kernel: maps with strides along their four axes."""

    lying: Lying
    base: IrValue
    strides: list[IrValue]

    def moved(self, builder: Builder, **places: IrValue) -> _Map:
        """Return these maps from an index on: n, c, h, w."""
        base = self.base
        for name, place in places.items():
            step = builder.mul(place, self.strides["nchw".index(name)])
            base = at(builder, base, step, self.lying.dtype)
        return _Map(self.lying, base, self.strides)


class Pool:
    """A writer of the kernel of one structure."""

    def __init__(self, builder: Builder, structure: Structure) -> None:
        self.builder, self.structure = builder, structure
        self.given = given = NumberReader(builder)
        lying = (*structure.sources, *structure.targets)
        pointers = [given.pointer() for _ in lying]
        maps = [_Map(o, p, given.some(4)) for o, p in zip(lying, pointers, strict=True)]
        self.sources, self.targets = maps[: len(structure.sources)], maps[len(structure.sources) :]
        self.down, self.across = (
            Windows.given(builder, given, structure.back, structure.plain)
            for _ in ("rows", "columns")
        )
        self.area, self.extents = given.number(), given.some(4)
        self.kind = arithmetic_dtype(structure.sources[0].dtype)

    def write(self) -> None:
        """Write the loops over rows."""
        if self.structure.axis == CHANNELS:
            over_rows(self.builder, self.given, self.extents[:2], self.row_of_channels)
        else:
            over_rows(self.builder, self.given, self.extents[:3], self.row)

    # Accumulation of values.

    def begun(self) -> Totals:
        """Return the initial totals of one vector."""
        of = held(self.structure.sources[0].dtype)
        if self.structure.largest:
            return [constant(of, -math.inf), constant(vector(WORD), 0)]
        return [constant(of, 0.0)]

    def with_seen(
        self, totals: Sequence[IrValue], seen: IrValue, tap: IrValue, chosen: IrValue | None
    ) -> Totals:
        """Return the totals of a vector after the values at a tap."""
        b = self.builder
        if self.structure.largest:
            best, place = totals
            beats = b.fcmp_ordered(">", seen, best)
            takes = b.or_(beats, b.fcmp_unordered("uno", seen, seen))
            number = splat(b, b.trunc(tap, WORD))
            return [b.select(takes, seen, best), b.select(beats, number, place)]
        if chosen is not None:
            hit = b.icmp_signed("==", chosen, splat(b, b.trunc(tap, BYTE)))
            seen = b.select(hit, seen, constant(seen.type, 0.0))
        return [b.fadd(totals[0], seen)]

    def results(self, totals: Sequence[IrValue]) -> list[IrValue]:
        """Return the stored results of a vector's totals."""
        b, (first, *more) = self.builder, totals
        if self.structure.mean:
            first = b.fdiv(first, splat(b, b.sitofp(self.area, HELD[self.kind])))
        stored = narrow(b, first, self.kind, self.structure.targets[0].dtype)
        return [stored, *(b.trunc(place, vector(BYTE)) for place in more)]

    def over_window(self, down: Taps, across: Taps, totals: Totals, meet: _Meeting) -> Totals:
        """Write the loops over the taps of windows."""
        b = self.builder

        def over_row(i: IrValue, row: IrValue, so_far: Totals) -> Totals:
            first = b.mul(i, self.across.size)
            return over_taps(
                b, across, so_far,
                lambda j, column, totals: meet(b.add(first, j), row, column, totals),
            )  # fmt: skip

        return over_taps(b, down, totals, over_row)

    # Vectors along channels.

    def row_of_channels(self, _: IrValue, indices: list[IrValue]) -> None:
        """Write the code for a row of positions."""
        b, (n, h) = self.builder, indices
        down = self.down.taps(h)
        _, _, width, channels = self.extents

        def place(w: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            across = self.across.taps(w)

            def vectors(c: IrValue, remaining: IrValue, count: int) -> None:
                self.channels((n, h, w, c), down, across, remaining, count)

            over_vectors(b, index(0), channels, vectors)
            return ()

        loop(b, index(0), width, 1, (), place)

    def channels(
        self,
        own: tuple[IrValue, IrValue, IrValue, IrValue],
        down: Taps,
        across: Taps,
        remaining: IrValue,
        count: int,
    ) -> None:
        """Write the code for some vectors of channels."""
        b, (n, h, w, c) = self.builder, own
        firsts = [b.add(c, index(number * LANES)) for number in range(count)]
        size = len(self.begun())

        def access(mask: IrValue | None) -> list[IrValue]:
            byte = self._own_choice(n, h, w)
            own_bytes = [byte and self._lanes(byte.moved(b, c=f), mask) for f in firsts]

            def meet(tap: IrValue, row: IrValue, column: IrValue, so_far: Totals) -> Totals:
                found: Totals = []
                for number, first in enumerate(firsts):
                    there = [s.moved(b, n=n, h=row, w=column, c=first) for s in self.sources]
                    seen = widen(b, self._lanes(there[0], mask), there[0].lying.dtype)
                    chosen = own_bytes[number]
                    if self._is_chosen_there():
                        chosen = self._lanes(there[1], mask)
                    totals = so_far[number * size : (number + 1) * size]
                    found += self.with_seen(totals, seen, tap, chosen)
                return found

            totals = self.over_window(down, across, self.begun() * count, meet)
            for number, first in enumerate(firsts):
                results = self.results(totals[number * size : (number + 1) * size])
                for target, stored in zip(self.targets, results, strict=True):
                    self._write(target.moved(b, n=n, h=h, w=w, c=first), stored, mask)
            return []

        if count > 1:
            access(None)
        else:
            whole_or_masked(b, remaining, access)

    def _is_chosen_there(self) -> bool:
        """Return true if the choice of a window is stored at the window's position in the loop."""
        return self.structure.chosen and self.structure.back

    def _own_choice(self, n: IrValue, h: IrValue, w: IrValue) -> _Map | None:
        """Return the choices of the windows at a position of the output."""
        if not self.structure.chosen or self.structure.back:
            return None
        return self.sources[1].moved(self.builder, n=n, h=h, w=w)

    def _lanes(self, maps: _Map, mask: IrValue | None) -> IrValue:
        """Load a vector along the structure's axis."""
        if maps.lying.step == "unit":
            return load(self.builder, maps.base, maps.lying.dtype, mask)
        step = maps.strides[self.structure.axis]
        return gather(self.builder, maps.base, step, maps.lying.dtype, mask)

    def _write(
        self, maps: _Map, stored: IrValue, mask: IrValue | None, every: IrValue | None = None
    ) -> None:
        """Write a vector along the structure's axis, contiguously or with stride `every`."""
        b, dtype = self.builder, maps.lying.dtype
        if maps.lying.step == "unit" and every is None:
            store(b, stored, maps.base, dtype, mask)
            return
        step = maps.strides[self.structure.axis]
        step = index(1) if maps.lying.step == "unit" else step
        scatter(b, stored, maps.base, step if every is None else b.mul(step, every), dtype, mask)

    # Vectors along rows.

    def row(self, _: IrValue, indices: list[IrValue]) -> None:
        """Write the code for a row of one channel."""
        b, (n, c, h) = self.builder, indices
        down, width = self.down.taps(h), self.extents[3]
        sources = [s.moved(b, n=n, c=c) for s in self.sources]
        targets = [t.moved(b, n=n, c=c, h=h) for t in self.targets]
        if not self.structure.back:
            byte = self._own_choice(n, h, index(0))
            own = byte and byte.moved(b, c=c)
            self._forward_row(down, sources, targets, own, width)
        elif self.structure.stride == 2:
            self._row_of_pairs(down, sources, targets, width)
        else:
            self._back_row(down, sources, targets, width)

    def _met(
        self,
        down: Taps,
        across: Taps,
        sources: Sequence[_Map],
        own: IrValue | None,
    ) -> Totals:
        """Return the totals of a vector of positions, given the taps of the first one."""
        b = self.builder
        stride = 1 if self.structure.back else self.structure.stride

        def meet(tap: IrValue, row: IrValue, column: IrValue, totals: Totals) -> Totals:
            there = [s.moved(b, h=row) for s in sources]
            reader = ColumnReader(b, column, self.across.extent, self.across.stride, stride)
            outside = -math.inf if self.structure.largest else None
            seen = reader.values(there[0].lying, there[0].base, there[0].strides[3], outside)
            chosen = own
            if self._is_chosen_there():
                chosen = reader.stored(there[1].lying, there[1].base, there[1].strides[3])
            return self.with_seen(totals, seen, tap, chosen)

        return self.over_window(down, across, self.begun(), meet)

    def _forward_row(
        self,
        down: Taps,
        sources: Sequence[_Map],
        targets: Sequence[_Map],
        own: _Map | None,
        width: IrValue,
    ) -> None:
        b, windows = self.builder, self.across

        def places(w: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            remaining = b.sub(width, w)
            here = own and own.moved(b, w=w)
            chosen = here and whole_or_masked(b, remaining, lambda m: [self._lanes(here, m)])[0]
            first = b.sub(b.mul(w, windows.stride), windows.padding)
            across = Taps(windows.size, index(0), index(1), first, windows.dilation)
            results = self.results(self._met(down, across, sources, chosen))
            self._write_row([t.moved(b, w=w) for t in targets], results, remaining)
            return ()

        loop(b, index(0), width, LANES, (), places)

    def _write_row(
        self, targets: Sequence[_Map], results: Sequence[IrValue], remaining: IrValue
    ) -> None:
        def writes(mask: IrValue | None) -> list[IrValue]:
            for target, stored in zip(targets, results, strict=True):
                self._write(target, stored, mask)
            return []

        whole_or_masked(self.builder, remaining, writes)

    def _taps_back(self, place: IrValue) -> Taps:
        """Return the taps with integer window indices, for a position and for those one, two, ...
        strides after it."""
        b, windows = self.builder, self.across
        reach = b.add(place, windows.padding)
        first = windows.first_whole(reach, index(0))
        left = b.sub(windows.size, first)
        count = b.sdiv(b.add(left, b.sub(windows.period, index(1))), windows.period)
        read = b.sdiv(b.sub(reach, b.mul(first, windows.dilation)), windows.stride)
        return Taps(count, first, windows.period, read, b.neg(windows.step))

    def _row_of_pairs(
        self, down: Taps, sources: Sequence[_Map], targets: Sequence[_Map], width: IrValue
    ) -> None:
        """Write a row for windows of stride 2: even and odd positions have their own taps."""
        b = self.builder

        def places(w: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            even, odd = (
                self.results(
                    self._met(down, self._taps_back(b.add(w, index(r))), sources, None)
                )[0]
                for r in (0, 1)
            )  # fmt: skip
            for half in (0, 1):
                first = b.add(w, index(half * LANES))
                stored = interleaved(b, even, odd, half * (LANES // 2))
                self._write_row(
                    [t.moved(b, w=first) for t in targets], [stored], b.sub(width, first)
                )
            return ()

        loop(b, index(0), width, 2 * LANES, (), places)

    def _back_row(
        self, down: Taps, sources: Sequence[_Map], targets: Sequence[_Map], width: IrValue
    ) -> None:
        """Write a row by vectors of positions that are a stride apart."""
        b, stride = self.builder, self.across.stride
        across = None if self.structure.stride == 1 else stride

        def residue(first: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            left = b.sub(width, first)
            count = b.sdiv(b.add(left, b.sub(stride, index(1))), stride)

            def places(number: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
                w = b.add(first, b.mul(number, stride))
                results = self.results(self._met(down, self._taps_back(w), sources, None))

                def writes(mask: IrValue | None) -> list[IrValue]:
                    self._write(targets[0].moved(b, w=w), results[0], mask, across)
                    return []

                whole_or_masked(b, b.sub(count, number), writes)
                return ()

            loop(b, index(0), count, LANES, (), places)
            return ()

        loop(b, index(0), stride, 1, (), residue)
