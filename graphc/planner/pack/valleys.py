"""Lowest place first: the best-fit heuristic of strip packing, with fixed positions in time.

The skyline is the fill height of each section. A valley is a run of equal sections between higher
ones. Among the buffers that are live only inside a valley, the one with the best rank goes onto its
floor. If there is none, the floor rises to the lower wall. Burke, Kendall and Whitwell (2004) use
this rule for movable rectangles, Sekiyama et al. (2018) for live ranges of tensors.

Offsets need no search, since a buffer is placed where it rests. The search is for the best rank
among the buffers `[first, last)` within a valley `[start, stop)`. Buffers are sorted by first
section, so those born in the valley are a range of leaves of a tree. The tree's nodes store the
best rank and the least `last` below them. A descent skips nodes without a buffer that ends by
`stop`, and nodes without a rank better than the best so far. Placed buffers get the rank FAR.

The skyline is a list of runs, by first section. Placing a buffer splits a run into at most three;
raising joins it with one or both neighbors. So n buffers in s sections take O(n + s) changes of the
skyline and one descent each, mostly in O(log n), at worst in O(n).
"""

from __future__ import annotations

import numpy as np

from graphc.jit import compiled
from graphc.planner.pack.problem import Integers

FAR = 1 << 62
"""A number that is larger than every offset, rank and section."""


@compiled
def _tree(column: Integers, order: Integers) -> Integers:
    """Return a tree of minima over a column in the given order: each node is the minimum of its
    leaves.

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
    """Set every ancestor of a node to the minimum of its two children."""
    while node > 1:
        node >>= 1
        tree[node] = min(tree[2 * node], tree[2 * node + 1])


@compiled
def _best_inside(
    ranks: Integers, lasts: Integers, start: int, stop: int, wall: int, stack: Integers
) -> tuple[int, int]:
    """Return the leaf of the best-ranked buffer at positions `[start, stop)` that ends by section
    `wall`, or 0 if there is none.

    The second result is the number of visited nodes.
    """
    leaves = len(ranks) // 2
    # Collect the maximal nodes that cover exactly these leaves, from both ends upward.
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
        # No leaf below is better, or none ends in time.
        if ranks[node] >= best or lasts[node] > wall:
            continue
        if node >= leaves:
            best, leaf = ranks[node], node
            continue
        left = 2 * node
        better = left if ranks[left] < ranks[left + 1] else left + 1
        # The better child is on top of the stack: it is visited first and may rule out its sibling.
        # The numbers of two siblings add up to 4 node + 1.
        stack[waiting] = 4 * node + 1 - better
        stack[waiting + 1] = better
        waiting += 2
    return leaf, visited


@compiled
def _raise_floor(
    start: int, left: int, right: int, end_of: Integers, before: Integers, level: Integers
) -> int:
    """Raise the floor of a valley to its lower wall, and merge runs of equal height. Returns the
    start of the merged run."""
    # The lower wall is finite: between both ends of time, any buffer would have fitted.
    end = end_of[start]
    level[start] = min(left, right)
    # If both walls have equal height, both join the run, hence two conditions and no `else`.
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
    """Place all buffers by lowest place first: write `offsets`, and return the height and the
    number of visited nodes.

    `first`, `last`, `size` and `rank` have one entry per buffer, which is live in sections `[first,
    last)`. `by_birth` sorts buffers by `first`; `births[s]` counts those born before section s.
    """
    count, sections = len(size), len(births) - 1
    ranks, lasts = _tree(rank, by_birth), _tree(last, by_birth)
    leaves = len(ranks) // 2
    # Runs of the skyline by first section: their ends, and the starts of the runs before them.
    end_of, before = np.zeros(sections + 1, np.int64), np.zeros(sections + 1, np.int64)
    level = np.zeros(sections + 1, np.int64)
    end_of[0] = sections
    stack = np.empty(256, np.int64)
    start, height, placed, work = 0, 0, 0, 0
    while placed < count:
        end, floor = end_of[start], level[start]
        left = level[before[start]] if start > 0 else FAR
        right = level[end] if end < sections else FAR
        # Walk strictly downhill: a run that is not a valley has a lower neighbor.
        if left < floor:
            start = before[start]
            continue
        if right < floor:
            start = end
            continue
        leaf, visited = _best_inside(ranks, lasts, births[start], births[end], end, stack)
        work += visited
        if leaf == 0:  # 0 is not a leaf, as the root is 1
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
        # The covered run stays separate, or joins walls of equal height; the remaining parts of the
        # valley on either side become runs.
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
