"""Cases: a module with the arguments of one training step, and how its loss is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Case:
    """Arguments of `graphc.torch.plan`. Without `loss_fn`, the output has an attribute `loss`."""

    module: torch.nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loss_fn: Callable[..., Any] | None = None


Entry = tuple[str, Callable[[], Case]]
"""The name of a class, and a function that returns a new case of it."""


def token_ids(vocabulary: int, *shape: int) -> torch.Tensor:
    """Return random tokens other than the first ones, which are special in most models."""
    return torch.randint(8, vocabulary, shape)


def images(count: int, side: int) -> torch.Tensor:
    return torch.randn(count, 3, side, side)
