"""The common base of the kernels of row reductions, by rows and by columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphc.codegen.llvm.elements import Lying, NumberReader, Reached
from graphc.codegen.llvm.lanes import (
    DOUBLE,
    Builder,
    IrValue,
    at,
    index,
)
from graphc.codegen.llvm.line_structure import Named, Structure
from graphc.codegen.llvm.places import offset_of
from graphc.codegen.llvm.scalar import LaneCode


@dataclass(slots=True)
class LineOperand:
    """An operand with its address and strides, which a kernel reads from its arguments."""

    lying: Lying
    pointer: IrValue | None
    start: IrValue
    kept: list[IrValue]
    runs: list[IrValue]
    inner: IrValue
    axes: list[tuple[IrValue, IrValue]]

    def at_line(self, builder: Builder, indices: Sequence[IrValue]) -> Reached:
        """Return the operand at the beginning of the line with these indices."""
        offset = offset_of(builder, self.start, indices, self.kept)
        base = (
            offset if self.pointer is None else at(builder, self.pointer, offset, self.lying.dtype)
        )
        return Reached(self.lying, base, self.inner, self.axes)

    def at_run(self, builder: Builder, line: Reached, indices: Sequence[IrValue]) -> Reached:
        """Return the operand at the beginning of the run with these indices in a line."""
        offset = offset_of(builder, index(0), indices, self.runs)
        base = (
            builder.add(line.base, offset)
            if self.pointer is None
            else at(builder, line.base, offset, self.lying.dtype)
        )
        return Reached(self.lying, base, self.inner, self.axes)


class LineWriter:
    """Base class of writers of row reductions; reads a kernel's numbers."""

    def __init__(self, builder: Builder, structure: Structure) -> None:
        self.builder, self.structure = builder, structure
        self.given = NumberReader(builder)
        self.first, self.last = self.given.first, self.given.last
        self.kept = self.given.some(structure.kept)
        self.runs = self.given.some(structure.runs)
        self.read_shares()
        self.operands = {
            each.name: self._operand(each) for each in (*structure.inputs, *structure.outputs)
        }
        self.constants = {name: self._constant() for name in structure.constants}

    def read_shares(self) -> None:
        """Read the kernel's arguments that define the work of a piece."""
        raise NotImplementedError

    def _operand(self, own: Lying) -> LineOperand:
        pointer = None if own.counts else self.given.pointer()
        start, *strides = self.given.some(self.structure.kept + self.structure.runs + 2)
        count = own.axes if own.step == "broken" else 0
        axes = [(self.given.number(), self.given.number()) for _ in range(count)]
        kept = self.structure.kept
        return LineOperand(own, pointer, start, strides[:kept], strides[kept:-1], strides[-1], axes)

    def _constant(self) -> IrValue:
        bits = self.given.number()
        return self.builder.bitcast(bits, DOUBLE)

    def code(self) -> LaneCode:
        """Return scalar code in which the program's constants are declared."""
        code = LaneCode(self.builder, self.structure.beside_none)
        code.constants = self.constants
        return code

    def varying(self, names: frozenset[str], operands: Sequence[Lying]) -> list[LineOperand]:
        """Return the operands with these names that have more than one element per line."""
        return [
            self.operands[each.name]
            for each in operands
            if each.name in names and each.name not in self.structure.per_row
        ]

    def define_computed(self, code: LaneCode, made: Named) -> None:
        """Declare the computed tensor of the frame, which is not stored."""
        dtypes = dict(self.structure.locals)
        for name, expression in made:
            code.define(name, dtypes[name], expression)
