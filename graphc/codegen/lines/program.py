"""Line programs: declarative row reductions over a tensor, independent of their implementation.

A frame is a shape of which some axes are reduced. The elements with the same index on the other
axes form a line. With the shape (2, 3, 4) and axis 1 reduced, there are eight lines of three
elements. A program describes the computation for each line by scalar expressions. These are
reductions over its elements, numbers computed from them, and outputs for the line or for each of
its elements. Softmax is a maximum, a sum of exp(x - peak), and an output exp(x - peak) / total for
each element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from graphc.codegen.node_calls import Program
from graphc.codegen.text.operands import Operand, order_of
from graphc.ir.expression import Expression, parse
from graphc.ir.types import DType

Combine = Literal["Sum", "Max", "Min"]


@dataclass(frozen=True, slots=True)
class Reduce:
    """A stage of reductions in one pass over the elements of a line: an expression for each
    name."""

    combine: Combine
    of: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Numbers:
    """A stage that computes numbers of a line from earlier numbers: an expression for each name."""

    of: Mapping[str, str]


@dataclass(frozen=True)
class Computed:
    """A tensor over the whole frame that is computed where it is read, and not stored.

    The last of `expressions` gives the tensor; the others give intermediate values. All have a
    dtype in `locals`, to which they are rounded. `order` lists the axes that the stored tensor
    would have, from the outermost in memory to the innermost. So sums have the same bits as sums of
    the stored tensor.
    """

    name: str
    order: tuple[int, ...]
    expressions: Mapping[str, Expression]
    locals: Mapping[str, DType]

    @property
    def dtype(self) -> DType:
        return self.locals[self.name]


@dataclass(frozen=True)
class Lines:
    """A computation along the lines of a frame.

    Operands have strides over `shape`. The frame's tensor is `computed` if there is one, else the
    first input. Only reductions read `computed`.

    `per_line` and `per_element` give the expression of each output, stored after all stages.
    `constants` are names for numbers. The expressions in `finish` are computed before `per_line`,
    each rounded to its dtype.
    """

    shape: tuple[int, ...]
    reduced: tuple[int, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    stages: tuple[Reduce | Numbers, ...]
    per_line: Mapping[str, str | Expression] = field(default_factory=dict)
    per_element: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
    computed: Computed | None = None
    finish: Mapping[str, tuple[DType, Expression]] = field(default_factory=dict)

    @property
    def dtype(self) -> DType:
        """The dtype of the frame's tensor."""
        return self.inputs[0].dtype if self.computed is None else self.computed.dtype

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(i for i in range(len(self.shape)) if i not in self.reduced)

    @property
    def lines(self) -> int:
        """The number of lines of the frame."""
        return math.prod(self.shape[axis] for axis in self.kept)

    @property
    def length(self) -> int:
        """The number of elements of a line."""
        return math.prod(self.shape[axis] for axis in self.reduced)

    @property
    def by_rows(self) -> bool:
        """True if the last axis with more than one element is reduced."""
        long = [axis for axis, extent in enumerate(self.shape) if extent > 1]
        return not long or long[-1] in self.reduced

    def in_memory_order(self) -> Lines:
        """Return the same program with the frame's axes in the memory order of its tensors."""
        axes, computed = tuple(range(len(self.shape))), self.computed
        if computed is None:
            order = order_of(self.shape, (*self.inputs, *self.outputs))
        else:
            order, computed = computed.order, replace(computed, order=axes)
        if order == axes:
            return self
        return replace(
            self,
            computed=computed,
            shape=tuple(self.shape[axis] for axis in order),
            reduced=tuple(i for i, axis in enumerate(order) if axis in self.reduced),
            inputs=tuple(o.permuted(order) for o in self.inputs),
            outputs=tuple(o.permuted(order) for o in self.outputs),
        )

    def expression(self, source: str | Expression) -> Expression:
        """Return an expression of the program with its constants substituted."""
        parsed = parse(source) if isinstance(source, str) else source
        return parsed.specialize(self.constants)


@dataclass(frozen=True)
class Along(Program):
    """A line program that computes a part of a node; `op` is the prefix of its kernels' names.

    Few long lines may be split into parts, unless they stay `whole`.
    """

    op: str
    lines: Lines
    whole: bool = False
