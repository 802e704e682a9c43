"""Ops that mark sums over a batch, so that a training step combines them over all its batches.

A training step may have several batches of equal size: its micro-batches, and the batches of its
ranks. It averages their losses. For the mean over all rows of a batch this is exact. Two kinds of
losses need a correction:

- A mean over some rows, such as those with a label that is not ignored, divides by a count that
  depends on the batch. The count is replaced by the average count of all batches. The average loss
  is then the sum of all numerators over the sum of all counts.
- A sum over rows is multiplied by the number of batches, so that the average loss is the sum over
  all batches.

Loss functions mark such counts and sums with these ops; `graphc.passes.micro_batches` applies the
corrections.
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
            raise ShapeError(f"the sum over a batch must be a scalar, got {x}")
        return x


class BatchCount(BatchTotal):
    """y = x, the divisor of a mean over a batch: the number of counted rows, or their total
    weight."""

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
