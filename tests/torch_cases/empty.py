"""Modules with tensors that have no elements, inside or as parameters."""

import warnings

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit
from torch_cases.drawn import X, Y, randn


class Adapted(nn.Module):
    """A layer with a low-rank update of rank 0."""

    def __init__(self, bias):
        super().__init__()
        self.whole = nn.Linear(4, 3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # there is nothing to initialize
            self.update = nn.Sequential(nn.Linear(4, 0, bias=bias), nn.Linear(0, 3, bias=bias))

    def forward(self, x):
        return self.whole(x) + self.update(x) * 0.5


class Multiplied(Adapted):
    """The same update by products of its parameters."""

    def forward(self, x):
        down, up = (layer.weight for layer in self.update)
        return self.whole(x) + x @ down.T @ up.T + torch.einsum("bi,ri,or->bo", x, down, up)


def split_unevenly(x):
    first, second = x.split([4, 0], 1)
    return torch.cat([second, first * 2, second], 1), second.sum() + x


def written(x, y):
    z = x * 2
    z[:, :0] = y[:, :0]
    z[torch.zeros(0, dtype=torch.long)] = 5.0
    return z.index_add(0, torch.zeros(0, dtype=torch.long), y[:0])


EMPTY = {
    "concatenated": (lambda x: torch.cat([x.new_zeros(3, 0), x, x[:, :0]], 1), [X]),
    "concatenated by rows": (lambda x: torch.cat([x[:0], x]), [X]),
    "split": (split_unevenly, [X]),
    "chunks": (lambda x: torch.cat(x.tensor_split(6, 1), 1) * 2, [X]),
    "adapter": (Adapted(True), [X]),
    "adapter without bias": (Adapted(False), [X]),
    "adapter by products": (Multiplied(False), [randn(3, 4)]),
    "computed between": (lambda x: x + (x[:, :0].exp() * 2 + 1).relu().sum(1, keepdim=True), [X]),
    "padded": (lambda x: F.pad(x[:, :0], (1, 3), value=2.0) * x, [X]),
    "written": (written, [X, Y]),
    "batches of products": (
        lambda x: torch.bmm(x[:, None, :0], x[:, :0, None]) + x[:, :1, None] * 2, [X]
    ),
    "added products": (lambda x: torch.addmm(x, x[:, :0], x[:0], beta=0.5), [X]),
    "largest of none": (lambda x: torch.cat([*x.topk(0, 1)[:1], x], 1), [X]),
}  # fmt: skip
