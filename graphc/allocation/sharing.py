"""Storages share recycled blocks: the tags of Fig. 2, with a size-matched choice.

Nodes are visited in order. A storage takes the smallest free block that holds it (up to
`MATCH_RANGE` times its size), else the largest smaller one, which grows, else a new one. A block
is free again after its storage's last reader. Every block is as large as its largest tenant.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

MATCH_RANGE = 16
"""A block this many times too large is left for someone else, as in MXNet's planner."""


FreeBlock = tuple[int, int, int]
"""(bytes, when it was freed, tag): of equal sizes the longest free one goes first."""


def share(tenants: Sequence[tuple[int, int, int]]) -> list[int]:
    """The block of each (first, last, bytes), half open, given in order of `first`.

    Blocks are numbered from 0; each is to be as large as its largest tenant.
    """
    tags = [0] * len(tenants)
    sizes: list[int] = []
    free: list[FreeBlock] = []  # ascending
    leaving = sorted(range(len(tenants)), key=lambda i: (tenants[i][1], i))
    gone = 0
    for index, (first, _, size) in enumerate(tenants):
        while gone < len(leaving) and tenants[leaving[gone]][1] <= first:
            tag = tags[leaving[gone]]
            bisect.insort(free, (sizes[tag], gone, tag))
            gone += 1
        matched = _choose(free, size)
        if matched is None:
            matched = len(sizes)
            sizes.append(size)
        sizes[matched] = max(sizes[matched], size)
        tags[index] = matched
    return tags


def _choose(free: list[FreeBlock], size: int) -> int | None:
    """Take the best matching block from the free list; None where no free block matches."""
    at = bisect.bisect_left(free, (size, -1, -1))
    if at < len(free) and free[at][0] <= size * MATCH_RANGE:
        return free.pop(at)[2]
    if at > 0:
        return free.pop(at - 1)[2]
    return None
