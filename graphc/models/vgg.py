"""Very deep convolutional networks: Simonyan and Zisserman (2014)."""

from __future__ import annotations

from graphc.errors import OptionError
from graphc.ir.builder import input, scope
from graphc.ir.graph import Value
from graphc.models.heads import classifier
from graphc.ops.activation import relu
from graphc.ops.conv_layers import conv2d
from graphc.ops.matmul import linear
from graphc.ops.pool_axes import max_pool2d
from graphc.ops.random import dropout
from graphc.ops.shape import flatten

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Filters and convolutions of each stage (configuration D of the paper)."""


def vgg16(
    batch: int = 32,
    image: int = 224,
    classes: int = 1000,
    hidden: int = 4096,
    width: int = 64,
    drop: float = 0.5,
    dtype: str = "float32",
) -> Value:
    """VGG-16 (Simonyan and Zisserman, 2014), with 13 3x3 convolutions and three linear layers.

    `width` is the number of filters of the first stage, `hidden` the width of the linear layers.
    Inputs: ``x`` (batch, 3, image, image), image a multiple of 32, and ``labels`` (batch,), int32.
    """
    if image % 32:
        raise OptionError(
            "vgg16: the network halves the image five times, so image must be a multiple of 32, "
            f"got {image}"
        )
    h: Value = input("x", (batch, 3, image, image), dtype)
    for stage, (filters, count) in enumerate(STAGES):
        for number in range(count):
            with scope(f"stage{stage + 1}/conv{number + 1}"):
                h = relu(conv2d(h, filters * width // 64, 3, padding=1))
        h = max_pool2d(h, 2, 2)
    h = flatten(h)
    for number in range(2):
        with scope(f"linear{number + 1}"):
            h = dropout(relu(linear(h, hidden)), drop)
    return classifier(h, classes)
