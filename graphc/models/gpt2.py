"""GPT-2: Radford, Wu, Child, Luan, Amodei and Sutskever (2019)."""

from __future__ import annotations

import math

from graphc.ir.builder import input, parameter, scope
from graphc.ir.graph import Initial, Value
from graphc.models.heads import classified
from graphc.models.transformer import DEVIATION, Block, Size, check_positions, resolve_size
from graphc.ops.elementwise import add
from graphc.ops.embedding import gather
from graphc.ops.linear_cross_entropy import linear_cross_entropy
from graphc.ops.matmul import affine
from graphc.ops.norm import layer_norm
from graphc.ops.random import dropout

SIZES = {
    "small": Size(12, 768, 12),
    "medium": Size(24, 1024, 16),
    "large": Size(36, 1280, 20),
    "xl": Size(48, 1600, 25),
}


def gpt2(
    size: str = "small",
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    seq_len: int = 1024,
    batch: int = 4,
    vocab: int = 50257,
    positions: int = 1024,
    drop: float = 0.1,
    dtype: str = "float32",
    attention: str = "fused",
    loss_chunks: int = 1,
) -> Value:
    """GPT-2 (Radford et al., 2019) for next-token prediction, with a tied output layer.

    The weight of the output layer is the token table. `size` is small, medium, large or xl;
    `layers`, `width` and `heads` override the values of that size. `positions` is the length of the
    position table. With `attention="composed"`, memory grows quadratically instead of linearly in
    `seq_len`. With `loss_chunks` above 1, logits and their gradient take the bytes of one chunk of
    tokens. Inputs: ``tokens`` and ``labels`` (the tokens shifted by one), both (batch, seq_len),
    int32.
    """
    features, table = gpt2_features(
        size, layers, width, heads, seq_len, batch, vocab, positions, drop, dtype, attention
    )
    if loss_chunks == 1:
        return classified(output_layer(features, table))
    labels = input("labels", (batch, seq_len), dtype="int32")
    return linear_cross_entropy(features, table, labels, chunks=loss_chunks)


def output_layer(features: Value, table: Value) -> Value:
    """Return logits (..., vocab): the product of features (..., width) and the token table."""
    with scope("output"):
        return affine(features, table)


def gpt2_features(
    size: str,
    layers: int | None,
    width: int | None,
    heads: int | None,
    seq_len: int,
    batch: int,
    vocab: int,
    positions: int,
    drop: float,
    dtype: str,
    attention: str = "fused",
) -> tuple[Value, Value]:
    """Return the network's features (batch, seq_len, width), and the token table.

    They are the operands of `output_layer`.
    """
    found = resolve_size("gpt2", SIZES, size, layers, width, heads)
    layers, width, heads = found.layers, found.width, found.heads
    check_positions("gpt2", positions, seq_len)
    normal = Initial("normal", DEVIATION)
    tokens = input("tokens", (batch, seq_len), dtype="int32")
    with scope("embedding"):
        table = parameter("token", (vocab, width), dtype, normal)
        place = parameter("position", (positions, width), dtype, normal)
        h = dropout(add(gather(table, tokens), place[:seq_len]), drop)
    block = Block(
        heads, 4 * width, causal=True, gelu_form="tanh", drop=drop,
        project_deviation=DEVIATION / math.sqrt(2 * layers), attention=attention,
    )  # fmt: skip
    for layer in range(layers):
        with scope(f"layer{layer}"):
            h = block.norm_first(h)
    with scope("output"):
        return layer_norm(h), table
