"""The heads of networks: a loss on the labels that the program is fed."""

from __future__ import annotations

from graphc.ir.builder import input, scope
from graphc.ir.graph import Value
from graphc.ops.cross_entropy import softmax_cross_entropy
from graphc.ops.matmul import linear
from graphc.ops.shape import reshape


def classified(logits: Value) -> Value:
    """Softmax cross entropy of logits (..., classes) against the input ``labels`` (...), int32."""
    labels = input("labels", logits.shape[:-1], dtype="int32")
    rows = reshape(logits, (-1, logits.shape[-1]))
    return softmax_cross_entropy(rows, reshape(labels, (-1,)))


def classifier(features: Value, classes: int) -> Value:
    """A linear layer under the scope ``output`` on features (batch, width), and the loss."""
    with scope("output"):
        logits = linear(features, classes)
    return classified(logits)
