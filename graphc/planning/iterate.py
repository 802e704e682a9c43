"""Iterated local search on a sequence: give it room, then take the room away again.

polish.py only takes repeats out and shrink.py only puts them in, each where it is cheapest at the
time. One after the other they leave what either alone is stuck with: within a limit somewhat larger
the first drops the repeats that are dear, whoever put them in, and the second comes back to the
limit with others. The cheaper of the two sequences goes on, until no relaxed limit helps.

A turn fills twice and shrinks once. `effort` bounds turns: so many times the steps that there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.planning.polish import keep_more
from graphc.planning.shrink import shrink
from graphc.planning.steps import Steps

RELAXED = (1.05, 1.1, 1.2, 1.03, 1.07, 1.15, 1.3)
"""Limits that sequences are given, as multiples of the one that they have to come back to."""


def iterate(steps: Steps, sequence: Sequence[int], limit: int, effort: int) -> list[int]:
    """A sequence of no higher cost with a peak of at most `limit`, from one that has that."""
    best, cost = list(sequence), steps.extra_cost(sequence)
    tried = [best]
    turns, failed = effort // max(len(steps), 1), 0
    for turn in range(turns):
        if failed == len(RELAXED):
            break
        failed += 1
        relaxed = keep_more(steps, best, int(RELAXED[turn % len(RELAXED)] * limit))
        if relaxed in tried:
            continue
        tried.append(relaxed)
        shrunk = shrink(steps, relaxed, limit)
        if shrunk is not None:
            filled = keep_more(steps, shrunk, limit)
            if steps.extra_cost(filled) < cost * (1 - 1e-9):  # less by rounding is no less
                best, cost, failed = filled, steps.extra_cost(filled), 0
    return best
