"""BERT: Devlin, Chang, Lee and Toutanova (2018)."""

from __future__ import annotations

from graphc.ir.builder import input, parameter, scope
from graphc.ir.graph import Initial, Value
from graphc.models.heads import classified
from graphc.models.transformer import DEVIATION, Block, Size, check_positions, resolve_size
from graphc.ops.activation import gelu
from graphc.ops.elementwise import add
from graphc.ops.embedding import embedding, gather
from graphc.ops.matmul import affine, linear
from graphc.ops.norm import layer_norm
from graphc.ops.random import dropout
from graphc.ops.shape import reshape

SIZES = {"base": Size(12, 768, 12), "large": Size(24, 1024, 16)}
EPSILON = 1e-12


def bert(
    size: str = "base",
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    seq_len: int = 512,
    batch: int = 8,
    vocab: int = 30522,
    positions: int = 512,
    masked: int = 76,
    drop: float = 0.1,
    dtype: str = "float32",
    attention: str = "fused",
) -> Value:
    """BERT (Devlin et al., 2018) for masked-token prediction, with a tied output layer.

    The weight of the output layer is the token table. `size` is base or large; `layers`, `width`
    and `heads` override the values of that size. Sequences are not padded. `attention` is
    "fused" or "composed". Inputs, all int32: ``tokens`` and ``segments`` (0 or 1), both (batch,
    seq_len); ``places`` (batch, masked), the indices of masked tokens among all batch · seq_len;
    ``labels`` (batch, masked), the original tokens.
    """
    found = resolve_size("bert", SIZES, size, layers, width, heads)
    layers, width, heads = found.layers, found.width, found.heads
    check_positions("bert", positions, seq_len)
    normal = Initial("normal", DEVIATION)
    tokens = input("tokens", (batch, seq_len), dtype="int32")
    segments = input("segments", (batch, seq_len), dtype="int32")
    with scope("embedding"):
        table = parameter("token", (vocab, width), dtype, normal)
        place = parameter("position", (positions, width), dtype, normal)
        h = add(gather(table, tokens), place[:seq_len])
        h = add(h, embedding(segments, 2, width, dtype, DEVIATION, name="segment"))
        h = dropout(layer_norm(h, EPSILON), drop)
    block = Block(heads, 4 * width, drop=drop, epsilon=EPSILON, attention=attention)
    for layer in range(layers):
        with scope(f"layer{layer}"):
            h = block.norm_last(h)
    places = input("places", (batch, masked), dtype="int32")
    h = gather(reshape(h, (batch * seq_len, width)), places)
    with scope("output"):
        h = layer_norm(gelu(linear(h, width, name="transform", initial=normal)), EPSILON)
        return classified(affine(h, table, parameter("bias", (vocab,), dtype)))
