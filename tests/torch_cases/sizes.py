"""Calls whose sizes torch.export leaves open, since they depend on numbers of constants."""

import torch
import torch.nn.functional as F  # noqa: N812

COUNTS = torch.tensor([0, 2, 2, 1, 3])
MASK = torch.tensor([True, False, True, True])
X = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def number(n):
    return torch.tensor(n).item()


SIZES = {
    "split": (lambda x: x.split(torch.tensor([1, 3]).tolist()), [X]),
    "split by sums": (lambda x: x.split([number(1), 4 - number(1)]), [X]),
    "narrow": (lambda x: x.narrow(0, number(1), number(2)) * number(0.5), [X]),
    "slices": (lambda x: (x[: number(2)], x[number(1) : min(number(3), 9)]), [X]),
    "views": (lambda x: (x.view(number(2), -1), x[:, :1].expand(4, number(5))), [X]),
    "repeat and pad": (
        lambda x: (
            x.repeat(torch.tensor([2, 1]).tolist()), F.pad(x, torch.tensor([1, 2]).tolist())
        ), [X]
    ),
    "filled": (lambda x: x.sum() + x.new_ones(number(3)) * torch.arange(number(3)), [X]),
    "bincount": (lambda x: x * torch.bincount(COUNTS)[:, None], [X]),
    "unique": (lambda x: x * torch.unique(COUNTS)[:, None], [X]),
    "unique inverse and counts": (
        lambda x: (
            x[torch.unique(COUNTS, return_inverse=True)[1]],
            x.T * torch.unique(COUNTS, return_counts=True)[1],
        ), [X]
    ),
    "unique consecutive": (lambda x: x * torch.unique_consecutive(COUNTS)[:, None], [X]),
    "unique rows": (lambda x: x * torch.unique(COUNTS[:, None], dim=0), [X]),
    "nonzero": (lambda x: x[MASK.nonzero()[:, 0]] * 2, [X]),
    "a tuple of nonzero": (lambda x: x[MASK.nonzero(as_tuple=True)] * 2, [X]),
    "where": (lambda x: x[torch.where(MASK)] * 2, [X]),
    "argwhere": (lambda x: x[torch.argwhere(MASK)][:, 0] * 2, [X]),
    "a mask": (lambda x: (x[MASK] * 2).sum(0), [X]),
    "a masked constant": (lambda x: x[:3] * COUNTS.masked_select(COUNTS > 1)[:, None], [X]),
    "repeat interleave": (lambda x: x.repeat_interleave(torch.tensor([1, 2, 0, 1]), 0) * 2, [X]),
    "a count as a factor": (lambda x: x * MASK.nonzero().shape[0] ** 2, [X]),
}  # fmt: skip
