"""Block sharing by best fit: the recycled tags of Chen et al. (2016, Fig. 2), matched by size.

Storages are visited in order of their first step. A storage takes the smallest free block that fits
it (up to `MATCH_RANGE` times its size), else the largest smaller block, which grows, else a new
one. A block is free again after the last use of its storage. Every block has the size of its
largest tenant.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

MATCH_RANGE = 16
"""Largest ratio of a free block to the storage that takes it, as in MXNet's planner."""


FreeBlock = tuple[int, int, int]
"""A free block: its bytes, its position in the order of freeing, and its tag.

Of equal blocks that fit, the one freed first is taken.
"""


def share(tenants: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return a block number for each tenant, given as half-open (first, last, bytes) by `first`.

    Blocks are numbered from 0; each needs the size of its largest tenant.
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
    """Remove the best matching block from the free list and return its tag; None if no block
    matches."""
    at = bisect.bisect_left(free, (size, -1, -1))
    if at < len(free) and free[at][0] <= size * MATCH_RANGE:
        return free.pop(at)[2]
    if at > 0:
        return free.pop(at - 1)[2]
    return None
