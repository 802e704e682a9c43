"""The networks of step_time.py in torch, as a user of torch would write them.

Those that tests/torch_cases has are taken from there; `NETWORKS` makes each from the sizes that
graphc's network of the same name takes.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from torch_cases.convolutional import (
    InvertedResidual,
    Staged,
    conv_norm,
    pooled_head,
    preact_resnet,
    resnet,
)
from torch_cases.sequences import Gpt, Vit


def mlp(layers: int, hidden: int, inputs: int, classes: int) -> nn.Module:
    """Linear and relu, `layers` times, then a classifier."""
    modules: list[nn.Module] = []
    for before, after in itertools.pairwise([inputs] + [hidden] * layers):
        modules += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*modules, nn.Linear(hidden, classes))


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


MOBILENET_STAGES = (
    (24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1),
)  # fmt: skip
"""Width, units and first stride of the stages whose units expand."""


def mobilenet_v2(classes: int) -> Staged:
    """MobileNetV2 without dropout."""
    stem = nn.Sequential(*conv_norm(3, 32, 3, 2), nn.ReLU6(inplace=True))
    filtered = [*conv_norm(32, 32, 3, groups=32), nn.ReLU6(inplace=True)]
    blocks: list[nn.Module] = [nn.Sequential(*filtered, *conv_norm(32, 16, 1))]
    before = 16
    for width, units, stride in MOBILENET_STAGES:
        for unit in range(units):
            blocks.append(InvertedResidual(before, width, stride if unit == 0 else 1, 6))
            before = width
    widened = [*conv_norm(before, 1280, 1), nn.ReLU6(inplace=True)]
    return Staged(stem, blocks, pooled_head(1280, classes, *widened))


def vit(layers: int, width: int, heads: int, image: int, patch: int, classes: int) -> Vit:
    """The vision transformer, whose norms add 1e-6 to the variance."""
    network = Vit(layers, width, heads, image, patch, classes)
    for module in network.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6
    return network


class Bert(nn.Module):
    """Torch's own encoder layers behind BERT's embedding, read out at masked places."""

    def __init__(self, layers: int, width: int, heads: int, positions: int, vocab: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocab, width), nn.Embedding(positions, width)
        self.segment, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, 1e-12)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", layer_norm_eps=1e-12, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.transform = nn.Linear(width, width)
        self.output_norm = nn.LayerNorm(width, 1e-12)
        self.bias = nn.Parameter(torch.zeros(vocab))
        for table in (self.token, self.position, self.segment):
            nn.init.normal_(table.weight, std=0.02)

    def forward(
        self, tokens: torch.Tensor, segments: torch.Tensor, places: torch.Tensor
    ) -> torch.Tensor:
        """Logits (batch, masked, vocab)."""
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]] + self.segment(segments)
        x = self.encoder(self.norm(x)).flatten(0, 1)[places]
        return F.linear(self.output_norm(F.gelu(self.transform(x))), self.token.weight, self.bias)


def _takes(make: Callable[..., nn.Module], *names: str) -> Callable[[Mapping[str, Any]], nn.Module]:
    return lambda sizes: make(*(sizes[name] for name in names))


TRANSFORMER = ("layers", "width", "heads")
NETWORKS: dict[str, Callable[[Mapping[str, Any]], nn.Module]] = {
    "mlp": _takes(mlp, "layers", "hidden", "inputs", "classes"),
    "preact_resnet": _takes(preact_resnet, "depth", "classes"),
    "resnet": lambda sizes: resnet(sizes["units"], 64, sizes["classes"]),
    "mobilenet_v2": _takes(mobilenet_v2, "classes"),
    "lstm": _takes(Lstm, "layers", "hidden", "inputs", "classes"),
    "gpt2": _takes(lambda *sizes: Gpt(*sizes, drop=0.0), *TRANSFORMER, "seq_len", "vocab"),
    "bert": _takes(Bert, *TRANSFORMER, "positions", "vocab"),
    "vit": _takes(vit, *TRANSFORMER, "image", "patch", "classes"),
}


class Trainer:
    """One step of a network on fixed feeds; inputs are given in their order, then labels.

    As it is run eagerly the optimizer is torch's default form; with `compiled`, inductor has made
    the loss and its gradient, and the optimizer is torch's fused one.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: str,
        feeds: Mapping[str, torch.Tensor],
        compiled: bool = False,
    ) -> None:
        kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        self.network = network
        self.inputs = [feeds[name] for name in feeds if name != "labels"]
        self.labels = feeds["labels"].long().flatten()
        self.updates = kinds[optimizer](network.parameters(), lr=1e-3, fused=compiled or None)
        self.loss = torch.compile(self._loss) if compiled else self._loss

    def _loss(self) -> torch.Tensor:
        logits = self.network(*self.inputs)
        return F.cross_entropy(logits.flatten(0, -2), self.labels)

    def __call__(self) -> torch.Tensor:
        """Forward, backward, update; the loss."""
        self.updates.zero_grad()
        loss = self.loss()
        loss.backward()
        self.updates.step()
        return loss.detach()
