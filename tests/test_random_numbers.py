"""Numbers at random: spread evenly, by seed, the same wherever they are drawn."""

import numpy as np

from graphc.random_numbers import random_numbers


def test_random_numbers_are_spread_evenly():
    numbers = random_numbers(100_000, 7)
    assert -1 <= numbers.min() < -0.99 < 0.99 < numbers.max() <= 1
    assert abs(numbers.mean()) < 0.01
    assert abs(np.corrcoef(numbers, random_numbers(100_000, 8))[0, 1]) < 0.01
    assert (random_numbers(3, 1) == random_numbers(5, 1)[:3]).all()
