"""Export of cumulative sums, argmax and argmin, top-k, and random numbers."""

from __future__ import annotations

from graphc.ir.graph import Node
from graphc.ir.types import as_dtype, int64
from graphc.onnx.emission import Emission, Emitted, element_type, exports


@exports("cumsum")
def _cumsum(node: Node, on: Emission, x: str) -> str:
    a = node.attributes
    axis = on.scalar_integer(a.axis)
    return on("CumSum", x, axis, exclusive=int(a.exclusive), reverse=int(a.reverse))


@exports("argmax", "argmin")
def _place(node: Node, on: Emission, x: str) -> str:
    a, op = node.attributes, {"argmax": "ArgMax", "argmin": "ArgMin"}[node.op.name]
    place = on(op, x, axis=a.axis, keepdims=0, select_last_index=int(a.last))
    return on.cast(place, int64, node.output.type.dtype)


@exports("top_k")
def _top_k(node: Node, on: Emission, x: str) -> Emitted:
    a = node.attributes
    y, places = on.several(
        "TopK", [x, on.integers(a.k)], 2, axis=a.axis, largest=int(a.largest), sorted=1
    )
    return [y, on.cast(places, int64, node.outputs[1].type.dtype)]


@exports("normal")
def _normal(node: Node, on: Emission, seed: str, step: str) -> str:
    a = node.attributes
    return on(
        "RandomNormal", shape=list(a.shape), dtype=element_type(as_dtype(a.dtype)), mean=a.mean,
        scale=a.scale, seed=float(a.stream),
    )  # fmt: skip


@exports("uniform")
def _uniform(node: Node, on: Emission, seed: str, step: str) -> str:
    a = node.attributes
    return on(
        "RandomUniform", shape=list(a.shape), dtype=element_type(as_dtype(a.dtype)), low=a.low,
        high=a.high, seed=float(a.stream),
    )  # fmt: skip
