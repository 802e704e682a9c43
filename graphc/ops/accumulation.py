"""Shared parts of ops that can add their result to a running sum.

`graphc.passes.running_sums` uses them. If the attribute ``accumulate`` is set, such an op takes one
more input, ``sum``, of the output's type. It then returns sum + result, as a BLAS call with beta =
1 does, and may overwrite ``sum``.
"""

from __future__ import annotations

import numpy as np

from graphc.errors import ShapeError
from graphc.ir.op import Array, Recorder
from graphc.ir.types import TensorType


def check_sum(accumulate: bool, sum: tuple[TensorType, ...], y: TensorType) -> None:
    """Raise `ShapeError` unless `sum` is `(y,)` with `accumulate`, and empty without it."""
    if len(sum) != accumulate:
        raise ShapeError(
            f"accumulate={accumulate} needs {int(accumulate)} running sums, got {len(sum)}"
        )
    if sum and sum[0] != y:
        raise ShapeError(f"the running sum must have the type of the addend {y}, got {sum[0]}")


def start_sum(record: Recorder, sum: tuple[Array, ...], y: Array) -> None:
    """Copy the running sum to `y`, unless they share memory already.

    Without a sum, fill `y` with 0.
    """
    if not sum:
        record(y.fill, 0)
    elif not np.shares_memory(sum[0], y):
        record(np.copyto, y, sum[0])
