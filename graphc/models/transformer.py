"""Shared parts of transformers: attention and feed-forward on x (batch, seq, width)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphc.errors import OptionError, choose
from graphc.ir.builder import scope
from graphc.ir.graph import Initial, Value
from graphc.ops.activation import gelu
from graphc.ops.attention import multi_head_attention
from graphc.ops.elementwise import add
from graphc.ops.matmul import linear
from graphc.ops.norm import layer_norm
from graphc.ops.random import dropout

DEVIATION = 0.02
"""The standard deviation of initial weights, as in GPT-2 and BERT."""


@dataclass(frozen=True, slots=True)
class Size:
    """The number of layers, the width and the number of heads of a transformer."""

    layers: int
    width: int
    heads: int


def resolve_size(
    network: str,
    sizes: Mapping[str, Size],
    size: str,
    layers: int | None,
    width: int | None,
    heads: int | None,
) -> Size:
    """Return the size called `size`, with overrides; raises `OptionError` for an unknown name."""
    named = sizes[choose(f"{network}: size", size, tuple(sizes))]
    return Size(layers or named.layers, width or named.width, heads or named.heads)


def check_positions(network: str, positions: int, seq_len: int) -> None:
    """Raise `OptionError` if the sequence is longer than the position table."""
    if seq_len > positions:
        raise OptionError(
            f"{network}: positions={positions} is smaller than seq_len={seq_len}; increase "
            "positions"
        )


@dataclass(frozen=True, slots=True)
class Block:
    """Builder of transformer blocks with shared settings.

    `project_deviation` is the initial standard deviation of layers that end a residual branch.
    """

    heads: int
    inner: int
    causal: bool = False
    gelu_form: str = "exact"
    drop: float = 0.0
    epsilon: float = 1e-5
    project_deviation: float = DEVIATION
    attention: str = "fused"
    """The attention implementation: "fused" or "composed"."""

    def attend(self, x: Value) -> Value:
        """Apply self-attention and its output projection."""
        width = x.shape[-1]
        if width % self.heads:
            raise OptionError(
                f"the width must be a multiple of the heads, got width={width}, heads={self.heads}"
            )
        with scope("attention"):
            qkv = linear(x, 3 * width, name="qkv", initial=Initial("normal", DEVIATION))
            mixed = multi_head_attention(qkv, self.heads, self.causal, self.drop, self.attention)
            return self.project(mixed, width)

    def feed_forward(self, x: Value) -> Value:
        """Apply two linear layers with gelu between them."""
        with scope("mlp"):
            h = linear(x, self.inner, name="widen", initial=Initial("normal", DEVIATION))
            return self.project(gelu(h, self.gelu_form), x.shape[-1])

    def project(self, x: Value, width: int) -> Value:
        drawn = Initial("normal", self.project_deviation)
        return dropout(linear(x, width, name="project", initial=drawn), self.drop)

    def norm_first(self, x: Value) -> Value:
        """Apply a pre-norm block, as in GPT-2."""
        x = add(x, self.attend(layer_norm(x, self.epsilon, name="norm1")))
        return add(x, self.feed_forward(layer_norm(x, self.epsilon, name="norm2")))

    def norm_last(self, x: Value) -> Value:
        """Apply a post-norm block, as in BERT."""
        x = layer_norm(add(x, self.attend(x)), self.epsilon, name="norm1")
        return layer_norm(add(x, self.feed_forward(x)), self.epsilon, name="norm2")
