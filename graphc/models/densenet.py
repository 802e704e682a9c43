"""Densely connected networks: Huang, Liu, van der Maaten and Weinberger (2016)."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.ir.builder import input, scope
from graphc.ir.graph import Value
from graphc.models.heads import classifier
from graphc.ops.activation import relu
from graphc.ops.batch_norm import batch_norm
from graphc.ops.concat import concat
from graphc.ops.conv_layers import conv2d
from graphc.ops.pool_axes import average_pool2d, global_average_pool2d, max_pool2d


def densenet121(
    batch: int = 32,
    image: int = 224,
    classes: int = 1000,
    growth: int = 32,
    blocks: Sequence[int] = (6, 12, 24, 16),
    dtype: str = "float32",
) -> Value:
    """DenseNet-121 (Huang et al., 2016), whose layers read all earlier layers of their block.

    A layer consists of norm, relu, 1x1 convolution, norm, relu and 3x3 convolution, and adds
    `growth` channels. Transitions between blocks halve channels and extents. Inputs: ``x``
    (batch, 3, image, image) and ``labels`` (batch,), int32.
    """
    h: Value = input("x", (batch, 3, image, image), dtype)
    with scope("stem"):
        h = max_pool2d(relu(batch_norm(conv2d(h, 2 * growth, 7, 2, 3, bias=False))), 3, 2, 1)
    for block, layers in enumerate(blocks):
        for layer in range(layers):
            with scope(f"block{block + 1}/layer{layer + 1}"):
                h = concat([h, _layer(h, growth)], axis=1)
        if block + 1 < len(blocks):
            with scope(f"transition{block + 1}"):
                h = conv2d(relu(batch_norm(h)), h.shape[1] // 2, 1, bias=False)
                h = average_pool2d(h, 2, 2)
    with scope("output"):
        h = global_average_pool2d(relu(batch_norm(h)))
    return classifier(h, classes)


def _layer(x: Value, growth: int) -> Value:
    with scope("squeeze"):
        h = conv2d(relu(batch_norm(x)), 4 * growth, 1, bias=False)
    with scope("window"):
        return conv2d(relu(batch_norm(h)), growth, 3, padding=1, bias=False)
