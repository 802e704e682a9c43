"""Rows of what optimizers compute before their updates, which tests/api compares with formulas."""

from __future__ import annotations

import numpy as np
from ops.samples.sample import M, Sample, direct

from graphc.ops import optimizer_update


def lamb_direction(w, m, v, g, first, second):
    mean, squares = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
    return mean * first / (np.sqrt(squares) * second + 1e-3) + 0.1 * w


SAMPLES = [
    Sample(
        "lamb_direction",
        direct(
            optimizer_update.LambDirection,
            optimizer_update.LambDirectionAttributes(0.8, 0.9, 1e-3, 0.1),
        ),
        (*[M] * 4, (), ()), lamb_direction, domain=(0.1, 2.0),
    ),
]  # fmt: skip
