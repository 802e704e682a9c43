"""Orders in which buffers are placed or tried."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from graphc.planner.pack.problem import Integers, PackingProblem
from graphc.random_numbers import random_numbers

KEYS = (
    ("crowd", "duration", "area"),
    ("crowd", "area", "duration"),
    ("duration", "area", "crowd"),
    ("area", "duration", "crowd"),
    ("size", "duration", "crowd"),
)
"""Sort keys of each order, most significant first; all sort in decreasing order."""

NOISE = (0.08, 0.25, 0.6)
"""The maximum relative perturbation of the first key of an order."""


def columns_of(problem: PackingProblem) -> dict[str, Integers]:
    """Return the sort keys of each buffer: size, duration, area, birth and crowd.

    `crowd` is the peak of live bytes during the buffer's live range. Durations are counted in
    sections, so that an order depends only on which live ranges overlap.
    """
    duration = problem.last - problem.first
    return {
        "size": problem.size,
        "duration": duration,
        "area": problem.size * duration,
        "crowd": problem.crowd,
        # Keys sort in decreasing order, births in increasing order.
        "birth": -problem.first,
    }


def basic_orders(problem: PackingProblem) -> Iterator[Integers]:
    """Yield orders of buffers: by each entry of `KEYS`, then by birth."""
    columns = columns_of(problem)
    for keys in (*KEYS, ("birth", "duration", "size")):
        yield order_by([columns[key] for key in keys])


def disturbed_orders(problem: PackingProblem) -> Iterator[Integers]:
    """Yield the orders by `KEYS`, then endlessly the same orders with random noise on the first
    key."""
    columns = columns_of(problem)
    for keys in KEYS:
        yield order_by([columns[key] for key in keys])
    number = 0
    while True:
        for noise in NOISE:
            for keys in KEYS:
                number += 1
                factor = 1 + noise * random_numbers(len(problem), number)
                # Only the first key is perturbed: the others break ties, and noise leaves few ties.
                key, *others = (columns[name] for name in keys)
                yield order_by([key * factor, *others])


def order_by(keys: list[np.ndarray[tuple[int, ...], np.dtype[np.number]]]) -> Integers:
    """Return the indices of buffers by decreasing keys, most significant key first; ties keep their
    order."""
    # `np.lexsort` takes the most significant key last.
    return np.lexsort([-key for key in reversed(keys)])


def ranks(order: Integers) -> Integers:
    """Return, for each buffer, its position in an order."""
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order))
    return found
