"""Pseudorandom numbers that are identical on every machine, for randomized searches."""

from __future__ import annotations

import numpy as np


def random_numbers(count: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return `count` numbers in `[-1, 1)` from SplitMix64 (Steele et al., 2014).

    They are identical on every machine.
    """
    golden = 0x9E3779B97F4A7C15
    state = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(golden)
    state += np.uint64(seed * 0xD1342543DE82EF95 % 2**64)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    # A float64 represents the upper 53 bits exactly.
    return (state >> np.uint64(11)).astype(np.float64) / 2**52 - 1.0
