"""Bytes above a limit by position, summarized by block, so that sums over long ranges are fast.

A stretch of a chain of n layers covers up to n positions, and eviction counts the gain of several
stretches per value. Each block of BLOCK positions therefore has its least and largest excess and
its sum. Let a block be inside the stretch. If the excess is at least the bytes of the value at all
of its positions, or at most as many, these three numbers give the gain. Bytes to be removed from
all positions of a block are noted in `removed` alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphc.jit import compiled
from graphc.planner.profile import Integers

BLOCK = 128
"""Number of positions per block."""


class Excess(NamedTuple):
    """Excess bytes by position, before subtraction of the block's `removed`, and summaries by
    block."""

    bytes: Integers
    removed: Integers
    least: Integers
    most: Integers
    total: Integers


@compiled
def excess_of(bytes_by_position: Integers) -> Excess:
    """Return the summarized excess of an array of excess bytes by position, which is copied."""
    count = (len(bytes_by_position) + BLOCK - 1) // BLOCK
    excess = Excess(
        bytes_by_position.copy(),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
    )
    for block in range(count):
        _summarize(excess, block)
    return excess


@compiled
def excess_at(excess: Excess, position: int) -> int:
    """Return the excess bytes at one position."""
    return int(excess.bytes[position] - excess.removed[position // BLOCK])


@compiled
def gain_of(excess: Excess, begin: int, end: int, size: int) -> int:
    """Return the sum of min(excess, size) over the positions from `begin` to before `end`."""
    gain, position = 0, begin
    while position < end:
        block = position // BLOCK
        stop = min(end, (block + 1) * BLOCK)
        if size <= excess.least[block]:
            gain += size * (stop - position)
        elif stop - position == BLOCK and excess.most[block] <= size:
            gain += excess.total[block]
        elif excess.most[block] > 0:
            for at in range(position, stop):
                gain += min(excess.bytes[at] - excess.removed[block], size)
        position = stop
    return gain


@compiled
def reduce_excess(excess: Excess, begin: int, end: int, size: int) -> int:
    """Subtract up to `size` bytes at each position of `[begin, end)`, and return the sum
    subtracted."""
    gain, position = 0, begin
    while position < end:
        block = position // BLOCK
        stop = min(end, (block + 1) * BLOCK)
        if stop - position == BLOCK and size <= excess.least[block]:
            excess.removed[block] += size
            excess.least[block] -= size
            excess.most[block] -= size
            excess.total[block] -= size * BLOCK
            gain += size * BLOCK
        elif excess.most[block] > 0:
            before = excess.total[block]
            for at in range(position, stop):
                here = excess.bytes[at] - excess.removed[block]
                excess.bytes[at] -= min(here, size)
            _summarize(excess, block)
            gain += before - excess.total[block]
        position = stop
    return gain


@compiled
def _summarize(excess: Excess, block: int) -> None:
    here = excess.bytes[block * BLOCK : (block + 1) * BLOCK] - excess.removed[block]
    excess.least[block], excess.most[block] = here.min(), here.max()
    excess.total[block] = here.sum()
