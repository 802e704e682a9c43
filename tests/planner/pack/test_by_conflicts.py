"""Packings by a graph of conflicts: sound, and the least where a formula says it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphc.planner.pack import pack
from graphc.planner.pack.by_conflicts import pack_by_conflicts


@st.composite
def problems(draw):
    count = draw(st.integers(0, 12))
    sizes = draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    upper = np.array(
        draw(st.lists(st.booleans(), min_size=count * count, max_size=count * count)), bool
    ).reshape(count, count)
    conflict = np.triu(upper, 1)
    return sizes, conflict | conflict.T


@given(problems())
def test_conflicting_buffers_lie_apart(problem):
    sizes, conflict = problem
    offsets, height = pack_by_conflicts(sizes, conflict, [1] * len(sizes))
    ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
    assert height == max(ends, default=0)
    for a, b in zip(*np.nonzero(conflict), strict=True):
        assert ends[a] <= offsets[b] or ends[b] <= offsets[a]
    neighbours = [sizes[a] + max(np.array(sizes)[row], default=0) for a, row in enumerate(conflict)]
    assert max(neighbours, default=0) <= height <= sum(sizes)


def test_all_or_no_conflicts():
    sizes = [3, 5, 2]
    nobody = np.zeros((3, 3), bool)
    assert pack_by_conflicts(sizes, nobody, [1, 1, 1])[1] == 5
    assert pack_by_conflicts(sizes, ~nobody & ~np.eye(3, dtype=bool), [1, 1, 1])[1] == 10
    assert pack_by_conflicts([], np.zeros((0, 0), bool), []) == ([], 0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), st.integers(1, 9)), max_size=14))
def test_intervals_are_packed_nearly_as_by_the_packer_for_them(drawn):
    """Within a third of a bound that the other packer proves."""
    first = np.array([f for f, _, _ in drawn], np.int64)
    last = np.array([f + d for f, d, _ in drawn], np.int64)
    sizes = [size for _, _, size in drawn]
    conflict = (first[:, None] < last) & (first < last[:, None])
    np.fill_diagonal(conflict, False)
    _, height = pack_by_conflicts(sizes, conflict, (last - first).tolist())
    best = pack(first, last, np.array(sizes, np.int64))
    assert best.bound <= height <= 1.34 * best.height
