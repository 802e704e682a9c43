"""Random programs: expressions over drawn numbers, independent of their implementation."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.codegen.node_calls import Program
from graphc.codegen.text.operands import Operand
from graphc.ir.expression import Expression
from graphc.ir.types import DType, float64

WORDS = 4
"""Number of random words of a Philox block."""


@dataclass(frozen=True)
class Drawn(Program):
    """Expressions over random integers, evaluated at each element of a contiguous output.

    A Philox block has four words, and serves the next four elements. If `dtype` is float64, it
    serves two, with two words each. An element gets 24 bits, or 53 bits of two words, as a float of
    `dtype`. `standard` has one expression for each element of a group of one or two elements, over
    the random numbers `first` and `second` of the group. `result` is an expression over the value
    of `standard`, called `drawn`, and the element of a contiguous input, if there is one.
    """

    op: str
    elements: int
    dtype: DType
    stream: int
    seed: Operand
    step: Operand
    inputs: tuple[Operand, ...]
    output: Operand
    standard: tuple[Expression, ...]
    result: Expression

    @property
    def lanes(self) -> int:
        """The number of output elements that one Philox block serves."""
        return WORDS // 2 if self.dtype == float64 else WORDS
