"""All ops, one class each, one file a family; importing this package registers them."""

from graphc.ir.ops import (
    activation,
    choice,
    conv,
    elementwise,
    embedding,
    loss,
    matmul,
    norm,
    pool,
    random,
    recurrent,
    reduce,
    resample,
    shape,
    softmax,
    update,
)

__all__ = [
    "activation",
    "choice",
    "conv",
    "elementwise",
    "embedding",
    "loss",
    "matmul",
    "norm",
    "pool",
    "random",
    "recurrent",
    "reduce",
    "resample",
    "shape",
    "softmax",
    "update",
]
