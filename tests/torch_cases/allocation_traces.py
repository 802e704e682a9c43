"""Random traces of allocations for the model of torch's allocator, and settings to replay them."""

import random
from typing import NamedTuple

from graphc.torch.fit.allocator import MIB, replay


class Case(NamedTuple):
    """A trace of (key, bytes) and, for a free, (key, -bytes), with settings; 0 is unlimited."""

    trace: list[tuple[int, int]]
    capacity_bytes: int
    max_split_bytes: int
    expandable_segments: bool

    def settings(self) -> dict:
        return {
            "capacity_bytes": self.capacity_bytes or None,
            "max_split_bytes": self.max_split_bytes or None,
            "expandable_segments": self.expandable_segments,
        }


def case(seed: int) -> Case:
    """Return a case; `random` guarantees the same one everywhere, as only `random()` is used."""
    draw = random.Random(seed).random
    length = (20, 80, 300)[int(draw() * 3)]
    growth = 0.5 + 0.2 * draw()
    largest = 20 + 7 * draw()
    trace, live = [], []
    for key in range(length):
        if live and draw() > growth:
            gone, size = live.pop(int(draw() * len(live)))
            trace.append((gone, -size))
        else:
            size = int(2 ** (largest * draw())) if draw() < 0.7 else int(draw() * 40) * MIB // 2
            trace.append((key, max(size, 1)))
            live.append(trace[-1])
    max_split_bytes = (0, 0, 21, 64)[int(draw() * 4)] * MIB
    expandable = draw() < 0.4
    free = replay(trace, max_split_bytes=max_split_bytes or None, expandable_segments=expandable)
    share = 0.6 + 0.8 * draw()
    capacity = int(free.reserved_bytes * share) if share < 1 else 0
    return Case(trace, capacity // (2 * MIB) * (2 * MIB), max_split_bytes, expandable)
