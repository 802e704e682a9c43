"""Networks of convolutions in plain torch.nn, each with the blocks that `checkpoint` would take.

`blocks` holds modules whose arguments and result are tensors, in the order of their calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit


def conv_norm(before: int, width: int, window: int, stride: int = 1, groups: int = 1) -> list:
    """A convolution without bias and its batch norm."""
    conv = nn.Conv2d(before, width, window, stride, window // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(width)]


class Staged(nn.Module):
    """Stem, blocks, head."""

    def __init__(self, stem: nn.Module, blocks: Sequence[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = stem, nn.ModuleList(blocks), head

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def pooled_head(width: int, classes: int, *before: nn.Module) -> nn.Sequential:
    """Mean over the image and a classifier."""
    return nn.Sequential(*before, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


class Bottleneck(nn.Module):
    """The residual unit of ResNet-50; `inplace` relus as torchvision has them."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.parts = nn.Sequential(
            *conv_norm(before, width, 1),
            nn.ReLU(inplace=True),
            *conv_norm(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *conv_norm(width, 4 * width, 1),
        )
        is_plain = before == 4 * width and stride == 1
        self.shortcut = nn.Sequential(
            *([] if is_plain else conv_norm(before, 4 * width, 1, stride))
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.parts(x).add_(self.shortcut(x)), inplace=True)


