"""Records of recomputed steps during eviction: a list of places for each step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphc.jit import compiled
from graphc.planner.profile import Integers

INITIAL_SIZE = 256
"""Initial capacity of the record, in recomputed steps."""


class Recomputed(NamedTuple):
    """Recomputed steps as linked lists: `latest` is the last entry of each step, `previous` the one
    before. Each entry records `step` at `place`."""

    latest: Integers
    step: Integers
    place: Integers
    previous: Integers


@compiled
def none_recomputed(count: int) -> Recomputed:
    """Return an empty record for `count` steps."""
    return Recomputed(
        np.full(count, -1, np.int64),
        np.empty(INITIAL_SIZE, np.int64),
        np.empty(INITIAL_SIZE, np.int64),
        np.empty(INITIAL_SIZE, np.int64),
    )


@compiled
def is_recomputed_at(recomputed: Recomputed, step: int, place: int) -> bool:
    """Return whether a step is recomputed at a place."""
    run = recomputed.latest[step]
    while run >= 0 and recomputed.place[run] != place:
        run = recomputed.previous[run]
    return bool(run >= 0)


@compiled
def enlarged(recomputed: Recomputed) -> Recomputed:
    """Return the record with twice the capacity."""
    step, place, previous = (
        np.concatenate((recomputed.step, np.empty_like(recomputed.step))),
        np.concatenate((recomputed.place, np.empty_like(recomputed.place))),
        np.concatenate((recomputed.previous, np.empty_like(recomputed.previous))),
    )
    return Recomputed(recomputed.latest, step, place, previous)


@compiled
def record(recomputed: Recomputed, count: int, chain: Integers, place: int) -> int:
    """Record the steps of a chain at a place, and return the new number of entries."""
    for step in chain:
        if not is_recomputed_at(recomputed, step, place):
            recomputed.step[count], recomputed.place[count] = step, place
            recomputed.previous[count], recomputed.latest[step] = recomputed.latest[step], count
            count += 1
    return count
