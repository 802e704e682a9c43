"""Random modules for hypothesis: parts that map (batch, 8, 32) to the same shape, in any order.

A part is written once as a module of torch; a recipe names parts, and nests them under residuals,
joins and shared weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

STEPS, WIDTH = 8, 32
SIDES = 2, 4
BATCHES = 4, 192
"""The smaller has values of 4 KiB, the larger of 192 KiB, so that the peak is over 1 MiB."""


class Part(nn.Module):
    """A module made of some layers and a function of them and x."""

    def __init__(self, run: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.run, self.layers = run, nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, *self.layers)


def on_images(x: Tensor, layer: nn.Module) -> Tensor:
    """The layer on x as images (batch, channels, 2, 4)."""
    images = x.transpose(1, 2).unflatten(2, SIDES)
    return layer(images).flatten(2).transpose(1, 2)


def attention(x: Tensor, qkv: nn.Module) -> Tensor:
    q, k, v = (each.unflatten(2, (4, -1)).transpose(1, 2) for each in qkv(x).chunk(3, 2))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
    return mixed.transpose(1, 2).flatten(2)


def attention_by_hand(x: Tensor, keys: nn.Module) -> Tensor:
    scores = x @ keys(x).mT / WIDTH**0.5
    hidden = torch.ones(STEPS, STEPS, dtype=torch.bool).triu(1)
    return F.dropout(scores.masked_fill(hidden, -torch.inf).softmax(-1), 0.2) @ x


def in_place_on_slices(x: Tensor, layer: nn.Module) -> Tensor:
    y = layer(x)
    y[:, :, 1::2].mul_(0.5)
    y[:, 3].add_(1.0)
    return y


def in_place_on_views(x: Tensor, layer: nn.Module) -> Tensor:
    y = layer(x)
    left, right = y.view(-1, WIDTH)[:, : WIDTH // 2], y.narrow(2, WIDTH // 2, WIDTH // 2)
    left.mul_(0.5)
    right.neg_().flatten(0, 1).add_(left.detach())
    y.view(-1).relu_()
    return y


def written_slices(x: Tensor, layer: nn.Module) -> Tensor:
    y = torch.zeros_like(x)
    y[:, : STEPS // 2] = layer(x[:, STEPS // 2 :])
    y[:, STEPS // 2 :] = x[:, : STEPS // 2]
    return y


def pieces(x: Tensor, layer: nn.Module) -> Tensor:
    first, second, rest = x.split((4, 12, WIDTH - 16), 2)
    joined = torch.cat([rest, first * first, second.flip(1)], 2)
    return layer(torch.stack([joined, x]).unbind(0)[0])


def views(x: Tensor, layer: nn.Module) -> Tensor:
    y = x.permute(1, 0, 2).reshape(STEPS, -1, WIDTH // 2)
    y = layer(y.contiguous().view(STEPS, -1, WIDTH)).transpose(0, 1)
    return y.expand(2, -1, -1, -1)[1] + y[:, :1]


def pooled(x: Tensor) -> Tensor:
    images = x.transpose(1, 2).unflatten(2, SIDES)
    images = F.interpolate(F.max_pool2d(images, 2), scale_factor=2.0)
    return images.flatten(2).transpose(1, 2)


def sequence(x: Tensor, cells: nn.Module) -> Tensor:
    return cells(x.transpose(0, 1).contiguous())[0].transpose(0, 1).contiguous()


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def group_conv() -> nn.Module:
    conv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(WIDTH), nn.ReLU6(inplace=True))


PARTS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(linear(), nn.GELU()),
    "in-place relu": lambda: nn.Sequential(linear(), nn.ReLU(inplace=True)),
    "conv": lambda: Part(on_images, nn.Conv2d(WIDTH, WIDTH, 3, padding=1)),
    "conv with groups": lambda: Part(on_images, group_conv()),
    "batch norm": lambda: Part(on_images, nn.BatchNorm2d(WIDTH)),
    "group norm": lambda: Part(on_images, nn.GroupNorm(4, WIDTH)),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "rms norm": lambda: nn.RMSNorm(WIDTH, eps=1e-6),
    "dropout": lambda: nn.Sequential(linear(), nn.Dropout(0.3)),
    "in-place dropout": lambda: nn.Sequential(linear(), nn.Dropout(0.3, inplace=True)),
    "attention": lambda: Part(attention, nn.Linear(WIDTH, 3 * WIDTH)),
    "attention by hand": lambda: Part(attention_by_hand, linear()),
    "in place on slices": lambda: Part(in_place_on_slices, linear()),
    "in place on views": lambda: Part(in_place_on_views, linear()),
    "written slices": lambda: Part(written_slices, linear()),
    "pieces": lambda: Part(pieces, linear()),
    "views": lambda: Part(views, linear()),
    "pool": lambda: Part(pooled),
    "lstm": lambda: Part(sequence, nn.LSTM(WIDTH, WIDTH)),
    "gru": lambda: Part(sequence, nn.GRU(WIDTH, WIDTH)),
}


class Residual(nn.Module):
    """x and what the parts make of it, added."""

    def __init__(self, parts: nn.Module) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, x: Tensor) -> Tensor:
        return x + self.parts(x)


class Join(nn.Module):
    """Two ways beside each other, concatenated and made narrow again."""

    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left, self.right, self.narrow = left, right, nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(torch.cat([self.left(x), self.right(x)], 2))


class Tied(nn.Module):
    """Parts between two products with one weight."""

    def __init__(self, parts: nn.Module) -> None:
        super().__init__()
        self.first, self.parts, self.last = linear(), parts, linear()
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.parts(self.first(x)))


class Twice(nn.Module):
    """The same parts one time after the other."""

    def __init__(self, parts: nn.Module) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(self.parts(x))


AROUND: dict[str, type[nn.Module]] = {"residual": Residual, "tied": Tied, "twice": Twice}


class Composed(nn.Module):
    """A product, parts in a row, and the mean error of what they make.

    An nn.LSTM whose input has no gradient fails in torch's own ``aot_eager``: so the product.
    """

    def __init__(self, parts: nn.Module) -> None:
        super().__init__()
        self.first, self.parts = linear(), parts

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(self.parts(self.first(x)), targets)


@dataclass(frozen=True)
class Recipe:
    """What a random module is made of; its text makes it again."""

    parts: tuple[object, ...]
    batch: int
    seed: int

    def make(self) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
        """The module, and the arguments of a step: new at every call, the same numbers."""
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            module = Composed(in_a_row(self.parts))
            shape = self.batch, STEPS, WIDTH
            return module, (torch.randn(shape), torch.randn(shape))


def in_a_row(parts: Sequence[object]) -> nn.Module:
    """Modules of a list of recipes: a part's name, or what is around lists of parts."""
    return nn.Sequential(*(made(part) for part in parts))


def made(part: object) -> nn.Module:
    if isinstance(part, str):
        return PARTS[part]()
    kind, *inside = part
    if kind == "join":
        return Join(*map(in_a_row, inside))
    return AROUND[kind](in_a_row(*inside))


def nested(parts: st.SearchStrategy) -> st.SearchStrategy:
    several = st.lists(parts, min_size=1, max_size=2).map(tuple)
    around = st.tuples(st.sampled_from(sorted(AROUND)), several)
    return around | st.tuples(st.just("join"), several, several)


@st.composite
def recipes(draw: st.DrawFn, having: str | None = None) -> Recipe:
    """Up to four parts in a row, of which one is `having`."""
    part = st.recursive(st.sampled_from(list(PARTS)), nested, max_leaves=3)
    parts = draw(st.lists(part, min_size=0 if having else 1, max_size=3))
    if having is not None:
        parts.insert(draw(st.integers(0, len(parts))), having)
    batch, seed = draw(st.sampled_from(BATCHES)), draw(st.integers(0, 1_000))
    return Recipe(tuple(parts), batch, seed)
