"""Packs buffers with equal live ranges as stacks, one rectangle per stack.

This applies if nearly all of many buffers share their live range with others. An example is a pool
whose blocks are allocated and freed in few stages. The buffers of each live range are cut into
stacks of about equal height. A packing of the stacks is a packing of the buffers. Low stacks leave
the packer more choice, so they are about as low as the maximum number of stacks allows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphc.planner.pack.problem import Integers, PackingProblem

ALIKE = 50
"""The minimum average number of buffers per live range for stacking."""

Offsets = Callable[[Integers], Integers]
"""A function from the offsets of stacks to the offsets of the buffers in them."""


def stacked(
    problem: PackingProblem, most: int, alike: float = ALIKE
) -> tuple[PackingProblem, Offsets] | None:
    """Return the problem of at most `most` stacks, and a function from its offsets to the buffers'
    offsets. Returns None if fewer than `alike` buffers share a live range on average. No buffer may
    be pinned.
    """
    order = np.lexsort((problem.size, problem.last, problem.first))
    first, last, size = problem.first[order], problem.last[order], problem.size[order]
    begins = (np.diff(first, prepend=-1) != 0) | (np.diff(last, prepend=-1) != 0)
    ranges = np.count_nonzero(begins)
    if ranges > min(most, len(order) / alike):
        return None
    starts = np.cumsum(size) - size
    below = starts - starts[begins][np.cumsum(begins) - 1]
    # Besides the first stack of each live range, one begins at each multiple of this height.
    height = -(-int(size.sum()) // (most - ranges + 1))
    begins |= np.diff(below // height, prepend=-1) != 0
    stack = np.cumsum(begins) - 1
    none = np.zeros(int(stack[-1]) + 1, np.int64)
    heights = np.add.reduceat(size, np.flatnonzero(begins))
    reduced = PackingProblem.of(first[begins], last[begins], heights, none.astype(bool), none)

    def offsets(of_stacks: Integers) -> Integers:
        found = np.empty(len(order), np.int64)
        found[order] = of_stacks[stack] + starts - starts[begins][stack]
        return found

    return reduced, offsets
