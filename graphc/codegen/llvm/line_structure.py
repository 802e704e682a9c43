"""The structure of a line program, on which its kernel's text depends, and the kernel's numbers."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from graphc.codegen.lines.program import Lines, Reduce
from graphc.codegen.llvm.elements import Lying, lying
from graphc.codegen.llvm.reduction import Combined
from graphc.codegen.llvm.scalar import dtype_of, supports
from graphc.codegen.text.operands import Operand, collapse
from graphc.codegen.text.scalar import arithmetic_dtype, floating
from graphc.ir.expression import Expression, parse
from graphc.ir.types import DType

Named = tuple[tuple[str, Expression], ...]

LIGHT = (
    "add", "subtract", "multiply", "negative", "abs", "maximum", "minimum", "where", "less",
    "less_equal", "greater", "greater_equal", "equal", "not_equal",
)  # fmt: skip
"""Functions with low latency. A reduction of their results is latency-bound unless several vectors
are processed together."""
MOST_LIGHT = 12
"""Maximum number of instructions per element for processing several vectors together."""
SEVERAL = 4
"""Number of vectors that are processed together if few instructions are needed for each."""


@dataclass(frozen=True)
class Stage:
    """A stage with its expressions; `combined` has its reductions, and is empty for numbers of a
    line."""

    expressions: Named
    combined: tuple[Combined, ...] = ()


@dataclass(frozen=True)
class Structure:
    """A line program without its extents, strides and constants."""

    kept: int
    runs: int
    """The number of reduced axes outside the innermost one."""
    inputs: tuple[Lying, ...]
    outputs: tuple[Lying, ...]
    per_row: tuple[str, ...]
    """Operands that have one element per line."""
    stages: tuple[Stage, ...]
    computed: Named
    locals: tuple[tuple[str, DType], ...]
    finish: Named
    finish_dtypes: tuple[tuple[str, DType], ...]
    per_line: Named
    per_element: Named
    constants: tuple[str, ...]
    beside_none: DType

    def needed(self, expressions: Named) -> tuple[frozenset[str], Named]:
        """Return the names that expressions read, and the expressions of the computed frame if they
        read it."""
        names = frozenset[str]().union(*(e.names for _, e in expressions))
        if self.computed and self.computed[-1][0] in names:
            return names.union(*(e.names for _, e in self.computed)), self.computed
        return names, ()

    def together(self, expressions: Named) -> int:
        """Return the number of vectors that are processed together by these expressions."""
        every = [*expressions, *self.needed(expressions)[1]]
        instructions = [i for _, expression in every for i in expression.instructions]
        light = all(i.function in LIGHT for i in instructions)
        return SEVERAL if light and len(instructions) <= MOST_LIGHT else 1


def structure_of(
    program: Lines, kept: int, runs: int, known: Sequence[Lying], per_row: Sequence[str]
) -> Structure | None:
    """Return the structure of a program with these operands; None if NumPy must compute its
    functions."""
    count = len(program.inputs)
    computed: Named = ()
    locals: tuple[tuple[str, DType], ...] = ()
    if program.computed is not None:
        computed = _named(program.computed.expressions)
        locals = tuple(program.computed.locals.items())
    finish_dtypes = tuple((name, dtype) for name, (dtype, _) in program.finish.items())
    dtypes = {o.name: o.dtype for o in (*program.inputs, *program.outputs)}
    dtypes |= dict(locals) | dict(finish_dtypes)
    beside = floating(list(dtypes.values())) or arithmetic_dtype(program.dtype)
    stages: list[Stage] = []
    for stage in program.stages:
        expressions, combined = _named(stage.of), tuple[Combined, ...]()
        found = {name: dtype_of(e, dtypes, beside) for name, e in expressions}
        if isinstance(stage, Reduce):
            combined = tuple(Combined(n, stage.combine, found[n]) for n in stage.of)
            found = {each.name: each.dtype for each in combined}
        else:  # numbers may read earlier ones of their stage
            for name, e in expressions:
                dtypes[name] = dtype_of(e, dtypes, beside)
        if not all(supports(e, dtypes) for _, e in expressions):
            return None
        dtypes |= found if combined else {}
        stages.append(Stage(expressions, combined))
    structure = Structure(
        kept, runs, tuple(known[:count]), tuple(known[count:]), tuple(per_row), tuple(stages),
        computed, locals, _named({n: e for n, (_, e) in program.finish.items()}), finish_dtypes,
        _named(program.per_line), _named(program.per_element), tuple(program.constants), beside,
    )  # fmt: skip
    rest = (*computed, *structure.finish, *structure.per_line, *structure.per_element)
    return structure if all(supports(e, dtypes) for _, e in rest) else None


def _named(sources: Mapping[str, str | Expression]) -> Named:
    """Return parsed expressions with their names. Constants of the program are not substituted,
    since they are arguments of the kernel."""
    parsed = {name: parse(e) if isinstance(e, str) else e for name, e in sources.items()}
    return tuple((name, expression.specialize({})) for name, expression in parsed.items())


def constant_bits(program: Lines) -> list[int]:
    """Return the constants of a program as arguments of a kernel: their float64 bits as
    integers."""
    return [struct.unpack("<q", struct.pack("<d", n))[0] for n in program.constants.values()]


def row_axes(program: Lines) -> int:
    """Return the number of trailing reduced axes that form one row, by shapes and orders of axes
    alone.

    Two adjacent axes are merged if every operand has both, in the order of the frame, or neither.
    Whether an operand is contiguous across both is the planner's choice, which must not affect the
    order of a sum.
    """
    long = [axis for axis, extent in enumerate(program.shape) if extent > 1]
    operands = (*program.inputs, *program.outputs)
    count = 1
    while count < len(long):
        outer, inner = long[-count - 1], long[-count]
        if outer not in program.reduced or inner not in program.reduced:
            break
        if not all(_runs_on(o, program.shape, outer, inner) for o in operands):
            break
        count += 1
    return count


def _runs_on(operand: Operand, shape: Sequence[int], outer: int, inner: int) -> bool:
    above, below = operand.strides[outer], operand.strides[inner]
    if operand.buffer is None:
        return above == below * shape[inner]
    return (above > below > 0) or above == below == 0


@dataclass(frozen=True)
class View:
    """An operand of a row reduction, with strides along kept axes, runs and rows."""

    lying: Lying
    kept: tuple[int, ...]
    runs: tuple[int, ...]
    inner: int
    start: int
    axes: tuple[tuple[int, int], ...] = ()
    """Extents and strides of the axes of a row whose axes cannot be merged."""

    @property
    def numbers(self) -> list[int]:
        """The numbers of the operand, such as strides, that a kernel gets as arguments."""
        parts = [number for pair in self.axes for number in pair]
        return [self.start, *self.kept, *self.runs, self.inner, *parts]


def seen(
    operand: Operand, kept: Sequence[int], runs: Sequence[int], row: Sequence[tuple[int, int]]
) -> View:
    """View an operand with these strides along kept axes and runs, and these (extent, stride) pairs
    of the axes of its row."""
    extents, (whole,) = collapse(tuple(n for n, _ in row), [operand.on([s for _, s in row])])
    if len(extents) > 1:
        own = replace(lying(operand.on((2,))), step="broken", axes=len(extents))
        axes = tuple(zip(extents, whole.strides, strict=True))
        return View(own, tuple(kept), tuple(runs), 0, operand.start, axes)
    inner = whole.strides[0] if extents else 0
    return View(lying(operand.on((inner,))), tuple(kept), tuple(runs), inner, operand.start)
