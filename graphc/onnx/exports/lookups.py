"""Ops that look things up by integer."""

from __future__ import annotations

import numpy as np

from graphc.ir.graph import Node
from graphc.ir.types import as_dtype, int64, uint8
from graphc.onnx.emission import Emission, exports


@exports("gather")
def _gather(node: Node, on: Emission, table: str, indices: str) -> str:
    return on("Gather", table, _numbers(node, on, 1, indices), axis=0)


@exports("one_hot")
def _one_hot(node: Node, on: Emission, indices: str) -> str:
    a = node.attributes
    values = on.constant(np.array([0, 1]).astype(as_dtype(a.dtype).numpy))
    depth = on.scalar_integer(a.classes)
    return on("OneHot", _numbers(node, on, 0, indices), depth, values, axis=-1)


def _numbers(node: Node, on: Emission, index: int, name: str) -> str:
    """Integers that ONNX looks up by."""
    dtype = node.inputs[index].type.dtype
    return on.cast(name, dtype, int64) if dtype == uint8 else name
