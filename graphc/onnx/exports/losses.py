"""Export of cross entropy, as a mean or per row."""

from __future__ import annotations

from typing import Any

from graphc.ir.graph import Node
from graphc.ir.types import DType, int64, uint8
from graphc.onnx.emission import Emission, Emitted, exports


def _labels(node: Node, on: Emission, index: int, name: str) -> str:
    """Cast labels to a dtype that ONNX accepts."""
    dtype = node.inputs[index].type.dtype
    return on.cast(name, dtype, int64) if dtype == uint8 else name


@exports("softmax_cross_entropy")
def _softmax_cross_entropy(node: Node, on: Emission, logits: str, labels: str) -> Emitted:
    labels, is_read = _labels(node, on, 1, labels), node.outputs[1] in on.read
    loss, *logarithms = on.several(
        "SoftmaxCrossEntropyLoss", [logits, labels], 1 + is_read, reduction="mean"
    )
    return [loss, on("Exp", logarithms[0]) if is_read else None]


@exports("cross_entropy")
def _cross_entropy(
    node: Node, on: Emission, logits: str, labels: str, *weights: str
) -> list[str | None]:
    a, classes, dtype = node.attributes, node.inputs[0].shape[1], node.inputs[0].type.dtype
    labels = _labels(node, on, 1, labels)
    ignored: dict[str, Any] = {"ignore_index": a.ignored[0]} if a.ignored else {}
    logarithms = on("LogSoftmax", logits, axis=1)
    losses = on(
        "NegativeLogLikelihoodLoss", logarithms, labels, *weights, reduction="none", **ignored
    )
    if a.smoothing:
        weighted = on("Mul", logarithms, *weights) if weights else logarithms
        spread = on("ReduceSum", weighted, on.integers(1), keepdims=0)
        spread = on("Mul", spread, on.number(-a.smoothing / classes, dtype))
        losses = on("Mul", losses, on.number(1 - a.smoothing, dtype))
        losses = on("Add", losses, _counted(node, on, labels, spread, dtype))
    return [losses, on("Exp", logarithms) if node.outputs[1] in on.read else None]


@exports("cross_entropy_with_slopes")
def _losses(node: Node, on: Emission, logits: str, labels: str) -> list[str | None]:
    """Return the losses; forward graphs have no use for the gradient."""
    losses = _cross_entropy(node, on, logits, labels)[0]
    assert losses is not None, "losses are always exported"
    return [on.cast(losses, node.inputs[0].type.dtype, node.outputs[0].type.dtype), None]


def _counted(node: Node, on: Emission, labels: str, numbers: str, dtype: DType) -> str:
    """Set the element of `numbers` to 0 for each label that is ignored."""
    if not node.attributes.ignored:
        return numbers
    return on("Where", _ignored(node, on, labels), on.number(0, dtype), numbers)


def _ignored(node: Node, on: Emission, labels: str) -> str:
    integer = node.inputs[node.op.inputs.index("labels")].type.dtype
    integer = int64 if integer == uint8 else integer
    return on("Equal", labels, on.number(node.attributes.ignored[0], integer))


@exports("label_weight")
def _label_weight(node: Node, on: Emission, labels: str, weights: str) -> str:
    given, dtype = node.inputs[0].type.dtype, node.output.type.dtype
    labels = _labels(node, on, 0, labels)
    if not node.attributes.ignored:
        return on("Gather", weights, labels, axis=0)
    integer = int64 if given == uint8 else given
    places = on("Where", _ignored(node, on, labels), on.number(0, integer), labels)
    return _counted(node, on, labels, on("Gather", weights, places, axis=0), dtype)
