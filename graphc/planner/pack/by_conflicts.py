"""Packing by an interference graph, for live ranges that are not intervals.

With several streams, a partial order decides which buffers interfere. Buffers are placed one after
another in several orders. Each buffer gets the lowest or the smallest gap between the placed
buffers that it interferes with. The best packing is then improved: its topmost buffers move to the
front of the order, until `ROUNDS` rounds in a row give no lower packing. One placement of n buffers
takes O(n²).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from graphc.jit import compiled
from graphc.planner.pack.problem import Flags, Integers

ROUNDS = 60
"""Number of successive rounds without a lower packing after which the search ends."""


@compiled
def _place(order: Integers, size: Integers, conflict: Flags, tightest: bool) -> Integers:
    """Place buffers in order, each in its lowest or, with `tightest`, its smallest gap; return
    offsets."""
    count = len(order)
    offsets, placed = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for done in range(count):
        index = order[done]
        floor, best, best_gap, found = 0, 0, 0, False
        for row in range(done):  # placed buffers, by start
            other = placed[row]
            if conflict[index, other]:
                gap_size = offsets[other] - floor
                if gap_size >= size[index] and (not found or gap_size < best_gap):
                    best, best_gap, found = floor, gap_size, True
                    if not tightest:
                        break
                floor = max(floor, offsets[other] + size[other])
        offsets[index] = best if found else floor
        row = done
        while row > 0 and offsets[placed[row - 1]] > offsets[index]:
            placed[row] = placed[row - 1]
            row -= 1
        placed[row] = index
    return offsets


def pack_by_conflicts(
    size: Sequence[int], conflict: npt.NDArray[np.bool_], duration: Sequence[int]
) -> tuple[list[int], int]:
    """Return offsets and height in bytes for buffers of `size` bytes.

    `conflict`, of shape (buffers, buffers), is symmetric: two buffers that conflict share no byte.
    `duration` only affects the orders that are tried. The result is deterministic.
    """
    sizes, durations = np.array(size, np.int64), np.array(duration, np.int64)
    if not len(sizes):
        return [], 0
    numbers = np.arange(len(sizes))
    orders = [
        np.lexsort((numbers, -durations, -sizes)),
        np.lexsort((numbers, -sizes * durations)),
        np.lexsort((numbers, -sizes, -durations)),
        numbers,
    ]
    tried = [
        (order, tightest, _place(order, sizes, conflict, tightest))
        for order in orders
        for tightest in (False, True)
    ]
    order, tightest, best = min(tried, key=lambda each: _height(each[2], sizes))
    height, without = _height(best, sizes), 0
    found = best
    while without < ROUNDS:
        is_top = (found + sizes == _height(found, sizes))[order]
        if is_top[: is_top.sum()].all():
            break
        order = np.concatenate([order[is_top], order[~is_top]])
        found = _place(order, sizes, conflict, tightest)
        without += 1
        if _height(found, sizes) < height:
            best, height, without = found, _height(found, sizes), 0
    return best.tolist(), height


def _height(offsets: Integers, sizes: Integers) -> int:
    return int((offsets + sizes).max())
