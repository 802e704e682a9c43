"""Storages share recycled blocks: the tags of Fig. 2, with a size-matched choice.

Nodes are visited in order. A storage takes the smallest free block that holds it (up to
`MATCH_RANGE` times its size), else the largest smaller one, which grows, else a new one. A block
is free again after its storage's last reader. Every block is as large as its largest tenant.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

MATCH_RANGE = 16
"""A block this many times too large is left for someone else, as in MXNet's planner."""


@dataclass(frozen=True, slots=True)
class Tags:
    """Block of each tenant, and the final size of each block."""

    tags: list[int]
    block_bytes: list[int]


def share(tenants: Sequence[tuple[int, int, int]]) -> Tags:
    """Assign blocks to (first, last, bytes), half open, given in order of `first`."""
    tags = [0] * len(tenants)
    sizes: list[int] = []
    free: list[tuple[int, int]] = []  # (bytes, tag), ascending
    leaving = sorted(range(len(tenants)), key=lambda i: (tenants[i][1], i))
    gone = 0
    for index, (first, _, size) in enumerate(tenants):
        while gone < len(leaving) and tenants[leaving[gone]][1] <= first:
            tag = tags[leaving[gone]]
            bisect.insort(free, (sizes[tag], tag))
            gone += 1
        tag = _choose(free, size)
        if tag is None:
            tag = len(sizes)
            sizes.append(size)
        sizes[tag] = max(sizes[tag], size)
        tags[index] = tag
    return Tags(tags, sizes)


def _choose(free: list[tuple[int, int]], size: int) -> int | None:
    """Take the best matching block from the free list."""
    at = bisect.bisect_left(free, (size, -1))
    if at < len(free) and free[at][0] <= size * MATCH_RANGE:
        return free.pop(at)[1]
    if at > 0:
        return free.pop(at - 1)[1]
    return None
