"""Row reductions by rows: the innermost axis is reduced, and a vector is a part of a line.

A line consists of runs, one per index of the outer reduced axes. A run consists of blocks of
`BLOCK` elements. If little is computed per element, several vectors of a block are processed
together, each with its own sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from graphc.codegen.llvm.elements import Reached, evaluate, load_lanes, load_row, store_lanes
from graphc.codegen.llvm.lanes import WORD, IrValue, first_lanes, index, loop
from graphc.codegen.llvm.line_structure import Named, Stage
from graphc.codegen.llvm.line_writer import LineOperand, LineWriter
from graphc.codegen.llvm.pieces import fold_vectors
from graphc.codegen.llvm.places import advanced, least, split
from graphc.codegen.llvm.reduction import Combined
from graphc.codegen.llvm.scalar import LaneCode
from graphc.ir.types import DType

BLOCK = 4096
"""Number of elements per block; block sums are accumulated in float64."""


class RowWriter(LineWriter):
    """Writer of a kernel of row reductions by rows. If lines are split, the last kept axis indexes
    their parts."""

    def read_shares(self) -> None:
        self.row, self.lines, self.block = self.given.some(3)
        self.run_step, self.run_share, self.column_step, self.column_share = self.given.some(4)

    def write(self) -> None:
        """Write the loop over pieces, each of which is some lines."""
        b = self.builder

        def piece(number: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
            first = b.mul(number, self.block)
            last = least(b, b.add(first, self.block), self.lines)
            loop(b, first, last, 1, split(b, first, self.kept), line)
            return ()

        def line(number: IrValue, indices: list[IrValue]) -> Sequence[IrValue]:
            self.line(indices)
            return advanced(b, indices, self.kept)

        loop(b, self.first, self.last, 1, (), piece)

    def line(self, indices: Sequence[IrValue]) -> None:
        """Write the code for one line, or for one part of a split line."""
        b, structure = self.builder, self.structure
        self.set_range(indices[-1])
        self.at_line = {n: o.at_line(b, indices) for n, o in self.operands.items()}
        code = self.code()
        for own in structure.inputs:
            if own.name in structure.per_row:
                load_row(b, code, self.at_line[own.name])
        for stage in structure.stages:
            if stage.combined:
                self.reduce(code, stage)
            else:
                for name, expression in stage.expressions:
                    value, dtype = code.compute(expression)
                    code.hold(name, dtype, value)
        if structure.per_element:
            self.store_elements(code)
        if structure.per_line:
            self.store_line(code)

    def set_range(self, chunk: IrValue) -> None:
        """Set the range of runs of part number `chunk`, and its range of columns in each run."""
        b, runs = self.builder, index(1)
        for extent in self.runs:
            runs = b.mul(runs, extent)
        self.first_run = b.mul(chunk, self.run_step)
        self.last_run = least(b, b.add(self.first_run, self.run_share), runs)
        self.left = b.mul(chunk, self.column_step)
        self.right = least(b, b.add(self.left, self.column_share), self.row)

    def over_runs(
        self,
        operands: Sequence[LineOperand],
        carried: Sequence[IrValue],
        body: Callable[[list[Reached], list[IrValue]], Sequence[IrValue]],
    ) -> list[IrValue]:
        """Write a loop over runs; `body` gets the operands at a run's beginning."""
        b, axes = self.builder, len(self.runs)

        def run(number: IrValue, held: list[IrValue]) -> Sequence[IrValue]:
            indices, rest = held[:axes], held[axes:]
            reached = [o.at_run(b, self.at_line[o.lying.name], indices) for o in operands]
            return [*advanced(b, indices, self.runs), *body(reached, rest)]

        start = [*split(b, self.first_run, self.runs), *carried]
        return loop(b, self.first_run, self.last_run, 1, start, run)[axes:]

    def reduce(self, code: LaneCode, stage: Stage) -> None:
        """Write a reduction of a line; its results are declared as variables of `code`."""
        b, combined = self.builder, stage.combined
        names, made = self.structure.needed(stage.expressions)
        operands = self.varying(names, self.structure.inputs)
        together = self.structure.together(stage.expressions)

        def run(reached: list[Reached], totals: list[IrValue]) -> Sequence[IrValue]:
            inner = code.nested()
            for each in reached:
                if each.lying.step == "one":
                    load_row(b, inner, each)
            inner.prepare([e for _, e in stage.expressions])

            def block(first: IrValue, held: list[IrValue]) -> Sequence[IrValue]:
                last = least(b, b.add(first, index(BLOCK)), self.right)
                found = self.sums(inner, reached, stage.expressions, made, combined, together)(
                    first, last
                )
                pairs = zip(combined, held, found, strict=True)
                return [c.fold(b, total, value) for c, total, value in pairs]

            return loop(b, self.left, self.right, BLOCK, totals, block)

        start = [c.identity(c.total) for c in combined]
        totals = self.over_runs(operands, start, run)
        for each, total in zip(combined, totals, strict=True):
            code.hold(each.name, each.dtype, each.result(b, total))

    def sums(
        self,
        code: LaneCode,
        reached: list[Reached],
        expressions: Named,
        made: Named,
        combined: Sequence[Combined],
        together: int,
    ) -> Callable[[IrValue, IrValue], list[IrValue]]:
        """Return a function that writes code for the result vectors of a block, one per
        reduction."""
        b, count = self.builder, len(combined)

        def take(
            places: list[IrValue], remaining: IrValue | None, held: list[IrValue]
        ) -> Sequence[IrValue]:
            held = list(held)
            exist = None if remaining is None else first_lanes(b, remaining)
            for number, place in enumerate(places):
                inner = code.nested()
                load_lanes(b, inner, reached, place, remaining)
                self.define_computed(inner, made)
                for i, (each, (_, expression)) in enumerate(
                    zip(combined, expressions, strict=True)
                ):
                    value, _ = inner.compute(expression)
                    slot = number * count + i
                    grown = each.take(b, held[slot], value)
                    held[slot] = grown if exist is None else b.select(exist, grown, held[slot])
            return held

        def write(first: IrValue, last: IrValue) -> list[IrValue]:
            start = [c.identity(c.dtype) for _ in range(together) for c in combined]
            parts = fold_vectors(b, first, last, together, start, take)
            return [c.merge(b, parts[i::count]) for i, c in enumerate(combined)]

        return write

    def store_elements(self, code: LaneCode) -> None:
        """Write code that computes and stores the elementwise outputs."""
        b, structure = self.builder, self.structure
        names = structure.needed(structure.per_element)[0]
        sources = self.varying(names, structure.inputs)
        targets = [self.operands[name] for name, _ in structure.per_element]

        def run(reached: list[Reached], carried: list[IrValue]) -> Sequence[IrValue]:
            reads, writes = reached[: len(sources)], reached[len(sources) :]
            inner = code.nested()
            for each in reads:
                if each.lying.step == "one":
                    load_row(b, inner, each)
            inner.prepare([e for _, e in structure.per_element])

            def take(
                places: list[IrValue], remaining: IrValue | None, held: list[IrValue]
            ) -> Sequence[IrValue]:
                lanes = inner.nested()
                load_lanes(b, lanes, reads, places[0], remaining)
                found = evaluate(lanes, structure.per_element, {}, writes)
                store_lanes(b, found, places[0], remaining)
                return ()

            return fold_vectors(b, self.left, self.right, 1, (), take)

        self.over_runs([*sources, *targets], (), run)

    def store_line(self, code: LaneCode) -> None:
        """Write code that stores the outputs with one element per line."""
        b, structure = self.builder, self.structure
        dtypes: dict[str, DType] = dict(structure.finish_dtypes)
        for name, expression in structure.finish:
            code.define(name, dtypes[name], expression)
        targets = [self.at_line[name] for name, _ in structure.per_line]
        for target, value in evaluate(code, structure.per_line, {}, targets):
            one = b.extract_element(value, ir.Constant(WORD, 0))
            b.store(one, target.base, align=target.lying.dtype.itemsize)
