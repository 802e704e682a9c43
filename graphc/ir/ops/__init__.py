"""All ops, one class each, one file a family; importing this package registers them."""

from graphc.ir.ops import (
    activation,
    elementwise,
    embedding,
    loss,
    matmul,
    reduce,
    shape,
    softmax,
    update,
)

__all__ = [
    "activation",
    "elementwise",
    "embedding",
    "loss",
    "matmul",
    "reduce",
    "shape",
    "softmax",
    "update",
]
