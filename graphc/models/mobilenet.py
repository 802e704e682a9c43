"""MobileNetV2: Sandler, Howard, Zhu, Zhmoginov and Chen (2018)."""

from __future__ import annotations

from graphc.errors import OptionError
from graphc.ir.builder import input, scope
from graphc.ir.graph import Value
from graphc.models.heads import classifier
from graphc.ops.activation import relu6
from graphc.ops.batch_norm import batch_norm
from graphc.ops.conv_layers import conv2d
from graphc.ops.elementwise import add
from graphc.ops.pool_axes import global_average_pool2d
from graphc.ops.random import dropout

STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
    (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
"""Expansion, filters, units and first stride of each stage (table 2 of the paper)."""


def mobilenet_v2(
    batch: int = 32,
    image: int = 224,
    classes: int = 1000,
    width: float = 1.0,
    drop: float = 0.2,
    dtype: str = "float32",
) -> Value:
    """MobileNetV2 (Sandler et al., 2018), with inverted residuals and depthwise convolutions.

    `width` scales the filters, rounded to multiples of 8. Inputs: ``x`` (batch, 3, image, image)
    and ``labels`` (batch,), int32.
    """
    if not width > 0:
        raise OptionError(f"mobilenet_v2: width must be a number above 0, got {width!r}")
    h: Value = input("x", (batch, 3, image, image), dtype)
    with scope("stem"):
        h = relu6(_conv_norm(h, _rounded(32 * width), 3, 2))
    for stage, (expansion, filters, count, stride) in enumerate(STAGES):
        for unit in range(count):
            with scope(f"stage{stage + 1}/unit{unit}"):
                step = stride if unit == 0 else 1
                h = _unit(h, expansion, _rounded(filters * width), step)
    with scope("head"):
        h = relu6(_conv_norm(h, _rounded(1280 * max(1.0, width)), 1))
        h = dropout(global_average_pool2d(h), drop)
    return classifier(h, classes)


def _rounded(filters: float) -> int:
    """Round to a multiple of 8 of at least 8, and at least 90 % of `filters`."""
    nearest = max(8, int(filters + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * filters else nearest + 8


def _conv_norm(x: Value, filters: int, window: int, stride: int = 1, groups: int = 1) -> Value:
    padding = window // 2
    return batch_norm(conv2d(x, filters, window, stride, padding, groups=groups, bias=False))


def _unit(x: Value, expansion: int, filters: int, stride: int) -> Value:
    h, inner = x, x.shape[1] * expansion
    if expansion != 1:
        with scope("expand"):
            h = relu6(_conv_norm(h, inner, 1))
    with scope("depthwise"):
        h = relu6(_conv_norm(h, inner, 3, stride, groups=inner))
    with scope("project"):
        h = _conv_norm(h, filters, 1)
    return add(x, h) if stride == 1 and x.shape == h.shape else h
