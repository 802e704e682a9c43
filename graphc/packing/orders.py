"""Orders of buffers: which is placed first, or tried first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from graphc.packing.problem import Integers, PackingProblem
from graphc.random_numbers import random_numbers

KEYS = (
    ("crowd", "duration", "area"),
    ("crowd", "area", "duration"),
    ("duration", "area", "crowd"),
    ("area", "duration", "crowd"),
    ("size", "duration", "crowd"),
)
"""Large values first, the first key before the others: MiniMalloc's orders and those by one key.
"""

NOISE = (0.08, 0.25, 0.6)
"""How far the first key of an order is changed at random, as a part of it."""


def columns_of(problem: PackingProblem) -> dict[str, Integers]:
    """The keys of orders: size, duration, area, birth of each buffer, and the crowd that it is in.

    Durations are counted in sections, so that an order depends on who lives with whom alone.
    """
    duration = problem.last - problem.first
    return {
        "size": problem.size,
        "duration": duration,
        "area": problem.size * duration,
        "crowd": problem.crowd,
        # Keys are taken from large to small, births from early to late.
        "birth": -problem.first,
    }


def basic_orders(problem: PackingProblem) -> Iterator[Integers]:
    """Orders by `KEYS`, then by birth."""
    columns = columns_of(problem)
    for keys in (*KEYS, ("birth", "duration", "size")):
        yield order_by([columns[key] for key in keys])


def disturbed_orders(problem: PackingProblem) -> Iterator[Integers]:
    """Orders by `KEYS`, at first as they are, then disturbed more and less, without an end."""
    columns = columns_of(problem)
    for keys in KEYS:
        yield order_by([columns[key] for key in keys])
    number = 0
    while True:
        for noise in NOISE:
            for keys in KEYS:
                number += 1
                factor = 1 + noise * random_numbers(len(problem), number)
                # The first key only: the others break its ties, of which noise leaves few.
                key, *others = (columns[name] for name in keys)
                yield order_by([key * factor, *others])


def order_by(keys: list[np.ndarray[tuple[int, ...], np.dtype[np.number]]]) -> Integers:
    """Buffers by falling keys, the first before the others; equal ones as they are given."""
    # lexsort has its first key last.
    return np.lexsort([-key for key in reversed(keys)])


def ranks(order: Integers) -> Integers:
    """The place of each buffer in an order."""
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order))
    return found
