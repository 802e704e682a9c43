"""Ops that can add their result to a running sum, see passes/running_sums.py: what they share.

Such an op has a last input ``*sum``, of the output's type, which is there when the attribute
``accumulate`` is set: beta = 1, in the words of a BLAS. The output may overwrite it.
"""

from __future__ import annotations

import numpy as np

from graphc.errors import ShapeError
from graphc.ir.op import Array, Recorder
from graphc.ir.types import TensorType


def check_sum(accumulate: bool, sum: tuple[TensorType, ...], y: TensorType) -> None:
    """Raise `ShapeError` unless there is a sum of type `y` exactly where `accumulate` is set."""
    if len(sum) != accumulate:
        raise ShapeError(
            f"accumulate={accumulate} takes {int(accumulate)} running sums, got {len(sum)}"
        )
    if sum and sum[0] != y:
        raise ShapeError(f"the running sum is {sum[0]}, but what is added to it is {y}")


def start_sum(record: Recorder, sum: tuple[Array, ...], y: Array) -> None:
    """Begin `y` at the running sum, which may lie there already, or at 0."""
    if not sum:
        record(y.fill, 0)
    elif not np.shares_memory(sum[0], y):
        record(np.copyto, y, sum[0])
