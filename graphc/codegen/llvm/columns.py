"""Row reductions by columns: the innermost axis is kept, and each lane is a separate line.

A piece is a strip of up to `COLUMNS` adjacent lines. Their numbers are kept on the stack. Rows are
read in groups of `GROUP`, from one end of the strip to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphc.codegen.llvm.elements import Reached, evaluate, load_lanes, load_row, store_lanes
from graphc.codegen.llvm.lanes import (
    HELD,
    IrValue,
    at,
    index,
    loop,
    prefetch,
    stack,
    vector,
)
from graphc.codegen.llvm.line_structure import Named, Stage
from graphc.codegen.llvm.line_writer import LineOperand, LineWriter
from graphc.codegen.llvm.pieces import Take, fold_vectors
from graphc.codegen.llvm.places import advanced, least, split
from graphc.codegen.llvm.reduction import Combined
from graphc.codegen.llvm.scalar import LaneCode
from graphc.ir.types import DType, bool_

COLUMNS = 1024
"""Maximum number of lines per piece."""
ROWS = 64
"""Number of rows per block; block sums are accumulated in float64."""
GROUP = 4
"""Number of rows that are read in parallel, which is the number of streams that a processor
prefetches."""

RangeBody = Callable[[IrValue, IrValue], None]
RowBody = Callable[[list[Reached], list[IrValue]], Sequence[IrValue]]


class ColumnWriter(LineWriter):
    """Writer of a kernel of row reductions by columns. If lines are split, the first kept axis
    indexes their parts."""

    def read_shares(self) -> None:
        self.strip, self.strips, self.rows, self.row_step, self.row_share = self.given.some(5)
        self.stacks: dict[str, tuple[IrValue, DType]] = {}

    def write(self) -> None:
        """Write the loop over pieces."""
        b = self.builder

        def piece(number: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            *outer, inner = self.kept
            left = b.mul(b.urem(number, self.strips), self.strip)
            self.width = b.sub(least(b, b.add(left, self.strip), inner), left)
            indices = split(b, b.udiv(number, self.strips), outer)
            self.strip_of_lines([*indices, left])
            return ()

        loop(b, self.first, self.last, 1, (), piece)

    def strip_of_lines(self, indices: Sequence[IrValue]) -> None:
        """Write the code for the strip of lines in a piece; `indices` are those of the strip."""
        b, structure = self.builder, self.structure
        self.first_row = b.mul(indices[0], self.row_step)
        self.last_row = least(b, b.add(self.first_row, self.row_share), self.rows)
        self.at_line = {n: o.at_line(b, indices) for n, o in self.operands.items()}
        for stage in structure.stages:
            if stage.combined:
                self.reduce(stage)
            else:
                self.numbers(stage)
        if structure.per_element:
            self.store_elements()
        if structure.per_line:
            self.store_lines()

    def over_strip(self, together: int, take: Take) -> None:
        """Write a loop over the vectors of lines in a piece, `together` vectors at a time."""
        fold_vectors(self.builder, index(0), self.width, together, (), take)

    def scratch(self, name: str, dtype: DType) -> IrValue:
        """Allocate memory on the stack for one number per line, and return its address."""
        lane = HELD[dtype]
        if name not in self.stacks:
            self.stacks[name] = stack(self.builder, lane, COLUMNS), dtype
        return self.stacks[name][0]

    def lane_code(
        self, names: frozenset[str], place: IrValue, remaining: IrValue | None
    ) -> LaneCode:
        """Return scalar code in which the numbers and per-line operands with these names are
        declared."""
        b, code = self.builder, self.code()
        reached = [
            self.at_line[own.name]
            for own in self.structure.inputs
            if own.name in names and own.name in self.structure.per_row
        ]
        for each in reached:
            if each.lying.step == "one":
                load_row(b, code, each)
        load_lanes(b, code, reached, place, remaining)
        for name in sorted(names & self.stacks.keys()):
            code.hold(name, self.stacks[name][1], self.held(name, place))
        return code

    def held(self, name: str, place: IrValue) -> IrValue:
        """Load the numbers of `LANES` lines from the stack."""
        scratch, dtype = self.stacks[name]
        address = self.builder.gep(scratch, [place], source_etype=HELD[dtype])
        return self.builder.load(address, typ=vector(HELD[dtype]), align=4)

    def hold(self, name: str, dtype: DType, place: IrValue, value: IrValue) -> None:
        """Store the numbers of `LANES` lines on the stack."""
        assert dtype != bool_, "numbers of lines are no bools"
        b, scratch = self.builder, self.scratch(name, dtype)
        b.store(value, b.gep(scratch, [place], source_etype=HELD[dtype]), align=4)

    def over_rows(
        self,
        operands: Sequence[LineOperand],
        first: IrValue,
        last: IrValue,
        carried: Sequence[IrValue],
        body: RowBody,
    ) -> list[IrValue]:
        """Write a loop over rows `[first, last)`; `body` gets the operands at the beginning of a
        row."""
        b, axes = self.builder, len(self.runs)

        def row(number: IrValue, held: list[IrValue]) -> Sequence[IrValue]:
            indices, rest = held[:axes], held[axes:]
            reached = [o.at_run(b, self.at_line[o.lying.name], indices) for o in operands]
            return [*advanced(b, indices, self.runs), *body(reached, rest)]

        start = [*split(b, first, self.runs), *carried]
        return loop(b, first, last, 1, start, row)[axes:]

    def over_blocks(self, body: RangeBody) -> None:
        """Write a loop over the blocks of rows; `body` gets the range of rows of a block."""
        self._over_ranges(self.first_row, self.last_row, ROWS, body)

    def over_groups(self, first: IrValue, last: IrValue, body: RangeBody) -> None:
        """Write a loop over the groups of rows of a block."""
        self._over_ranges(first, last, GROUP, body)

    def _over_ranges(self, first: IrValue, last: IrValue, step: int, body: RangeBody) -> None:
        b = self.builder

        def part(top: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            body(top, least(b, b.add(top, index(step)), last))
            return ()

        loop(b, first, last, step, (), part)

    def load_rows(
        self, code: LaneCode, reached: Sequence[Reached], place: IrValue, remaining: IrValue | None
    ) -> LaneCode:
        """Return scalar code in which operands are declared with their elements at `LANES` places
        of a row."""
        inner = code.nested()
        for each in reached:
            if each.lying.step == "one":
                load_row(self.builder, inner, each)
        load_lanes(self.builder, inner, reached, place, remaining)
        return inner

    def reduce(self, stage: Stage) -> None:
        """Write a reduction of all rows, which leaves its results on the stack."""
        b, combined = self.builder, stage.combined

        def begin(first: bool) -> Take:
            def take(
                places: list[IrValue], remaining: IrValue | None, held: list[IrValue]
            ) -> Sequence[IrValue]:
                for c in combined:
                    name, dtype = (_total(c), c.total) if first else (_block(c), c.dtype)
                    self.hold(name, dtype, places[0], c.identity(dtype))
                return ()

            return take

        def fold(
            places: list[IrValue], remaining: IrValue | None, held: list[IrValue]
        ) -> Sequence[IrValue]:
            for c in combined:
                total = self.held(_total(c), places[0])
                value = c.fold(b, total, self.held(_block(c), places[0]))
                self.hold(_total(c), c.total, places[0], value)
            return ()

        def end(
            places: list[IrValue], remaining: IrValue | None, held: list[IrValue]
        ) -> Sequence[IrValue]:
            for c in combined:
                value = c.rounded(b, self.held(_total(c), places[0]))
                self.hold(c.name, c.dtype, places[0], value)
            return ()

        def block(first: IrValue, last: IrValue) -> None:
            self.over_strip(1, begin(False))
            self.over_groups(first, last, lambda top, bottom: self.add_rows(stage, top, bottom))
            self.over_strip(1, fold)

        self.over_strip(1, begin(True))
        self.over_blocks(block)
        self.over_strip(1, end)

    def add_rows(self, stage: Stage, first: IrValue, last: IrValue) -> None:
        """Write code that adds rows `[first, last)` to a block's sums."""
        combined = stage.combined
        names, made = self.structure.needed(stage.expressions)
        operands = self.varying(names, self.structure.inputs)

        def take(
            places: list[IrValue], remaining: IrValue | None, held: list[IrValue]
        ) -> Sequence[IrValue]:
            codes = [self.lane_code(names, place, remaining) for place in places]
            for code in codes:
                code.prepare([e for _, e in stage.expressions])

            def row(reached: list[Reached], sums: list[IrValue]) -> Sequence[IrValue]:
                found: list[IrValue] = []
                for operand, each in zip(operands, reached, strict=True):
                    self.fetch_ahead(operand, each, places)
                for code, place in zip(codes, places, strict=True):
                    inner = self.load_rows(code, reached, place, remaining)
                    self.define_computed(inner, made)
                    for c, (_, expression) in zip(combined, stage.expressions, strict=True):
                        value, _ = inner.compute(expression)
                        found.append(c.take(self.builder, sums[len(found)], value))
                return found

            start = [self.held(_block(c), place) for place in places for c in combined]
            sums = iter(self.over_rows(operands, first, last, start, row))
            for place in places:
                for c in combined:
                    self.hold(_block(c), c.dtype, place, next(sums))
            return ()

        self.over_strip(self.structure.together(stage.expressions), take)

    def fetch_ahead(self, operand: LineOperand, row: Reached, places: Sequence[IrValue]) -> None:
        """Write prefetches of the columns at `places` for a row of the next group.

        Hardware prefetchers do not recognize rows that are read alternately. An address beyond the
        tensor is harmless.
        """
        b, own = self.builder, operand.lying
        if own.step != "unit" or own.counts or not operand.runs:
            return
        ahead = b.mul(operand.runs[-1], index(GROUP))
        for place in places:
            prefetch(b, at(b, row.base, b.add(place, ahead), own.dtype))

    def numbers(self, stage: Stage) -> None:
        """Write code that computes numbers of lines from earlier numbers."""
        names = frozenset[str]().union(*(e.names for _, e in stage.expressions))

        def take(
            places: list[IrValue], remaining: IrValue | None, held: list[IrValue]
        ) -> Sequence[IrValue]:
            code = self.lane_code(names, places[0], remaining)
            for name, expression in stage.expressions:
                value, dtype = code.compute(expression)
                code.hold(name, dtype, value)
                self.hold(name, dtype, places[0], value)
            return ()

        self.over_strip(1, take)

    def store_elements(self) -> None:
        """Write code that computes and stores the elementwise outputs."""
        b, structure = self.builder, self.structure
        names = structure.needed(structure.per_element)[0]
        sources = self.varying(names, structure.inputs)
        targets = [self.operands[name] for name, _ in structure.per_element]

        def group(first: IrValue, last: IrValue) -> None:
            def take(
                places: list[IrValue], remaining: IrValue | None, held: list[IrValue]
            ) -> Sequence[IrValue]:
                code = self.lane_code(names, places[0], remaining)
                code.prepare([e for _, e in structure.per_element])

                def row(reached: list[Reached], carried: list[IrValue]) -> Sequence[IrValue]:
                    reads, writes = reached[: len(sources)], reached[len(sources) :]
                    inner = self.load_rows(code, reads, places[0], remaining)
                    found = evaluate(inner, structure.per_element, {}, writes)
                    store_lanes(b, found, places[0], remaining)
                    return ()

                self.over_rows([*sources, *targets], first, last, (), row)
                return ()

            self.over_strip(1, take)

        self.over_groups(self.first_row, self.last_row, group)

    def store_lines(self) -> None:
        """Write code that stores the outputs with one element per line."""
        structure = self.structure
        every: Named = (*structure.finish, *structure.per_line)
        names = frozenset[str]().union(*(e.names for _, e in every))
        dtypes = dict(structure.finish_dtypes)
        targets = [self.at_line[name] for name, _ in structure.per_line]

        def take(
            places: list[IrValue], remaining: IrValue | None, held: list[IrValue]
        ) -> Sequence[IrValue]:
            code = self.lane_code(names, places[0], remaining)
            for name, expression in structure.finish:
                code.define(name, dtypes[name], expression)
            found = evaluate(code, structure.per_line, {}, targets)
            store_lanes(self.builder, found, places[0], remaining)
            return ()

        self.over_strip(1, take)


def _block(combined: Combined) -> str:
    return f"block of {combined.name}"


def _total(combined: Combined) -> str:
    return f"total of {combined.name}"
