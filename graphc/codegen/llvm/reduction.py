"""Reduction of vectors to one number per line.

A lane sums a block of at most 256 elements in the dtype of its elements. Block sums of float32 are
added in float64, so a sum over millions of elements stays accurate. The shape of a line fixes the
order of all additions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from llvmlite import ir

from graphc.codegen.lines.program import Combine
from graphc.codegen.llvm.integers import extreme_integer
from graphc.codegen.llvm.lanes import (
    HELD,
    LANES,
    WORD,
    Builder,
    IrValue,
    constant,
    converted,
    splat,
    vector,
)
from graphc.codegen.llvm.scalar import extreme
from graphc.ir.types import DType, bool_, float32, float64, int32


@dataclass(frozen=True, slots=True)
class Combined:
    """One reduction of a stage: its name, its operation and its dtypes."""

    name: str
    combine: Combine
    source: DType
    """The dtype of the elements."""

    @property
    def dtype(self) -> DType:
        """The dtype of a lane's sum over a block, and of the result; bools are counted in int32."""
        return int32 if self.source == bool_ else self.source

    @property
    def total(self) -> DType:
        """The dtype in which the results of blocks are combined."""
        return float64 if self.combine == "Sum" and self.dtype == float32 else self.dtype

    def identity(self, dtype: DType) -> IrValue:
        """Return the identity element in every lane."""
        type = vector(HELD[dtype])
        if self.combine == "Sum":
            return constant(type, 0)
        lowest = self.combine == "Max"
        if dtype.kind == "float":
            return constant(type, -np.inf if lowest else np.inf)
        limits = np.iinfo(dtype.numpy)
        return constant(type, int(limits.min if lowest else limits.max))

    def take(self, builder: Builder, a: IrValue, value: IrValue) -> IrValue:
        """Return the vector of a block's partial results, combined with a vector of elements."""
        return self._of_two(builder, a, converted(builder, value, self.source, self.dtype))

    def fold(self, builder: Builder, total: IrValue, block: IrValue) -> IrValue:
        """Return the total of a line, combined with the vector of a block."""
        return self._of_two(builder, total, converted(builder, block, self.dtype, self.total))

    def merge(self, builder: Builder, parts: list[IrValue]) -> IrValue:
        """Combine vectors into one, pairwise; their number is a power of two."""
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self._of_two(builder, a, b) for a, b in pairs]
        return parts[0]

    def result(self, builder: Builder, total: IrValue) -> IrValue:
        """Return the result in every lane, by combining the lanes of the total pairwise."""
        apart = LANES // 2
        while apart:
            lanes = [(lane + apart) % LANES for lane in range(LANES)]
            chosen = ir.Constant(ir.VectorType(WORD, LANES), lanes)
            moved = builder.shuffle_vector(total, ir.Constant(total.type, ir.Undefined), chosen)
            total = self._of_two(builder, total, moved)
            apart //= 2
        # Of two zeros, lanes may have selected different signs.
        first = splat(builder, builder.extract_element(total, ir.Constant(WORD, 0)))
        return self.rounded(builder, first)

    def rounded(self, builder: Builder, total: IrValue) -> IrValue:
        """Round a total to the dtype of the result."""
        return converted(builder, total, self.total, self.dtype)

    def _of_two(self, builder: Builder, a: IrValue, b: IrValue) -> IrValue:
        is_float = self.dtype.kind == "float"
        if self.combine == "Sum":
            return builder.fadd(a, b) if is_float else builder.add(a, b)
        sign = ">=" if self.combine == "Max" else "<="
        return (extreme if is_float else extreme_integer)(builder, sign, a, b)
