"""Export of reductions over axes, and of softmax."""

from __future__ import annotations

from graphc.ir.graph import Node
from graphc.onnx.emission import Emission, exports

REDUCTIONS = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin"}


@exports(*REDUCTIONS)
def _reduction(node: Node, on: Emission, x: str) -> str:
    a = node.attributes
    if not a.axes:
        return on("Identity", x)
    return on(REDUCTIONS[node.op.name], x, on.integers(*a.axes), keepdims=int(a.keepdims))


@exports("square_sum")
def _square_sum(node: Node, on: Emission, x: str) -> str:
    x = on.cast(x, node.inputs[0].type.dtype, node.output.type.dtype)
    return on("ReduceSumSquare", x, keepdims=0)


@exports("softmax")
def _softmax(node: Node, on: Emission, x: str) -> str:
    return on("Softmax", x, axis=node.attributes.axis)


@exports("log_softmax")
def _log_softmax(node: Node, on: Emission, x: str) -> str:
    return on("LogSoftmax", x, axis=node.attributes.axis)
