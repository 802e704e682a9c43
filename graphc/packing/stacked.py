"""Buffers that live equally long, as stacks that are packed like one buffer each.

Where nearly all of many buffers share their lifetime with others, as blocks of a pool that are
taken and given back in few stages, those of each lifetime are cut into stacks of about the same
height. A packing of these is one of the buffers. Low stacks leave more choice, so they are as low
as their number allows. Where lifetimes are nearly as many as stacks may be, these leave too little
choice: what else there is packs lower.
"""

from __future__ import annotations

import numpy as np

from graphc.packing.problem import Flags, Integers, PackingProblem

FINEST = 10
"""Stacks are cut at multiples of the bound over 2 to this power, or to a lower one."""

ALIKE = 50
"""Buffers of one lifetime, on average, from which on they are stacked."""


class Stacked:
    """Stacks of a problem without pins: a problem of their own, and where the buffers lie in them.

    `order` has buffers of one lifetime beside each other, and `begins` tells in it where a stack
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
        """Offsets of the buffers from those of the stacks."""
        found = np.empty(len(self._order), np.int64)
        found[self._order] = of_stacks[self._stack] + self._below
        return found


def stacked(problem: PackingProblem, most: int) -> Stacked | None:
    """At most so many stacks, as low as can be; None where too few buffers live equally long."""
    order = np.lexsort((problem.size, problem.last, problem.first))
    first, last, size = problem.first[order], problem.last[order], problem.size[order]
    changes = (np.diff(first, prepend=-1) != 0) | (np.diff(last, prepend=-1) != 0)
    if np.count_nonzero(changes) > min(most, len(order) / ALIKE):
        return None
    below = _below(changes, size)

    def cut_at(height: int) -> Flags:
        begins: Flags = changes | (np.diff(below // max(1, height), prepend=-1) != 0)
        return begins

    # At the bound, which no lifetime is above, there is one stack for each.
    cuts = (cut_at(problem.bound >> power) for power in range(FINEST, -1, -1))
    return Stacked(problem, order, next(cut for cut in cuts if np.count_nonzero(cut) <= most))


def _below(begins: Flags, size: Integers) -> Integers:
    """What lies below each buffer in its stack."""
    ends = np.cumsum(size)
    starts: Integers = ends - size
    below: Integers = starts - starts[begins][np.cumsum(begins) - 1]
    return below
