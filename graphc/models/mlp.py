"""The multilayer perceptron of Rumelhart, Hinton and Williams (1986), with relu."""

from __future__ import annotations

import math

from graphc.ir.builder import input, mirror, scope
from graphc.ir.graph import Value
from graphc.models.heads import classified
from graphc.ops.activation import relu
from graphc.ops.matmul import linear


def mlp(
    layers: int = 4,
    hidden: int = 256,
    inputs: int = 784,
    classes: int = 10,
    batch: int = 64,
    dtype: str = "float32",
) -> Value:
    """Multilayer perceptron (Rumelhart et al., 1986) with relu and softmax cross entropy.

    Inputs of the program: ``x`` (batch, inputs) and ``labels`` (batch,), int32.
    """
    return classified(mlp_logits(layers, hidden, inputs, classes, batch, dtype))


def mlp_logits(
    layers: int, hidden: int, inputs: int, classes: int, batch: int, dtype: str = "float32"
) -> Value:
    """Return the logits of the network.

    All layers have mirror count 1, except every √layers-th one. This forms the segments of Alg. 1
    in Chen et al. (2016), so ``recompute="mirror"`` saves about √layers feature maps.
    """
    h: Value = input("x", (batch, inputs), dtype)
    segment = max(1, math.isqrt(layers))
    for index in range(layers):
        inside = (index + 1) % segment != 0
        with scope(f"layer{index}"), mirror(1 if inside else 0):
            h = relu(linear(h, hidden))
    with scope("output"):
        return linear(h, classes)
