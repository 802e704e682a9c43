"""First fit and best fit in a given order, among the buffers with overlapping live ranges.

Buffers are placed one after another and never moved. Placed buffers are kept in a list sorted by
start. One walk over the list finds the gaps for the next buffer. Only neighbors, buffers that share
a section with it, count. Let `floor` be the highest end of a neighbor so far: a neighbor that
starts at or above `floor` + size leaves a gap. First fit takes the lowest gap, best fit the
smallest. Without a gap, the buffer goes on top of its neighbors. Each step takes O(placed buffers),
so n buffers take O(n²) time and O(n) memory.

By decreasing size, this is the greedy-by-size algorithm of Pisarchyk and Lee (2020) for tensors.
Here that is one of several orders.
"""

from __future__ import annotations

import numpy as np

from graphc.jit import compiled
from graphc.planner.pack.problem import Flags, Integers


@compiled
def _gap(placed: Integers, count: int, first: int, last: int, size: int, tightest: bool) -> int:
    """Return the offset of the lowest gap of at least `size` in sections `[first, last)`. With
    `tightest`, return the offset of the smallest such gap. Rows of `placed` are (first, last,
    start, end), by start.
    """
    floor, best, best_gap, found = 0, 0, 0, False
    for row in range(count):
        # Buffers without a common section may overlap in bytes, so they are skipped.
        if placed[row, 0] < last and first < placed[row, 1]:
            gap_size = placed[row, 2] - floor
            # Among equally tight gaps the lowest is taken, since the walk goes up.
            if gap_size >= size and (not found or gap_size < best_gap):
                best, best_gap, found = floor, gap_size, True
                if not tightest:
                    return best
            # The maximum is needed: a buffer that starts lower may end higher.
            floor = max(floor, placed[row, 3])
    return best if found else floor


@compiled
def place_in_order(
    first: Integers,
    last: Integers,
    size: Integers,
    order: Integers,
    is_pinned: Flags,
    tightest: bool,
    offsets: Integers,
) -> int:
    """Place buffers in the given order: write `offsets` and return the height, in quadratic time.

    `first`, `last` and `size` have one entry per buffer, which is live in sections `[first, last)`.
    Where `is_pinned`, the offset is given; `order` has pinned buffers first.
    """
    placed = np.empty((len(order), 4), np.int64)
    height = 0
    for count in range(len(order)):
        index = order[count]
        if not is_pinned[index]:
            offsets[index] = _gap(placed, count, first[index], last[index], size[index], tightest)
        offset = offsets[index]
        row = count
        # Insertion keeps the list sorted; it costs no more than the search for the gap.
        while row > 0 and placed[row - 1, 2] > offset:
            for column in range(4):
                placed[row, column] = placed[row - 1, column]
            row -= 1
        placed[row, 0], placed[row, 1] = first[index], last[index]
        placed[row, 2], placed[row, 3] = offset, offset + size[index]
        height = max(height, offset + size[index])
    return height
