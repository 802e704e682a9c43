"""The networks of step_time.py in torch eager, as a user of torch would write them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit


def mlp(layers: int, hidden: int, inputs: int, classes: int) -> nn.Module:
    """Linear and relu, `layers` times, then a classifier."""
    modules: list[nn.Module] = []
    for before, after in itertools.pairwise([inputs] + [hidden] * layers):
        modules += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*modules, nn.Linear(hidden, classes))


class PreactUnit(nn.Module):
    """A bottleneck unit that normalises before it convolves."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.parts = nn.Sequential()
        for inputs, outputs, window, step in (
            (before, width // 4, 1, 1),
            (width // 4, width // 4, 3, stride),
            (width // 4, width, 1, 1),
        ):
            conv = nn.Conv2d(inputs, outputs, window, step, window // 2, bias=False)
            self.parts.extend([nn.BatchNorm2d(inputs), nn.ReLU(inplace=True), conv])
        plain = before == width and stride == 1
        self.shortcut = nn.Identity() if plain else nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The unit's sum."""
        return self.parts(x) + self.shortcut(x)


def preact_resnet(depth: int, classes: int) -> nn.Module:
    """The network for images of 32 by 32; depth is 9n + 2."""
    modules: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
    width = 16
    for stage in range(3):
        for unit in range((depth - 2) // 9):
            stride = 2 if stage > 0 and unit == 0 else 1
            modules.append(PreactUnit(width, 64 * 2**stage, stride))
            width = 64 * 2**stage
    modules += [nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*modules, nn.Linear(width, classes))


class Lstm(nn.Module):
    """Torch's own LSTM over an embedded sequence, classified at each step."""

    def __init__(self, layers: int, hidden: int, inputs: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Linear(inputs, hidden, bias=False)
        self.cells = nn.LSTM(hidden, hidden, layers)
        self.output = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (seq_len · batch, classes) of x (seq_len, batch, inputs)."""
        return self.output(self.cells(self.embed(x))[0]).flatten(0, 1)


class GptBlock(nn.Module):
    """Causal attention and a feed-forward part, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's sums."""
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, 2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2 with its output layer tied to the token table."""

    def __init__(self, layers: int, width: int, heads: int, seq_len: int, vocab: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocab, width), nn.Embedding(seq_len, width)
        self.blocks = nn.Sequential(*(GptBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (batch · seq_len, vocab)."""
        x = self.token(tokens) + self.position.weight
        return F.linear(self.norm(self.blocks(x)), self.token.weight).flatten(0, 1)


class Trainer:
    """One step of a network on fixed feeds."""

    def __init__(self, network: nn.Module, optimizer: str, feeds: Sequence[torch.Tensor]) -> None:
        kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        self.network, (self.x, labels) = network, feeds
        self.labels = labels.long().flatten()
        self.updates = kinds[optimizer](network.parameters(), lr=1e-3)

    def __call__(self) -> None:
        """Forward, backward, update."""
        self.updates.zero_grad()
        F.cross_entropy(self.network(self.x), self.labels).backward()
        self.updates.step()