def resnet(depths: Sequence[int], width: int, classes: int) -> Staged:
    """ResNet-50 where depths are 3, 4, 6, 3 and the width is 64."""
    stem = nn.Sequential(*conv_norm(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    blocks, before = [], width
    for stage, depth in enumerate(depths):
        for unit in range(depth):
            stride = 2 if stage > 0 and unit == 0 else 1
            blocks.append(Bottleneck(before, width * 2**stage, stride))
            before = 4 * width * 2**stage
    return Staged(stem, blocks, pooled_head(before, classes))


class PreactUnit(nn.Module):
    """A bottleneck unit that normalises before it convolves."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.parts = nn.Sequential()
        narrow = width // 4
        sizes = (before, narrow, 1, 1), (narrow, narrow, 3, stride), (narrow, width, 1, 1)
        for inputs, outputs, window, step in sizes:
            conv = nn.Conv2d(inputs, outputs, window, step, window // 2, bias=False)
            self.parts.extend([nn.BatchNorm2d(inputs), nn.ReLU(inplace=True), conv])
        is_plain = before == width and stride == 1
        self.shortcut = (
            nn.Identity() if is_plain else nn.Conv2d(before, width, 1, stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x) + self.shortcut(x)


def preact_resnet(depth: int, classes: int) -> Staged:
    """The network for images of 32 by 32; depth is 9n + 2."""
    blocks, before = [], 16
    for stage in range(3):
        for unit in range((depth - 2) // 9):
            stride = 2 if stage > 0 and unit == 0 else 1
            blocks.append(PreactUnit(before, 64 * 2**stage, stride))
            before = 64 * 2**stage
    head = pooled_head(before, classes, nn.BatchNorm2d(before), nn.ReLU(inplace=True))
    return Staged(nn.Conv2d(3, 16, 3, padding=1, bias=False), blocks, head)


class InvertedResidual(nn.Module):
    """MobileNetV2's unit: widen, a convolution with a group a channel, narrow."""

    def __init__(self, before: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = before * expansion
        self.is_residual = before == width and stride == 1
        self.parts = nn.Sequential(
            *conv_norm(before, wide, 1),
            nn.ReLU6(inplace=True),
            *conv_norm(wide, wide, 3, stride, groups=wide),
            nn.ReLU6(inplace=True),
            *conv_norm(wide, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.parts(x) if self.is_residual else self.parts(x)


def mobilenet(stages: Sequence[tuple[int, int, int]], classes: int) -> Staged:
    """Stages of (width, depth, stride), then dropout before the classifier."""
    blocks, before = [], 16
    for width, depth, stride in stages:
        for unit in range(depth):
            blocks.append(InvertedResidual(before, width, stride if unit == 0 else 1, 6))
            before = width
    head = pooled_head(before, classes, nn.Dropout(0.2))
    return Staged(nn.Sequential(*conv_norm(3, 16, 3, 2), nn.ReLU6(inplace=True)), blocks, head)


class ConvNextBlock(nn.Module):
    """A 7 by 7 convolution a channel, a norm and two products over channels, scaled by layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-1))

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.norm(self.mix(x).permute(0, 2, 3, 1))
        mixed = self.scale * self.narrow(F.gelu(self.widen(mixed)))
        return x + mixed.permute(0, 3, 1, 2)


def convnext(depths: Sequence[int], width: int, classes: int) -> Staged:
    """Stages that halve the image and double the width."""
    blocks: list[nn.Module] = []
    for stage, depth in enumerate(depths):
        here = width * 2**stage
        if stage > 0:
            blocks.append(
                nn.Sequential(nn.GroupNorm(1, here // 2), nn.Conv2d(here // 2, here, 2, 2))
            )
        blocks += [ConvNextBlock(here) for _ in range(depth)]
    return Staged(nn.Conv2d(3, width, 4, 4), blocks, pooled_head(here, classes))


class DenseLayer(nn.Module):
    """New channels from all that came before, which it joins itself."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.parts = nn.Sequential(
            nn.BatchNorm2d(before),
            nn.ReLU(inplace=True),
            nn.Conv2d(before, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(inplace=True),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, *features: Tensor) -> Tensor:
        return self.parts(torch.cat(features, 1))


class DenseNet(nn.Module):
    """Dense stages with transitions that halve channels and image."""

    def __init__(self, depths: Sequence[int], growth: int, classes: int) -> None:
        super().__init__()
        width = 2 * growth
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.blocks, self.transitions = nn.ModuleList(), nn.ModuleList()
        self.depths = tuple(depths)
        for depth in depths:
            self.blocks.extend(DenseLayer(width + i * growth, growth) for i in range(depth))
            width += depth * growth
            halving = nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1, bias=False)
            self.transitions.append(nn.Sequential(*halving, nn.AvgPool2d(2)))
            width //= 2
        self.head = pooled_head(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        layers = iter(self.blocks)
        for depth, transition in zip(self.depths, self.transitions, strict=True):
            features = [x]
            for layer in itertools.islice(layers, depth):
                features.append(layer(*features))
            x = transition(torch.cat(features, 1))
        return self.head(x)


def double_conv(before: int, width: int) -> nn.Sequential:
    """U-Net's two convolutions at one resolution."""
    first = *conv_norm(before, width, 3), nn.ReLU(inplace=True)
    return nn.Sequential(*first, *conv_norm(width, width, 3), nn.ReLU(inplace=True))


class UNet(nn.Module):
    """Down by pooling, up by transposed convolutions, each level joined with its twin."""

    def __init__(self, levels: int, width: int, classes: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels)]
        down = [double_conv(a, b) for a, b in itertools.pairwise([3, *widths])]
        up = [double_conv(2 * w, w) for w in reversed(widths[:-1])]
        self.blocks = nn.ModuleList(down + up)
        self.rise = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, height, width, classes)."""
        down, up = self.blocks[: len(self.rise) + 1], self.blocks[len(self.rise) + 1 :]
        kept = []
        for level, block in enumerate(down):
            x = block(F.max_pool2d(x, 2) if level else x)
            kept.append(x)
        kept.pop()
        for rise, block in zip(self.rise, up, strict=True):
            x = block(torch.cat([kept.pop(), rise(x)], 1))
        return self.head(x).permute(0, 2, 3, 1)


class Vae(nn.Module):
    """A variational autoencoder for images, whose noise is drawn in forward where none is fed."""

    def __init__(self, width: int, latent: int, image: int) -> None:
        super().__init__()
        side = image // 4
        self.encode = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1),
            nn.SiLU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(2 * width * side * side, 2 * latent),
        )
        self.decode = nn.Sequential(
            nn.Linear(latent, 2 * width * side * side),
            nn.Unflatten(1, (2 * width, side, side)),
            nn.SiLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.SiLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )

    @property
    def blocks(self) -> list[nn.Module]:
        """Encoder and decoder."""
        return [self.encode, self.decode]

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Reconstruction error and divergence, a mean over the batch."""
        mean, log_variance = self.encode(x).chunk(2, 1)
        noise = torch.randn_like(mean) if noise is None else noise
        decoded = self.decode(mean + noise * torch.exp(0.5 * log_variance))
        missed = F.mse_loss(decoded, x, reduction="sum")
        divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum()
        return (missed + divergence) / len(x)
