"""Heads of networks: classifier and loss against the input ``labels``."""

from __future__ import annotations

from graphc.ir.builder import input, scope
from graphc.ir.graph import Value
from graphc.ops.cross_entropy import softmax_cross_entropy
from graphc.ops.matmul import linear
from graphc.ops.shape import reshape


def classified(logits: Value) -> Value:
    """Return the softmax cross entropy of logits (..., classes) and ``labels`` (...), int32."""
    labels = input("labels", logits.shape[:-1], dtype="int32")
    rows = reshape(logits, (-1, logits.shape[-1]))
    return softmax_cross_entropy(rows, reshape(labels, (-1,)))


def classifier(features: Value, classes: int) -> Value:
    """Apply a linear layer in scope ``output`` to features (batch, width); return the loss."""
    with scope("output"):
        logits = linear(features, classes)
    return classified(logits)
