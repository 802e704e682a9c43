"""Packs buffers with equal live ranges as stacks, one rectangle per stack.

This applies if nearly all of many buffers share their live range with others. An example is a pool
whose blocks are allocated and freed in few stages. The buffers of each live range are cut into
stacks of about equal height. A packing of the stacks is a packing of the buffers. Low stacks leave
more choice, so they are as low as the maximum number of stacks allows. If there are nearly as many
live ranges as stacks, these leave too little choice and other algorithms pack lower.
"""

from __future__ import annotations

import numpy as np

from graphc.packing.problem import Flags, Integers, PackingProblem

FINEST = 10
"""Stacks are cut at multiples of the bound divided by two to this power, or to a lower one."""

ALIKE = 50
"""The minimum average number of buffers per live range for stacking."""


class Stacked:
    """Stacks of a problem without pins: a reduced problem, and the buffers' offsets in the stacks.

    `order` groups buffers by live range; `begins` flags the positions in it at which a stack
    begins.
    """

    def __init__(self, problem: PackingProblem, order: Integers, begins: Flags) -> None:
        first, last, size = problem.first[order], problem.last[order], problem.size[order]
        heights = np.add.reduceat(size, np.flatnonzero(begins))
        none = np.zeros(len(heights), np.int64)
        self.problem = PackingProblem.of(
            first[begins], last[begins], heights, none.astype(bool), none
        )
        self._order, self._stack = order, np.cumsum(begins) - 1
        self._below = _below(begins, size)

    def offsets(self, of_stacks: Integers) -> Integers:
        """Return the offsets of the buffers, given those of the stacks."""
        found = np.empty(len(self._order), np.int64)
        found[self._order] = of_stacks[self._stack] + self._below
        return found


def stacked(problem: PackingProblem, most: int) -> Stacked | None:
    """Return at most `most` stacks, as low as possible; None if too few buffers share live
    ranges."""
    order = np.lexsort((problem.size, problem.last, problem.first))
    first, last, size = problem.first[order], problem.last[order], problem.size[order]
    changes = (np.diff(first, prepend=-1) != 0) | (np.diff(last, prepend=-1) != 0)
    if np.count_nonzero(changes) > min(most, len(order) / ALIKE):
        return None
    below = _below(changes, size)

    def cut_at(height: int) -> Flags:
        begins: Flags = changes | (np.diff(below // max(1, height), prepend=-1) != 0)
        return begins

    # At the bound, which no live range exceeds, each live range has one stack.
    cuts = (cut_at(problem.bound >> power) for power in range(FINEST, -1, -1))
    return Stacked(problem, order, next(cut for cut in cuts if np.count_nonzero(cut) <= most))


def _below(begins: Flags, size: Integers) -> Integers:
    """Return the size below each buffer in its stack."""
    ends = np.cumsum(size)
    starts: Integers = ends - size
    below: Integers = starts - starts[begins][np.cumsum(begins) - 1]
    return below
