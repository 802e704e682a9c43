"""Kernels of row reductions: a block for one long line, or for several short ones.

Problem: the threads that share a line must keep a device busy and read neighboring bytes. And the
bits of the result must not depend on the tensor's offset in the arena.

There are two forms, chosen by the shape alone. By rows: if the last axis is reduced, a team of
consecutive threads takes consecutive packs of one line. By columns: if it is kept, consecutive
threads take consecutive lines, and eight threads per line share its elements. In both forms, a
kernel runs the program's stages in order. In a reduction each thread first combines its own
elements, one after another. Then the team combines the threads' numbers in an order that depends on
its size alone (`across_row` and `across_column` in `prelude.cuh`). All of its threads get the
result for the next stage.

Invariant: the shape and the memory order of the frame tensor's axes decide which thread adds which
elements, and in which order. Its strides have no other influence. A plan gives a value the same
order under every strategy (`graphc/layouts.py`), so the bits of a result are the same, too.
Therefore the width of a pack follows from shape and dtype. If an address does not allow packs, the
same threads read the elements one by one in the same order.

All elements of a line are read before the first one is written. Only the thread that writes
an element may read it later. So an output may overwrite an operand with the same address and
strides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from graphc.codegen.lines.program import Combine, Lines, Numbers, Reduce
from graphc.codegen.node_calls import Launch
from graphc.codegen.text.access import WIDEST, Access, indented, lanes, parameters, starting_at
from graphc.codegen.text.grid import WARP
from graphc.codegen.text.kernel import ENTRY, named
from graphc.codegen.text.operands import (
    VECTOR_BYTES,
    Operand,
    collapse,
    decompose,
    index_type,
    offset,
)
from graphc.codegen.text.scalar import C_TYPES, ScalarCode, floating, literal
from graphc.ir.expression import Expression
from graphc.ir.types import DType, bool_, int32, int64

ROW_BLOCK = 128
"""Minimum threads per block; several short rows share a block."""
ROW_PACKS = 8
"""Number of packs per thread in a long row."""
LONGEST_TEAM = 512
"""Maximum number of threads per row."""
COLUMN_TEAM = 8
"""Number of threads per line if the last axis is kept."""


def line_kernel(op: str, program: Lines, chunks: int = 1) -> Launch:
    """Return one launch of a line program.

    If `chunks` exceeds 1, each line is split into that many parts, which are separate lines.
    Outputs then have one number per part, stored consecutively.
    """
    return _Writer(op, program, chunks).launch()


class _Writer:
    """Writer of the kernel of one program, which appends statements to `text`."""

    def __init__(self, op: str, program: Lines, chunks: int) -> None:
        self.op, self.program, self.chunks = op, program, chunks
        operands = [*program.inputs, *program.outputs]
        self.kept, self.kept_strides = _projected(program, operands, program.kept)
        self.reduced, self.reduced_strides = _projected(program, operands, program.reduced)
        self.group = _group(program)
        self.packs = program.length // self.group
        self.team = _row_team(self.packs) if program.by_rows else COLUMN_TEAM
        self.block = max(self.team, ROW_BLOCK) if program.by_rows else COLUMN_TEAM * WARP
        self.lines_per_block = self.block // self.team
        self.line_count = program.lines * chunks
        self.scalar = ScalarCode(floating([o.dtype for o in operands]))
        self.text: list[str] = []

    def launch(self) -> Launch:
        self.header()
        for stage in self.program.stages:
            if isinstance(stage, Reduce):
                self.reduce(stage)
            else:
                self.numbers(stage)
        self.store_lines()
        self.store_elements()
        program = self.program
        body = indented(self.text, 1)
        given = parameters(program.inputs, program.outputs)
        text = f'extern "C" __global__ void {ENTRY}({given}) {{\n{body}\n}}\n'
        operands = (*program.inputs, *program.outputs)
        arguments = tuple(o.buffer for o in operands if o.buffer is not None)
        grid = -(-self.line_count // self.lines_per_block)
        return Launch(named(self.op, text), arguments, grid, self.block)

    def header(self) -> None:
        """Write code that computes the line of a thread, and its rank in the line's team."""
        program, team, width = self.program, self.team, self.lines_per_block
        operands = [*program.inputs, *program.outputs]
        by_rows = program.by_rows
        lane, rank = (f"/ {team}u", f"% {team}u") if by_rows else (f"% {WARP}u", f"/ {WARP}u")
        self.text += [
            f"using Index = {index_type(program.shape, operands)};",
            f"const Index number = Index(blockIdx.x) * {width}u + threadIdx.x {lane};",
            f"const Index rank = threadIdx.x {rank};",
            f"const bool exists = number < {self.line_count}u;",
            # A team without a line runs along with the last one and stores nothing, because
            # barriers and shuffles need all threads of a block.
            f"const Index part = exists ? number : {self.line_count - 1}u;",
        ]
        self.text += self.range()
        split, self.line_indices = decompose("line", self.kept, "i")
        self.text += split
        for operand in program.inputs:  # operands with one element per line are read once
            if not any(self.reduced_strides[operand.name]):
                access = self.line_access(operand)
                self.text.append(access.load())
                self.declare(access)

    def range(self) -> list[str]:
        """Return statements that set `first` and `last`, the range of packs of a line that a team
        processes."""
        if self.chunks == 1:
            whole = f"const Index last = exists ? {self.packs}u : 0u;"
            return ["const Index line = part;", "const Index first = 0u;", whole]
        share, lines = -(-self.packs // self.chunks), self.program.lines
        if self.program.by_rows:
            line, chunk = f"part / {self.chunks}u", f"part % {self.chunks}u"
        else:  # consecutive threads take consecutive lines, whose elements are neighbors
            line, chunk = f"part % {lines}u", f"part / {lines}u"
        return [
            f"const Index line = {line};",
            f"const Index chunk = {chunk};",
            f"const Index first = chunk * {share}u;",
            f"const Index end = first + {share}u;",
            f"const Index last = !exists ? 0u : end < {self.packs}u ? end : {self.packs}u;",
        ]

    def line_access(self, operand: Operand) -> Access:
        """Return the access to an operand with one element per line: that of the thread's line."""
        at = offset(self.line_indices, self.kept_strides[operand.name])
        return Access(operand.on((0,)), starting_at(operand, at), 1)

    def declare(self, access: Access) -> None:
        self.scalar.declare(access.operand.name, access.operand.dtype, access.read())
        self.flush()

    def flush(self) -> None:
        """Append the pending statements of the scalar code to the kernel's text."""
        self.text += self.scalar.statements
        self.scalar.statements = []

    def reduce(self, stage: Reduce) -> None:
        """Write a reduction: each thread combines its own elements, then the team combines its
        threads."""
        combine = stage.combine
        expressions = {name: self.program.expression(source) for name, source in stage.of.items()}
        found: dict[str, DType] = {}

        def element(scalar: ScalarCode, writes: Sequence[Access]) -> None:
            for name, expression in expressions.items():
                value, dtype = scalar.compute(expression)
                found[name] = int32 if dtype == bool_ else dtype  # threads exchange no bools
                total = f"{name}_value"
                kind = C_TYPES[found[name]]
                scalar.statements.append(f"{total} = {combine}::combine({total}, ({kind}){value});")

        loop = self.loop(expressions.values(), {}, element)
        for name, dtype in found.items():
            start = _identity(combine, dtype)
            self.text.append(f"{C_TYPES[dtype]} {name}_value = {start};")
        self.text += loop
        across = "across_row" if self.program.by_rows else "across_column"
        for name, dtype in found.items():
            self.text.append(f"{name}_value = {across}<{combine}, {self.team}u>({name}_value);")
            self.scalar.variables[name] = (f"{name}_value", dtype)

    def numbers(self, stage: Numbers) -> None:
        """Write code that computes the numbers of a line in every thread of the team."""
        for name, source in stage.of.items():
            value, dtype = self.scalar.compute(self.program.expression(source))
            self.scalar.declare(name, dtype, value)
        self.flush()

    def store_lines(self) -> None:
        """Write code in which the first thread of a team stores the numbers of its line."""
        program = self.program
        if not program.per_line:
            return
        scalar = self.scalar.nested()
        for name, (dtype, each) in program.finish.items():
            scalar.define(name, dtype, program.expression(each))
        for operand in program.outputs:
            if operand.name not in program.per_line:
                continue
            expression = program.expression(program.per_line[operand.name])
            access = self.line_access(operand)
            at = f"line * {self.chunks}u + chunk" if self.chunks > 1 else access.at
            scalar.assign(expression, operand.dtype, f"{operand.name}[{at}]")
        inner = indented(scalar.statements, 1)
        self.text.append(f"if (exists && rank == 0) {{\n{inner}\n}}")

    def store_elements(self) -> None:
        """Write code in which each thread stores the results of its own elements."""
        program = self.program
        if not program.per_element:
            return
        expressions = {o: program.expression(source) for o, source in program.per_element.items()}

        def element(scalar: ScalarCode, writes: Sequence[Access]) -> None:
            for access in writes:
                operand = access.operand
                scalar.assign(expressions[operand.name], operand.dtype, access.target())

        self.text += self.loop(expressions.values(), expressions, element)

    def loop(
        self,
        expressions: Iterable[Expression],
        written: Mapping[str, Expression],
        element: Callable[[ScalarCode, Sequence[Access]], None],
    ) -> list[str]:
        """Return a thread's loop over its packs of a line; `element` writes the code for loaded
        elements."""
        names = frozenset().union(*(e.names for e in expressions))
        computed = self.program.computed
        made = computed.expressions if computed is not None and computed.name in names else {}
        names = names.union(*(e.names for e in made.values()))
        sources = [
            o for o in self.program.inputs
            if o.name in names and any(self.reduced_strides[o.name])
        ]  # fmt: skip
        targets = [o for o in self.program.outputs if o.name in written]
        whole = bool(self.reduced) and self.reduced[-1] % self.group == 0
        width = self.group if whole else 1
        split, indices = decompose("place", self.reduced, "e")
        reads = [self.element_access(o, indices, width) for o in sources]
        writes = [self.element_access(o, indices, width) for o in targets]
        scalar = self.scalar.nested()
        for access in reads:
            scalar.declare(access.operand.name, access.operand.dtype, access.read())
        if computed is not None:
            for name, expression in made.items():
                scalar.define(name, computed.locals[name], expression)
        element(scalar, writes)
        before = [*split, *(a.load() for a in reads), *(a.open() for a in writes)]
        after = [statement for access in writes for statement in access.close()]
        inner = lanes(self.group, whole, before, scalar.statements, after)
        head = f"for (Index item = first + rank; item < last; item += {self.team}u) {{"
        return [f"{head}\n{indented(inner, 1)}\n}}"]

    def element_access(self, operand: Operand, indices: Sequence[str], width: int) -> Access:
        """Return an access to `width` elements of an operand, at these indices of this thread's
        line."""
        kept, reduced = self.kept_strides[operand.name], self.reduced_strides[operand.name]
        at = offset([*self.line_indices, *indices], [*kept, *reduced])
        # A pack may start at any line, so all strides count for its alignment.
        strides = (*kept, *reduced) if reduced else (*kept, 0)
        return Access(operand.on(strides), starting_at(operand, at), width)


def _projected(
    program: Lines, operands: Sequence[Operand], axes: Sequence[int]
) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
    """Merge some axes of the frame into as few as possible; return extents and each operand's
    strides."""
    shape = tuple(program.shape[axis] for axis in axes)
    parts = [o.on([o.strides[axis] for axis in axes]) for o in operands]
    extents, collapsed = collapse(shape, parts)
    return extents, {o.name: o.strides for o in collapsed}


def _group(program: Lines) -> int:
    """Return the number of elements of a line that a thread processes at a time, by shape and dtype
    alone."""
    if not program.by_rows:
        return 1
    group = min(WIDEST, VECTOR_BYTES // program.dtype.itemsize)
    while program.length % group:
        group //= 2
    return group


def _row_team(packs: int) -> int:
    """Return the number of threads that share a row: a power of two, at least a warp."""
    wanted = -(-packs // ROW_PACKS)
    return min(LONGEST_TEAM, max(WARP, 1 << (wanted - 1).bit_length()))


def _identity(combine: Combine, dtype: DType) -> str:
    """Return C++ for the identity element of a reduction."""
    if combine == "Sum":
        return literal(0.0, dtype)
    if dtype.kind == "float":
        return literal(-math.inf if combine == "Max" else math.inf, dtype)
    largest = "9223372036854775807LL" if dtype == int64 else "2147483647"
    return f"-{largest} - 1" if combine == "Max" else largest
