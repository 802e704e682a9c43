"""The vision transformer: Dosovitskiy, Beyer, Kolesnikov, Weissenborn, Zhai et al. (2020)."""

from __future__ import annotations

from graphc.errors import OptionError
from graphc.ir.builder import input, parameter, scope
from graphc.ir.graph import Initial, Value
from graphc.models.heads import classifier
from graphc.models.transformer import DEVIATION, Block
from graphc.ops.concat import concat
from graphc.ops.conv_layers import conv2d
from graphc.ops.elementwise import add
from graphc.ops.norm import layer_norm
from graphc.ops.random import dropout
from graphc.ops.shape import broadcast_to, reshape, transpose


def vit(
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    inner: int | None = None,
    patch: int = 16,
    image: int = 224,
    classes: int = 1000,
    batch: int = 32,
    drop: float = 0.0,
    dtype: str = "float32",
    attention: str = "fused",
) -> Value:
    """Vision transformer (Dosovitskiy et al., 2020), by default ViT-B/16.

    An encoder over the patches of an image and a class token, which the classifier reads.

    `inner` is the hidden width of the feed-forward parts, by default four times `width`.
    `attention` is "fused" or "composed". Inputs: ``x`` (batch, 3, image, image) and
    ``labels`` (batch,), int32.
    """
    if image % patch:
        raise OptionError(
            f"vit: image must be a multiple of patch, got image={image} and patch={patch}"
        )
    count = (image // patch) ** 2
    normal = Initial("normal", DEVIATION)
    x = input("x", (batch, 3, image, image), dtype)
    with scope("embedding"):
        patches = reshape(conv2d(x, width, patch, patch, name="patch"), (batch, width, count))
        token = parameter("class_token", (1, 1, width), dtype)
        place = parameter("position", (1 + count, width), dtype, normal)
        first = broadcast_to(token, (batch, 1, width))
        h = dropout(add(concat([first, transpose(patches, (0, 2, 1))], axis=1), place), drop)
    block = Block(heads, inner or 4 * width, drop=drop, epsilon=1e-6, attention=attention)
    for layer in range(layers):
        with scope(f"layer{layer}"):
            h = block.norm_first(h)
    with scope("output"):
        h = layer_norm(h[:, 0], 1e-6)
    return classifier(h, classes)
