"""Padding of tensors to a shape, with the memory layout that a plan expects."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def order_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the dimensions of a tensor from the largest stride to the smallest."""
    return tuple(sorted(range(tensor.ndim), key=lambda d: (-tensor.stride(d), d)))


def strides_of(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense tensor whose dimensions have this order."""
    found, step = [0] * len(shape), 1
    for dimension in reversed(order):
        found[dimension] = step
        step *= max(1, shape[dimension])
    return tuple(found)


def is_laid_out(tensor: torch.Tensor, shape: Sequence[int], order: Sequence[int]) -> bool:
    """Return whether a tensor has a shape, and the strides and offset of a new one."""
    is_new = tensor.stride() == strides_of(shape, order) and tensor.storage_offset() == 0
    return is_new and tuple(tensor.shape) == tuple(shape)


def padded(
    tensor: torch.Tensor, shape: Sequence[int], number: float, order: Sequence[int]
) -> torch.Tensor:
    """Return a new tensor with a shape whose first elements are those of another one."""
    found = tensor.new_empty_strided(tuple(shape), strides_of(shape, order))
    if tuple(tensor.shape) != tuple(shape):
        found.fill_(number)
    found[tuple(map(slice, tensor.shape))].copy_(tensor)
    return found
