"""Fifteen modules as people write them, whose forward takes inputs and targets and gives the loss.

`MODULES[name](size)` is a module in training mode and the arguments of one step, both drawn from a
fixed seed. A "small" step takes a fraction of a second and a few MiB; a "full" one up to three
seconds on two cores, with activations of 50 to 400 MiB.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit
from torch_cases import convolutional, sequences

Size = Literal["small", "full"]
Case = tuple[nn.Module, tuple[Tensor, ...]]


class Classified(nn.Module):
    """A network and the cross entropy of its logits, whose last dimension is that of classes."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = self.network(x)
        return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def seeded(make: Callable[[Size], Case]) -> Callable[[Size], Case]:
    """The same numbers at every call, and the caller's random state as it was."""

    def drawn(size: Size) -> Case:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return make(size)

    return drawn


def images(batch: int, side: int, classes: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, side, side), torch.randint(classes, (batch,))


def tokens(vocab: int, *shape: int) -> tuple[Tensor, Tensor]:
    drawn = torch.randint(vocab, shape)
    return drawn, torch.randint(vocab, shape)


def mlp(size: Size) -> Case:
    layers, hidden, batch = {"small": (6, 64, 512), "full": (24, 512, 2048)}[size]
    blocks = [
        nn.Sequential(nn.Linear(before, after), nn.ReLU())
        for before, after in itertools.pairwise([128] + [hidden] * layers)
    ]
    network = convolutional.Staged(nn.Identity(), blocks, nn.Linear(hidden, 10))
    return Classified(network), (torch.randn(batch, 128), torch.randint(10, (batch,)))


def resnet50(size: Size) -> Case:
    depths, width, batch, side = {
        "small": ((1, 1, 1, 1), 16, 2, 64),
        "full": ((3, 4, 6, 3), 64, 16, 96),
    }[size]
    return Classified(convolutional.resnet(depths, width, 100)), images(batch, side, 100)


def preact_resnet(size: Size) -> Case:
    depth, batch, side = {"small": (11, 4, 16), "full": (47, 32, 32)}[size]
    return Classified(convolutional.preact_resnet(depth, 10)), images(batch, side, 10)


def lstm(size: Size) -> Case:
    return recurrent(nn.LSTM, size)


def gru(size: Size) -> Case:
    return recurrent(nn.GRU, size)


def recurrent(cells: type[nn.RNNBase], size: Size) -> Case:
    layers, hidden, steps, batch, vocab = {
        "small": (1, 48, 6, 16, 50),
        "full": (2, 384, 48, 64, 1000),
    }[size]
    network = sequences.Recurrent(cells, layers, hidden, vocab)
    return Classified(network), tokens(vocab, steps, batch)


def gpt(size: Size) -> Case:
    layers, width, heads, steps, batch, vocab = {
        "small": (3, 32, 2, 32, 4, 64),
        "full": (12, 256, 4, 128, 8, 512),
    }[size]
    network = sequences.Gpt(layers, width, heads, steps, vocab)
    return Classified(network), tokens(vocab, batch, steps)


def encoder(size: Size) -> Case:
    layers, width, heads, steps, batch, vocab = {
        "small": (2, 32, 2, 32, 4, 64),
        "full": (6, 256, 4, 128, 12, 512),
    }[size]
    network = sequences.Encoder(layers, width, heads, vocab)
    return Classified(network), tokens(vocab, batch, steps)


def vit(size: Size) -> Case:
    layers, width, heads, side, patch, batch = {
        "small": (2, 32, 2, 32, 8, 8),
        "full": (10, 192, 3, 64, 8, 24),
    }[size]
    network = sequences.Vit(layers, width, heads, side, patch, 100)
    return Classified(network), images(batch, side, 100)


def unet(size: Size) -> Case:
    levels, width, side, batch = {"small": (3, 8, 32, 2), "full": (4, 24, 96, 6)}[size]
    x, _ = images(batch, side, 4)
    targets = torch.randint(4, (batch, side, side))
    return Classified(convolutional.UNet(levels, width, 4)), (x, targets)


def vae(size: Size, *, feeds_noise: bool = False) -> Case:
    """Its targets are its inputs; the noise is drawn inside, or an argument where it is fed."""
    width, latent, side, batch = {"small": (8, 16, 16, 16), "full": (48, 64, 32, 192)}[size]
    x = torch.rand(batch, 3, side, side)
    noise = (torch.randn(batch, latent),) if feeds_noise else ()
    return convolutional.Vae(width, latent, side), (x, *noise)


def mixture_of_experts(size: Size) -> Case:
    layers, width, experts, count, vocab = {
        "small": (2, 32, 4, 128, 64),
        "full": (4, 192, 8, 1024, 512),
    }[size]
    return Classified(sequences.Moe(layers, width, experts, count, vocab)), tokens(vocab, count)


def convnext(size: Size) -> Case:
    depths, width, side, batch = {
        "small": ((1, 1), 16, 32, 4),
        "full": ((2, 2, 6, 2), 48, 96, 12),
    }[size]
    return Classified(convolutional.convnext(depths, width, 100)), images(batch, side, 100)


def llama(size: Size) -> Case:
    layers, width, heads, steps, batch, vocab = {
        "small": (2, 32, 4, 32, 4, 64),
        "full": (8, 256, 8, 128, 8, 512),
    }[size]
    network = sequences.Llama(layers, width, heads, heads // 2, steps, vocab)
    return Classified(network), tokens(vocab, batch, steps)


def mobilenet(size: Size) -> Case:
    stages, side, batch = {
        "small": (((16, 1, 1), (24, 2, 2)), 32, 4),
        "full": (((16, 1, 1), (24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1)), 96, 12),
    }[size]
    return Classified(convolutional.mobilenet(stages, 100)), images(batch, side, 100)


def densenet(size: Size) -> Case:
    depths, growth, side, batch = {"small": ((3, 3), 8, 16, 4), "full": ((8, 8, 8), 12, 32, 16)}[
        size
    ]
    return Classified(convolutional.DenseNet(depths, growth, 10)), images(batch, side, 10)


MODULES: dict[str, Callable[[Size], Case]] = {
    "MLP": seeded(mlp),
    "ResNet-50": seeded(resnet50),
    "preact-ResNet": seeded(preact_resnet),
    "LSTM": seeded(lstm),
    "GRU": seeded(gru),
    "GPT": seeded(gpt),
    "TransformerEncoder": seeded(encoder),
    "ViT": seeded(vit),
    "U-Net": seeded(unet),
    "VAE": seeded(vae),
    "mixture of experts": seeded(mixture_of_experts),
    "ConvNeXt": seeded(convnext),
    "Llama": seeded(llama),
    "MobileNet": seeded(mobilenet),
    "DenseNet": seeded(densenet),
}
