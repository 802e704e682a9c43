"""Numbers for small calls: floats away from where derivatives jump, integers, distinct elements."""

import math

import torch

GENERATOR = torch.Generator().manual_seed(3)


def randn(*shape):
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


def rand(*shape):
    return 0.1 + 0.8 * torch.rand(*shape, generator=GENERATOR, dtype=torch.float64)


def ints(limit, *shape):
    return torch.randint(limit, shape, generator=GENERATOR)


def distinct(*shape):
    """All elements differ by half or more, so that no order and no extreme is a tie."""
    count = math.prod(shape)
    return (torch.randperm(count, generator=GENERATOR) / 2 - count / 4 + 0.1).view(shape).double()


X = randn(3, 4)
Y = randn(3, 4)
P = rand(3, 4)
MAPS = randn(2, 4, 6, 6)
A = distinct(3, 5)
