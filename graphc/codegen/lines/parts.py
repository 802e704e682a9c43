"""Two-stage reductions: each reduction over split lines becomes two programs.

Problem: if one worker sums a long line, the others are idle. If workers add to one sum
concurrently, the order of additions differs each time.

So a line is split into parts. The first program of a reduction treats each part as a separate line
and stores its result in scratch, one number per part. The second program treats those numbers as
the elements of a line and combines them in order. It also computes the numbers that the program
derives from the result, and stores in scratch the numbers that a later stage reads. Outputs with
one element per element of the frame are computed at the end, by an elementwise program that reads
these numbers.

The split depends on the shape alone. So the order of a sum is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from graphc.codegen.elementwise.program import Each
from graphc.codegen.lines.program import Lines, Numbers, Reduce
from graphc.codegen.node_calls import Scratch
from graphc.codegen.text.operands import Operand, row_major
from graphc.codegen.text.scalar import arithmetic_dtype
from graphc.ir.types import TensorType

Stages = Sequence[Reduce | Numbers]


@dataclass(frozen=True)
class Part:
    """A line program whose lines are split into `chunks` parts, each computed as a separate line.
    An output then has one number per part; the numbers of a line are consecutive.
    """

    lines: Lines
    chunks: int = 1


def in_parts(
    op: str, program: Lines, chunks: int, workspaces: int
) -> tuple[list[Part | Each], list[TensorType]]:
    """Return the programs that replace `program` if each line is split into `chunks` parts.

    The second result has the types of their scratch tensors, which are numbered from `workspaces`
    on.
    """
    splitter = _Splitter(op, program, chunks, workspaces)
    splitter.split()
    return splitter.programs, splitter.scratch


class _Splitter:
    """Builder of the programs that replace a line program with split lines, and their scratch."""

    def __init__(self, op: str, program: Lines, chunks: int, workspaces: int) -> None:
        self.op, self.program, self.chunks, self.workspaces = op, program, chunks, workspaces
        self.dtype = arithmetic_dtype(program.dtype)
        self.kept_shape = tuple(program.shape[axis] for axis in program.kept)
        self.programs: list[Part | Each] = []
        self.scratch: list[TensorType] = []
        self.numbers: dict[str, Scratch] = {}

    def split(self) -> None:
        """Add the programs of all stages and of the elementwise outputs."""
        program = self.program
        stages = list(program.stages)
        for position, stage in enumerate(stages):
            if not isinstance(stage, Reduce):
                continue
            # The numbers before the next reduction are computed in the program that ends this one.
            following = stages[position + 1 :]
            end = next((i for i, s in enumerate(following) if isinstance(s, Reduce)), None)
            own = [s for s in following[:end] if isinstance(s, Numbers)]
            rest = following[len(own) :]
            self.reduction(stage, own, rest)
        if program.per_element:
            self.programs.append(self.elements())

    def reduction(self, stage: Reduce, own: list[Numbers], rest: Stages) -> None:
        """Add the two programs of a reduction. Numbers that the stages in `rest` read are stored in
        scratch."""
        partials = {name: self.workspace(self.program.lines * self.chunks) for name in stage.of}
        program = self.program
        parts = Lines(
            program.shape,
            program.reduced,
            (*program.inputs, *self.known(program.shape, program.kept)),
            tuple(Operand(f"{n}_parts", self.dtype, (0,) * len(program.shape), workspace)
                  for n, workspace in partials.items()),
            (stage,),
            {f"{name}_parts": name for name in stage.of},
            constants=program.constants,
            computed=program.computed,
        )  # fmt: skip
        self.programs.append(Part(parts, self.chunks))
        self.programs.append(Part(self.finish(stage, own, partials, rest)))

    def finish(
        self, stage: Reduce, own: list[Numbers], partials: Mapping[str, Scratch], rest: Stages
    ) -> Lines:
        """Return the program that combines the parts of each line, with the numbers derived from
        them."""
        shape, kept = (*self.kept_shape, self.chunks), range(len(self.kept_shape))
        strides = row_major(shape)
        inputs = [
            Operand(f"{n}_parts", self.dtype, strides, workspace)
            for n, workspace in partials.items()
        ]
        earlier = self.known(shape, kept)
        names = [*stage.of, *(name for numbers in own for name in numbers.of)]
        later = self.read_by(rest)
        stored = {f"{name}_line": name for name in names if name in later}
        self.numbers |= {name: self.workspace(self.program.lines) for name in stored.values()}
        numbers = (*row_major(self.kept_shape), 0)
        outputs = [
            Operand(target, self.dtype, numbers, self.numbers[name])
            for target, name in stored.items()
        ]
        per_line = {} if rest else dict(self.program.per_line)
        outputs += [self.of_line(o) for o in self.program.outputs if o.name in per_line]
        reduce = Reduce(stage.combine, {name: f"{name}_parts" for name in stage.of})
        return Lines(
            shape, (len(shape) - 1,), (*inputs, *earlier), tuple(outputs), (reduce, *own),
            {**stored, **per_line}, constants=self.program.constants,
            finish={} if rest else self.program.finish,
        )  # fmt: skip

    def elements(self) -> Each:
        """Return the program that computes the elementwise outputs."""
        program = self.program
        known = self.known(program.shape, program.kept)
        expressions = {o: program.expression(source) for o, source in program.per_element.items()}
        read = frozenset().union(*(e.names for e in expressions.values()))
        inputs = [o for o in (*program.inputs, *known) if o.name in read]
        outputs = [o for o in program.outputs if o.name in expressions]
        return Each(self.op, program.shape, tuple(inputs), tuple(outputs), expressions)

    def known(self, shape: tuple[int, ...], kept: Iterable[int]) -> list[Operand]:
        """Return the numbers computed so far as operands over `shape`; the axes `kept` index the
        lines."""
        strides = dict(zip(kept, row_major(self.kept_shape), strict=True))
        spread = tuple(strides.get(axis, 0) for axis in range(len(shape)))
        return [Operand(n, self.dtype, spread, workspace) for n, workspace in self.numbers.items()]

    def read_by(self, rest: Stages) -> frozenset[str]:
        """Return the names that the stages in `rest`, or outputs stored after them, read."""
        program = self.program
        sources = [source for stage in rest for source in stage.of.values()]
        sources += [*program.per_element.values(), *(program.per_line.values() if rest else ())]
        return frozenset().union(*(program.expression(source).names for source in sources))

    def of_line(self, output: Operand) -> Operand:
        """Return an output with one element per line as an operand over (lines, parts)."""
        return output.on((*(output.strides[axis] for axis in self.program.kept), 0))

    def workspace(self, elements: int) -> Scratch:
        """Add a scratch tensor of `elements` elements, and return it."""
        self.scratch.append(TensorType((elements,), self.dtype))
        return Scratch(self.workspaces + len(self.scratch) - 1)
