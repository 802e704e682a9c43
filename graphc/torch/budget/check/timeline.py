"""Storages over the moments of a replay: production, uses and contents."""

from __future__ import annotations

import itertools

import torch
from torch import fx

from graphc.torch.budget.check.contents import Storage, Tree, tensors_in
from graphc.torch.budget.check.graphs import Content, Life, Moment


class Timeline:
    """The moments of a replay so far, and the live range and contents of each storage."""

    def __init__(self) -> None:
        self.moments: list[tuple[fx.Node | None, fx.Node | None, int]] = []
        """Per moment: the emitted node, its node in the joint graph, and its workspace."""
        self.made: dict[Storage, tuple[int, int, int]] = {}
        """Per storage: the moment of its production, its bytes, and its result index."""
        self.last: dict[Storage, int] = {}
        """Per storage: the moment of its last use."""
        self.contents: dict[Storage, list[tuple[int, torch.Tensor, dict[int, None]]]] = {}
        """Per storage: its successive contents, each with its first moment and its uses."""
        self.held: set[Storage] = set()
        """Storages that are live until the end."""

    def make(self, storage: Storage, now: int, size: int, index: int) -> None:
        """Note that a storage of `size` bytes is produced as result `index` of a moment."""
        self.made[storage] = (now, size, index)
        self.holds(storage, now, storage.fake)

    def holds(self, storage: Storage, now: int, fake: torch.Tensor) -> None:
        """Record that the contents of a storage change at moment `now`."""
        self.contents.setdefault(storage, []).append((now, fake, {}))

    def use(self, tree: Tree) -> None:
        """Record that the storages of a value are used at the last moment."""
        for tensor in tensors_in(tree):
            self.last[tensor.storage] = max(0, len(self.moments) - 1)

    def moments_and_lives(self, fixed_bytes: int) -> tuple[tuple[Moment, ...], tuple[Life, ...]]:
        """Return the moments with their live bytes, and the live ranges of all storages."""
        end = len(self.moments)
        lives = tuple(
            Life(
                size,
                first,
                end if storage in self.held else self.last[storage] + 1,
                index,
                self.contents_of(storage),
                storage in self.held,
            )
            for storage, (first, size, index) in self.made.items()
        )
        change, made = [0] * (end + 1), [0] * end
        for life in lives:
            change[life.first] += life.bytes
            change[life.last] -= life.bytes
            made[life.first] += life.bytes
        levels = itertools.accumulate(change[:-1], initial=fixed_bytes)
        next(levels)
        moments = tuple(
            Moment(node, original, level + workspace, here, workspace)
            for (node, original, workspace), level, here in zip(
                self.moments, levels, made, strict=True
            )
        )
        return moments, lives

    def contents_of(self, storage: Storage) -> tuple[Content, ...]:
        """Return the successive contents of a storage."""
        found = self.contents[storage]
        return tuple(Content(now, fake, tuple(readers)) for now, fake, readers in found)
