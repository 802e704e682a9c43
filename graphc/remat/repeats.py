"""Records of recomputed steps during eviction: a list of places for each step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphc.jit import compiled
from graphc.scheduling.profile import Integers

ROOM = 256
"""Initial capacity, in recomputed steps."""


class Again(NamedTuple):
    """Recomputed steps: `step` at `place`, linked per step from `latest` back along `before`."""

    latest: Integers
    step: Integers
    place: Integers
    before: Integers


@compiled
def nothing_again(count: int) -> Again:
    """Return an empty record for `count` steps."""
    return Again(
        np.full(count, -1, np.int64),
        np.empty(ROOM, np.int64),
        np.empty(ROOM, np.int64),
        np.empty(ROOM, np.int64),
    )


@compiled
def runs_at(again: Again, step: int, place: int) -> bool:
    """Return whether a step is recomputed at a place."""
    run = again.latest[step]
    while run >= 0 and again.place[run] != place:
        run = again.before[run]
    return bool(run >= 0)


@compiled
def with_room(again: Again) -> Again:
    """Return the record with twice the capacity."""
    step, place, before = (
        np.concatenate((again.step, np.empty_like(again.step))),
        np.concatenate((again.place, np.empty_like(again.place))),
        np.concatenate((again.before, np.empty_like(again.before))),
    )
    return Again(again.latest, step, place, before)


@compiled
def run_again(again: Again, count: int, chain: Integers, place: int) -> int:
    """Record a chain at a place, and return the number of recomputed steps."""
    for step in chain:
        if not runs_at(again, step, place):
            again.step[count], again.place[count] = step, place
            again.before[count], again.latest[step] = again.latest[step], count
            count += 1
    return count
