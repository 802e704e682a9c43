"""Networks over sequences in plain torch.nn, each with the blocks that `checkpoint` would take."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit


class Recurrent(nn.Module):
    """nn.LSTM or nn.GRU over an embedded sequence, classified at each step."""

    def __init__(self, cells: type[nn.RNNBase], layers: int, hidden: int, vocab: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.cells = cells(hidden, hidden, layers)
        self.output = nn.Linear(hidden, vocab)

    @property
    def blocks(self) -> list[nn.Module]:
        """All layers, which torch runs in one call."""
        return [self.cells]

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.cells(self.embed(tokens))[0])


class GptBlock(nn.Module):
    """Causal attention and a feed-forward part with dropout, each behind a norm."""

    def __init__(self, width: int, heads: int, drop: float) -> None:
        super().__init__()
        self.heads, self.drop = heads, drop
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, 2)
        )
        drop = self.drop if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=drop)
        mixed = self.project(mixed.transpose(1, 2).flatten(2))
        x = x + F.dropout(mixed, self.drop, self.training)
        wide = F.gelu(self.widen(self.norm2(x)), approximate="tanh")
        return x + F.dropout(self.narrow(wide), self.drop, self.training)


class Gpt(nn.Module):
    """GPT-2 with its output layer tied to the token table."""

    def __init__(
        self, layers: int, width: int, heads: int, seq_len: int, vocab: int, drop: float = 0.1
    ) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocab, width), nn.Embedding(seq_len, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads, drop) for _ in range(layers))
        self.drop, self.norm = nn.Dropout(drop), nn.LayerNorm(width)
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.token(tokens) + self.position.weight)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token.weight)


class Encoder(nn.Module):
    """nn.TransformerEncoder, its layers as they come, with dropout."""

    def __init__(self, layers: int, width: int, heads: int, vocab: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.output = nn.Linear(width, vocab)

    @property
    def blocks(self) -> nn.ModuleList:
        """The encoder's layers."""
        return self.encoder.layers

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.encoder(self.token(tokens)))


class VitBlock(nn.Module):
    """nn.MultiheadAttention over patches and a feed-forward part, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.parts = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        normal = self.norm1(x)
        x = x + self.attention(normal, normal, normal, need_weights=False)[0]
        return x + self.parts(self.norm2(x))


class Vit(nn.Module):
    """Patches by a convolution, a class token, learned positions."""

    def __init__(
        self, layers: int, width: int, heads: int, image: int, patch: int, classes: int
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, (image // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList(VitBlock(width, heads) for _ in range(layers))
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x)[:, 0])


class MoeBlock(nn.Module):
    """A residual layer of experts, of which each token takes the two with the highest scores.

    Every expert has room for `capacity` tokens, so that all sizes are known before a step.
    """

    def __init__(self, width: int, experts: int, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, experts, bias=False)
        self.widen = nn.Parameter(torch.randn(experts, width, 4 * width) / width**0.5)
        self.narrow = nn.Parameter(torch.randn(experts, 4 * width, width) / (4 * width) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x)
        best, chosen = self.gate(tokens).topk(2, 1)
        scores = torch.zeros(len(x), len(self.widen), device=x.device, dtype=x.dtype)
        scores = scores.scatter(1, chosen, best.softmax(1))
        weights, rows = scores.t().topk(self.capacity, 1)
        wide = F.gelu(torch.bmm(tokens[rows], self.widen))
        mixed = torch.bmm(wide, self.narrow) * weights[:, :, None]
        return x.index_add(0, rows.flatten(), mixed.flatten(0, 1))


class Moe(nn.Module):
    """Embedded tokens through layers of experts."""

    def __init__(self, layers: int, width: int, experts: int, tokens: int, vocab: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        capacity = min(tokens, 5 * tokens // (2 * experts))
        self.blocks = nn.ModuleList(MoeBlock(width, experts, capacity) for _ in range(layers))
        self.output = nn.Linear(width, vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x)
        return self.output(x)


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions: the halves of each head turned by an angle that grows with position."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


class LlamaBlock(nn.Module):
    """Grouped attention with rotary positions, a gated feed-forward part, RMSNorm before each."""

    def __init__(self, width: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.head = width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, key_heads * self.head, bias=False)
        self.value = nn.Linear(width, key_heads * self.head, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        hidden = 8 * width // 3
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        normal = self.norm1(x)
        q, k, v = (
            product(normal).unflatten(2, (-1, self.head)).transpose(1, 2)
            for product in (self.query, self.key, self.value)
        )
        q, k = rotated(q, cosine, sine), rotated(k, cosine, sine)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        normal = self.norm2(x)
        return x + self.down(F.silu(self.gate(normal)) * self.up(normal))


class Llama(nn.Module):
    """A stack of such blocks; angles are buffers."""

    def __init__(
        self, layers: int, width: int, heads: int, key_heads: int, seq_len: int, vocab: int
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, key_heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.output = nn.Linear(width, vocab, bias=False)
        half = width // heads // 2
        angles = torch.arange(seq_len)[:, None] * 10_000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        return self.output(self.norm(x))
