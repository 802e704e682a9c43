"""Buffers that live equally long, as stacks that are packed like one buffer each.

Where most of many buffers share their lifetime with others, as blocks of a pool that are taken and
given back in few stages, each set of equals is cut into stacks of about the same height. Packed,
they are a packing of the buffers. Low stacks leave more choice, so they are as low as their number
allows.
"""

from __future__ import annotations

import numpy as np

from graphc.packing.problem import Flags, Integers, PackingProblem

LOWEST = 10
"""Stacks are at least the bound over 2 to this power high."""


class Stacked:
    """Stacks of a problem without pins: a problem of their own, and where the buffers lie in them.

    There are `most` stacks at most; `problem` is None where there are more lifetimes than that.
    """

    problem: PackingProblem | None

    def __init__(self, problem: PackingProblem, most: int) -> None:
        first, last = problem.first, problem.last
        self._order = order = np.lexsort((problem.size, last, first))
        first, last, size = first[order], last[order], problem.size[order]
        changes = (np.diff(first, prepend=-1) != 0) | (np.diff(last, prepend=-1) != 0)
        below = _below(changes, size)
        self.problem = None
        for power in range(LOWEST, -1, -1):
            number = below // max(1, problem.bound >> power)
            begins = changes | (np.diff(number, prepend=-1) != 0)
            if np.count_nonzero(begins) <= most:
                break
        else:
            return
        self._below, self._stack = _below(begins, size), np.cumsum(begins) - 1
        heights = np.add.reduceat(size, np.flatnonzero(begins))
        none = np.zeros(len(heights), np.int64)
        self.problem = PackingProblem.of(
            first[begins], last[begins], heights, none.astype(bool), none
        )

    def offsets(self, of_stacks: Integers) -> Integers:
        """Offsets of the buffers from those of the stacks."""
        found = np.empty(len(self._order), np.int64)
        found[self._order] = of_stacks[self._stack] + self._below
        return found


def _below(begins: Flags, size: Integers) -> Integers:
    """What lies below each buffer in its stack."""
    ends = np.cumsum(size)
    starts: Integers = ends - size
    below: Integers = starts - starts[begins][np.cumsum(begins) - 1]
    return below
