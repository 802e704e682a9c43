"""Packing problems small enough to try everything."""

import numpy as np
from hypothesis import strategies as st

from graphc.planner.pack.problem import PackingProblem

LEVEL = [
    (2, 1, 1), (2, 3, 4), (0, 3, 4), (0, 1, 3), (1, 3, 2), (0, 1, 4), (1, 1, 5), (3, 1, 5),
    (4, 1, 7),
]  # fmt: skip
"""Birth, duration and size: eleven units are live at every time, and no packing is below twelve."""


def rows(most, longest=4, largest=6):
    """Lists of (birth, duration, size)."""
    one = st.tuples(st.integers(0, 6), st.integers(1, longest), st.integers(1, largest))
    return st.lists(one, min_size=1, max_size=most)


def problem_of(rows, pinned=None):
    """The problem of rows, with the offsets of those that are pinned by their index."""
    lower, duration, size = np.array(rows, np.int64).T
    is_pinned, offset = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.int64)
    for index, start in (pinned or {}).items():
        is_pinned[index], offset[index] = True, start
    return PackingProblem.of(lower, lower + duration, size, is_pinned, offset)


def free(columns):
    """The problem of generated buffers, none of which is pinned."""
    none = np.zeros(len(columns[0]), np.int64)
    return PackingProblem.of(*columns, none.astype(bool), none)


def live_together(problem, i, j):
    return bool(problem.first[i] < problem.last[j] and problem.first[j] < problem.last[i])


def is_packing(problem, offsets, capacity):
    """Whether nothing overlaps, leaves [0, capacity), or moves from its pin."""
    ends = offsets + problem.size
    pairs = ((i, j) for i in range(len(problem)) for j in range(i))
    return (
        (offsets >= 0).all()
        and (ends <= capacity).all()
        and (offsets[problem.is_pinned] == problem.offset[problem.is_pinned]).all()
        and not any(
            live_together(problem, i, j) and offsets[i] < ends[j] and offsets[j] < ends[i]
            for i, j in pairs
        )
    )


def fits(problem, capacity):
    """Whether any offsets of the free buffers fit, by trying all."""
    pinned = np.flatnonzero(problem.is_pinned).tolist()
    placed = {i: int(problem.offset[i]) for i in pinned}
    size = problem.size.tolist()
    if any(placed[i] + size[i] > capacity for i in pinned):
        return False

    def is_free(i, at):
        return not any(
            live_together(problem, i, j) and at < off + size[j] and off < at + size[i]
            for j, off in placed.items()
        )

    def place(free):
        if not free:
            return True
        for at in range(capacity - size[free[0]] + 1):
            if is_free(free[0], at):
                placed[free[0]] = at
                if place(free[1:]):
                    return True
                del placed[free[0]]
        return False

    return place(np.flatnonzero(~problem.is_pinned).tolist())


def best_fit(problem, order, tightest=True):
    """Offsets in one order into a tightest gap or the lowest one, found byte by byte."""
    offsets = {}
    for i in order:
        taken = {
            byte
            for j, offset in offsets.items()
            if live_together(problem, i, j)
            for byte in range(offset, offset + problem.size[j])
        }
        gaps, start = [], 0
        for byte in sorted(taken):
            if byte - start >= problem.size[i]:
                gaps.append((byte - start, start))
            start = byte + 1
        first = min(gaps, key=lambda gap: gap[1], default=(0, start))
        offsets[i] = (min(gaps, default=first) if tightest else first)[1]
    return [offsets[i] for i in range(len(order))]


def lowest_first(problem, order):
    """By the definition: of those that can lie lowest the first in the order, one after another."""
    offsets = {}
    while len(offsets) < len(order):
        lowest = {
            i: max(
                (offsets[j] + problem.size[j] for j in offsets if live_together(problem, i, j)),
                default=0,
            )
            for i in order
            if i not in offsets
        }
        chosen = min(lowest, key=lambda i: (lowest[i], order.index(i)))
        offsets[chosen] = lowest[chosen]
    return [offsets[i] for i in range(len(order))]


def level_columns(seed, count=39):
    """Buffers without a byte to spare at any time, which no search is done with soon.

    Random ones, and at each time another that fills up to the most that is live.
    """
    rng = np.random.default_rng(seed)
    lower = rng.integers(0, 8, count)
    upper = lower + rng.integers(1, 5, count)
    size = rng.integers(20, 60, count)
    times = np.arange(upper.max())
    live = np.array([size[(lower <= t) & (t < upper)].sum() for t in times])
    columns = (
        np.concatenate((lower, times)),
        np.concatenate((upper, times + 1)),
        np.concatenate((size, live.max() - live)),
    )
    return tuple(column[columns[2] > 0] for column in columns)
