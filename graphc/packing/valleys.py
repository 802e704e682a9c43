"""Lowest place first: the best-fit heuristic of strip packing, with fixed places in time.

The skyline says for each section how high it is filled. A valley is a run of equal sections between
higher ones; the buffer of the best rank among those that live inside a valley goes onto its floor,
and where none does, the floor rises to the lower wall. Burke, Kendall and Whitwell (2004) choose
so for rectangles that can be moved, Sekiyama et al. (2018) for the lifetimes of tensors.

Offsets need not be searched, since a buffer is placed where it rests. What has to be found is the
best rank among the buffers [first, last) within a valley [start, stop). Buffers stand by their
first section, so those with first in the valley are a run of leaves of a tree, whose nodes hold the
best rank and the least `last` below them; a descent passes over nodes with no buffer that ends by
`stop` or none that beats the best so far. Placed buffers get the rank FAR.

The skyline is a list of runs, by their first section: placing parts a run into at most three,
raising joins it with one or both neighbours. So n buffers in s sections take O(n + s) changes of
the skyline and one descent each, mostly in O(log n), at worst in O(n).
"""

from __future__ import annotations

import numpy as np

from graphc.jit import compiled
from graphc.packing.problem import Integers

FAR = 1 << 62
"""Above every offset, rank and section."""


@compiled
def _tree(column: Integers, order: Integers) -> Integers:
    """A column in the order given as leaves of a binary tree, each node the least of its leaves.

    The root is node 1, the children of node i are 2 i and 2 i + 1; missing leaves are FAR.
    """
    leaves = 1
    while leaves < len(order):
        leaves *= 2
    tree = np.full(2 * leaves, FAR, np.int64)
    for position in range(len(order)):
        tree[leaves + position] = column[order[position]]
    for node in range(leaves - 1, 0, -1):
        tree[node] = min(tree[2 * node], tree[2 * node + 1])
    return tree


@compiled
def _smaller_children(tree: Integers, node: int) -> None:
    """Keep at every ancestor the smaller of its two children."""
    while node > 1:
        node >>= 1
        tree[node] = min(tree[2 * node], tree[2 * node + 1])


@compiled
def _best_inside(
    ranks: Integers, lasts: Integers, start: int, stop: int, wall: int, stack: Integers
) -> tuple[int, int]:
    """Leaf of the best rank at positions [start, stop) that ends by `wall`, or 0; nodes visited."""
    leaves = len(ranks) // 2
    # The few nodes that together cover just these leaves: from both ends up, each whose parent
    # would cover more.
    low, high, waiting = start + leaves, stop + leaves, 0
    while low < high:
        if low & 1:
            stack[waiting] = low
            waiting += 1
            low += 1
        if high & 1:
            high -= 1
            stack[waiting] = high
            waiting += 1
        low >>= 1
        high >>= 1
    best, leaf, visited = FAR, 0, 0
    while waiting > 0:
        waiting -= 1
        node = stack[waiting]
        visited += 1
        # Nothing below it is better, or nothing below it ends in time.
        if ranks[node] >= best or lasts[node] > wall:
            continue
        if node >= leaves:
            best, leaf = ranks[node], node
            continue
        left = 2 * node
        better = left if ranks[left] < ranks[left + 1] else left + 1
        # Its sibling waits below it: the better one is looked at first, and may rule the other out.
        # The numbers of two siblings add up to 4 node + 1.
        stack[waiting] = 4 * node + 1 - better
        stack[waiting + 1] = better
        waiting += 2
    return leaf, visited


@compiled
def _raise_floor(
    start: int, left: int, right: int, end_of: Integers, before: Integers, level: Integers
) -> int:
    """Raise a valley to its lower wall and join the run there; returns where that starts."""
    # The lower wall is finite: between both ends of time any buffer would have fitted.
    end = end_of[start]
    level[start] = min(left, right)
    # Walls of one height both join the run, hence two questions and no `else`.
    if right <= left:
        end_of[start] = end_of[end]
        before[end_of[end]] = start
    if left <= right:
        start = before[start]
        end_of[start] = end_of[end_of[start]]
        before[end_of[start]] = start
    return start


@compiled
def fill_valleys(
    first: Integers,
    last: Integers,
    size: Integers,
    rank: Integers,
    by_birth: Integers,
    births: Integers,
    offsets: Integers,
) -> tuple[int, int]:
    """Fill `offsets`; return the height and the work done.

    `first`, `last`, `size` and `rank` have an entry a buffer; it lives in sections [first, last).
    `by_birth` sorts buffers by `first`, and `births[s]` counts those of sections before s.
    """
    count, sections = len(size), len(births) - 1
    ranks, lasts = _tree(rank, by_birth), _tree(last, by_birth)
    leaves = len(ranks) // 2
    # Runs of the skyline by their first section: where they end, where the one before starts.
    end_of, before = np.zeros(sections + 1, np.int64), np.zeros(sections + 1, np.int64)
    level = np.zeros(sections + 1, np.int64)
    end_of[0] = sections
    stack = np.empty(256, np.int64)
    start, height, placed, work = 0, 0, 0, 0
    while placed < count:
        end, floor = end_of[start], level[start]
        left = level[before[start]] if start > 0 else FAR
        right = level[end] if end < sections else FAR
        # Walk downhill, and strictly so: what is no valley has a lower neighbour.
        if left < floor:
            start = before[start]
            continue
        if right < floor:
            start = end
            continue
        leaf, visited = _best_inside(ranks, lasts, births[start], births[end], end, stack)
        work += visited
        if leaf == 0:  # which is no leaf, as the root is 1
            start = _raise_floor(start, left, right, end_of, before, level)
            continue
        index = by_birth[leaf - leaves]
        for tree in (ranks, lasts):
            tree[leaf] = FAR
            _smaller_children(tree, leaf)
        placed += 1
        offsets[index], top = floor, floor + size[index]
        height = max(height, top)
        low, high = first[index], last[index]
        # The run that is covered stands alone, or joins walls that are as high; what is left of the
        # valley on either side are runs of their own.
        if high < end:
            end_of[high], before[end], level[high] = end, high, floor
        elif right == top:
            high = end_of[end]
        if low > start:
            end_of[start], before[low] = low, start
        elif left == top:
            low = before[start]
        end_of[low], before[high], level[low] = high, low, top
        start = low
    return height, work
