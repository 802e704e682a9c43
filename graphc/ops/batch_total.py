"""Marks of sums over the batch, so that a training step combines them over all its batches.

A training step averages the losses of its batches: those of micro-batches, and those of ranks. A
mean over all rows of equal batches is the mean of their means. Two kinds of losses need more:

- A mean over counted rows divides by a count that depends on the batch. With the mean of the counts
  of all batches in its place, the mean of the losses is the sum of all numerators over the sum of
  all counts.
- A sum is multiplied by the number of batches, so that the mean is the sum over all of them.

Losses mark both here; `graphc.passes.micro_batches` does the rest.
"""

from __future__ import annotations

from typing import Any

from graphc.errors import ShapeError
from graphc.ir.builder import apply
from graphc.ir.graph import Value
from graphc.ir.types import TensorType
from graphc.ops.changed_state import Carrier


class BatchTotal(Carrier):
    """Base: y = x, a scalar that sums over the rows of a batch."""

    inputs = ("x",)

    def infer(self, attributes: Any, x: TensorType) -> TensorType:
        if x.shape != ():
            raise ShapeError(f"the total of a batch is a scalar, got {x}")
        return x


class BatchCount(BatchTotal):
    """y = x, the number of rows, or their weight, by which a mean divides."""

    name = "batch_count"


class BatchSum(BatchTotal):
    """y = x, a loss that is the sum of its rows."""

    name = "batch_sum"


def batch_count(x: Value) -> Value:
    """Return x, marked as the divisor of a mean over the batch."""
    return apply(BatchCount, x).output


def batch_sum(x: Value) -> Value:
    """Return x, marked as a loss that sums over the batch."""
    return apply(BatchSum, x).output
