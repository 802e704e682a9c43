"""Best fit and first fit in a given order: a gap among those that a buffer lives with.

Buffers are placed one after another, and never moved. Those that are placed stand in a list by
their start, and one walk over it finds the gaps for the next: with `floor` the highest end so far
of a neighbour (one that shares a section), a neighbour that starts at or above floor + size leaves
a gap. First fit takes the lowest gap, best fit the smallest; without any, the buffer goes on top of
its neighbours. Every step is O(buffers placed), so n buffers take O(n²) time, and O(n) memory.

By falling size this is the greedy by size of Pisarchyk and Lee (2020) for tensors; here that is one
of several orders.
"""

from __future__ import annotations

import numpy as np

from graphc.jit import compiled
from graphc.packing.problem import Flags, Integers


@compiled
def _gap(placed: Integers, count: int, first: int, last: int, size: int, tightest: bool) -> int:
    """Offset of the lowest gap that holds `size` in sections [first, last), or of a tightest one.

    Rows of `placed` are (first, last, start, end), by start.
    """
    floor, best, room_there, found = 0, 0, 0, False
    for row in range(count):
        # Who shares no section may overlap in bytes, and is passed over.
        if placed[row, 0] < last and first < placed[row, 1]:
            room = placed[row, 2] - floor
            # Of gaps equally tight the lowest, as the walk goes up.
            if room >= size and (not found or room < room_there):
                best, room_there, found = floor, room, True
                if not tightest:
                    return best
            # Not the last end: who starts lower may end higher.
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
    """Fill `offsets` and return the height, in quadratic work.

    `first`, `last` and `size` have an entry a buffer, which lives in sections [first, last). Where
    `is_pinned`, the offset is given; `order` has pinned buffers first.
    """
    placed = np.empty((len(order), 4), np.int64)
    height = 0
    for count in range(len(order)):
        index = order[count]
        if not is_pinned[index]:
            offsets[index] = _gap(placed, count, first[index], last[index], size[index], tightest)
        offset = offsets[index]
        row = count
        # The list stays sorted, which costs no more than the walk for the gap did.
        while row > 0 and placed[row - 1, 2] > offset:
            for column in range(4):
                placed[row, column] = placed[row - 1, column]
            row -= 1
        placed[row, 0], placed[row, 1] = first[index], last[index]
        placed[row, 2], placed[row, 3] = offset, offset + size[index]
        height = max(height, offset + size[index])
    return height
