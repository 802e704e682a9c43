"""Export of linear maps along one axis as weighted sums of gathered elements."""

from __future__ import annotations

import numpy as np

from graphc.ir.graph import Node
from graphc.ir.op import Array
from graphc.onnx.emission import Emission
from graphc.ops.axis_map import AxisMap, Table


def by_table(node: Node, on: Emission, x: str) -> str:
    """Emit a linear map along an axis as a sum over the taps of its table.

    A tap is one weighted element of the sum for each result.
    """
    op, a, dtype = node.op, node.attributes, node.output.type.dtype
    assert isinstance(op, AxisMap), f"{op.name} is no map along an axis"
    table = op.table(node)
    column = [1] * (node.output.type.rank - a.axis)

    def along_axis(numbers: Array) -> str:
        return on.constant(numbers.reshape(-1, *column[1:]))

    total = ""
    for tap in range(int(table.counts.max())):
        places, weights = _tap(table, tap)
        part = on("Gather", x, on.constant(places), axis=a.axis)
        if not table.copies:
            part = on("Mul", part, along_axis(weights.astype(dtype.numpy)))
        total = on("Add", total, part) if total else part
    if (table.counts > 0).all():
        return total
    return on("Where", along_axis(table.counts > 0), total, on.number(op.fill(a), dtype))


def _tap(table: Table, tap: int) -> tuple[Array, Array]:
    """Return the source index and the weight at this tap for each result.

    The weight is 0 for results that have fewer taps.
    """
    has = table.counts > tap
    at = np.where(has, table.starts[:-1] + tap, 0)
    return np.where(has, table.places[at], 0), np.where(has, table.weights[at], 0.0)
