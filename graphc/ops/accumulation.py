"""Shared parts of ops that can add their result to a running sum.

`graphc.passes.running_sums` uses them. Such an op has a last input ``*sum``, of the output's type,
if the attribute ``accumulate`` is set: beta = 1, in BLAS terms. The output may overwrite it.
"""

from __future__ import annotations

import numpy as np

from graphc.errors import ShapeError
from graphc.ir.op import Array, Recorder
from graphc.ir.types import TensorType


def check_sum(accumulate: bool, sum: tuple[TensorType, ...], y: TensorType) -> None:
    """Raise `ShapeError` unless there is a sum of type `y` exactly if `accumulate` is set."""
    if len(sum) != accumulate:
        raise ShapeError(
            f"accumulate={accumulate} needs {int(accumulate)} running sums, got {len(sum)}"
        )
    if sum and sum[0] != y:
        raise ShapeError(f"the running sum must have the type of the addend {y}, got {sum[0]}")


def start_sum(record: Recorder, sum: tuple[Array, ...], y: Array) -> None:
    """Initialize `y` with the running sum, which may be there already, or with 0."""
    if not sum:
        record(y.fill, 0)
    elif not np.shares_memory(sum[0], y):
        record(np.copyto, y, sum[0])
