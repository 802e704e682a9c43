"""Offsets for buffers that conflict as a graph says, where lifetimes are no intervals.

Streams run nodes side by side, so who lives with whom is a partial order's matter. Buffers are
placed one after another in several orders, each in the lowest or the tightest gap that those which
it conflicts with leave it; the best packing is then improved by moving the buffers at its top to
the front of its order, as long as that helps. O(n²) for n buffers each time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from graphc.jit import compiled
from graphc.packing.problem import Flags, Integers

ROUNDS = 60
"""How often the top is moved to the front without a lower packing before the search ends."""


@compiled
def _place(order: Integers, size: Integers, conflict: Flags, tightest: bool) -> Integers:
    """The offset of each buffer, given one after another."""
    count = len(order)
    offsets, placed = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for done in range(count):
        index = order[done]
        floor, best, room_there, found = 0, 0, 0, False
        for row in range(done):  # those placed, by their start
            other = placed[row]
            if conflict[index, other]:
                room = offsets[other] - floor
                if room >= size[index] and (not found or room < room_there):
                    best, room_there, found = floor, room, True
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
    """Offsets and height for sizes in bytes; `conflict`, (buffers, buffers), is symmetric and says
    which of them have no byte in common. Durations only make orders to try. Deterministic."""
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
