"""Export of ops that index by integers."""

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


@exports("gather_nd")
def _gather_nd(node: Node, on: Emission, x: str, indices: str) -> str:
    places = on.cast(indices, node.inputs[1].type.dtype, int64)
    return on("GatherND", x, places, batch_dims=node.attributes.batch)


REDUCTIONS = {
    "scatter_nd": "none",
    "scatter_nd_add": "add",
    "scatter_nd_max": "max",
    "scatter_nd_min": "min",
    "scatter_nd_mul": "mul",
}


@exports(*REDUCTIONS)
def _scatter_nd(node: Node, on: Emission, x: str, indices: str, updates: str) -> str:
    places = on.cast(indices, node.inputs[1].type.dtype, int64)
    batch, shape = node.attributes.batch, node.inputs[1].shape
    if batch:  # ONNX has no batch axes here; prepend their indices
        numbers = np.moveaxis(np.indices(shape[:batch]), 0, -1)
        apart = numbers.reshape(*shape[:batch], *[1] * (len(shape) - batch - 1), batch)
        held = np.broadcast_to(apart, (*shape[:-1], batch)).astype(np.int64)
        places = on("Concat", on.constant(held), places, axis=-1)
    return on("ScatterND", x, places, updates, reduction=REDUCTIONS[node.op.name])


def _numbers(node: Node, on: Emission, index: int, name: str) -> str:
    """Cast indices to an integer dtype that ONNX accepts."""
    dtype = node.inputs[index].type.dtype
    return on.cast(name, dtype, int64) if dtype == uint8 else name
