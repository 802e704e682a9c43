"""What lives when in a step of torch, as the checker of plans finds it and a page draws it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import fx

RANDOM_STATE = -1
"""Stands for the result that is the state of a random generator."""


@dataclass(frozen=True)
class Moment:
    """A node that computes, and the bytes that live then; `node` is None for the turn."""

    node: fx.Node | None
    original: fx.Node | None
    """The node of the joint graph, as it was traced, that it stands for; None for a copy, too."""
    bytes: int
    made: int
    """Bytes of the storages that it makes."""
    workspace: int


@dataclass(frozen=True)
class Content:
    """What a storage holds from a moment on, until it is overwritten, and when that is read.

    The moment is -1 for what is there before the step; `tensor` has its shape and type.
    """

    moment: int
    tensor: torch.Tensor
    readers: tuple[int, ...]


@dataclass(frozen=True)
class Life:
    """A storage that lives from the moment `first` to before the moment `last`."""

    bytes: int
    first: int
    last: int
    result: int
    """Which of its node's results it is, or `RANDOM_STATE`."""
    contents: tuple[Content, ...]
    is_held: bool
    """Whether the caller has it at the end."""


@dataclass(frozen=True)
class Replay:
    """What lives when in a step; moments are those of the forward graph, the turn, the backward."""

    moments: tuple[Moment, ...]
    lives: tuple[Life, ...]
    sources: tuple[tuple[Content, ...], ...]
    """What is there before, by the placeholders of the joint graph; empty for what is no tensor."""
    turn: int

    @cached_property
    def peak(self) -> Moment:
        """The first moment of the most bytes."""
        return max(self.moments, key=lambda moment: moment.bytes)
