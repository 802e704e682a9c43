"""Excess in blocks against one number per position."""

from __future__ import annotations

import numpy as np
import pytest

from graphc.planner.recompute.excess import BLOCK, excess_at, excess_of, gain_of, reduce_excess


@pytest.mark.parametrize("seed", range(20))
def test_blocks_count_what_single_positions_count(seed: int) -> None:
    random = np.random.default_rng(seed)
    plain = random.integers(0, 30, int(random.integers(1, 6 * BLOCK)))
    # Long runs of equal excess, so that all kinds of block occur.
    plain = np.repeat(plain, random.integers(1, BLOCK))[: 6 * BLOCK].astype(np.int64)
    excess = excess_of(plain)
    for _ in range(60):
        begin, end = sorted(random.integers(0, len(plain) + 1, 2).tolist())
        size = int(random.integers(0, 20))
        gain = int(np.minimum(plain[begin:end], size).sum())
        assert gain_of(excess, begin, end, size) == gain
        if random.random() < 0.5:
            assert reduce_excess(excess, begin, end, size) == gain
            plain[begin:end] -= np.minimum(plain[begin:end], size)
        assert excess.total.sum() == plain.sum()
        position = int(random.integers(0, len(plain)))
        assert excess_at(excess, position) == plain[position]
