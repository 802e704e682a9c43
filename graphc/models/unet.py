"""U-Net: Ronneberger, Fischer and Brox (2015)."""

from __future__ import annotations

from graphc.errors import OptionError
from graphc.ir.builder import input, scope
from graphc.ir.graph import Value
from graphc.models.heads import classified
from graphc.ops.activation import relu
from graphc.ops.batch_norm import batch_norm
from graphc.ops.concat import concat
from graphc.ops.conv_layers import conv2d, conv_transpose2d
from graphc.ops.pool_axes import max_pool2d
from graphc.ops.shape import transpose


def unet(
    batch: int = 4,
    image: int = 256,
    channels: int = 3,
    classes: int = 2,
    width: int = 64,
    depth: int = 4,
    dtype: str = "float32",
) -> Value:
    """U-Net (Ronneberger et al., 2015), with a skip connection at each of `depth` levels.

    It differs from the paper in two common ways. Convolutions are padded to preserve sizes, and
    they are followed by batch norm. Inputs: ``x`` (batch, channels, image, image), image a
    multiple of 2 ** depth, and ``labels`` (batch, image, image), int32: a class for each pixel.
    """
    if not 1 <= depth < image.bit_length() or image % 2**depth:
        raise OptionError(
            f"unet: the network halves the image depth={depth} times, so image must be a multiple "
            f"of 2**{depth}, got {image}"
        )
    h: Value = input("x", (batch, channels, image, image), dtype)
    bridges = []
    for level in range(depth):
        with scope(f"down{level}"):
            h = _twice(h, width * 2**level)
        bridges.append(h)
        h = max_pool2d(h, 2, 2)
    with scope("bottom"):
        h = _twice(h, width * 2**depth)
    for level in reversed(range(depth)):
        with scope(f"up{level}"):
            h = conv_transpose2d(h, width * 2**level, 2, stride=2)
            h = _twice(concat([bridges[level], h], axis=1), width * 2**level)
    with scope("output"):
        h = conv2d(h, classes, 1)
    return classified(transpose(h, (0, 2, 3, 1)))


def _twice(x: Value, filters: int) -> Value:
    for number in range(2):
        with scope(f"conv{number + 1}"):
            x = relu(batch_norm(conv2d(x, filters, 3, padding=1, bias=False)))
    return x
