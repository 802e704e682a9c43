"""Iterated local search on a sequence: give it room, then take the room away again.

polish.py only takes repeats out and shrink.py only puts them in, each where it is cheapest at the
time. One after the other they leave what either alone is stuck with: within a limit somewhat larger
the first drops the repeats that are dear, whoever put them in, and the second comes back to the
limit with others. The cheaper of the two sequences goes on, until no relaxed limit helps.

Then costs are disturbed at random while a sequence is shrunk, so that it comes back by another way;
what counts is the cost as it is. That ends after so many turns in vain, too.

A turn fills twice and shrinks once. `effort` bounds turns: so many times the steps that there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.random_numbers import random_numbers
from graphc.remat.evict import evict
from graphc.remat.fill import fill
from graphc.scheduling.problem import Problem
from graphc.scheduling.profile import Floats

RELAXED = (1.05, 1.1, 1.2, 1.03, 1.07, 1.15, 1.3)
"""Limits that sequences are given, as multiples of the one that they have to come back to."""

NOISE = 3
"""Disturbed costs are at most so many times as high, or as low."""

IN_VAIN = 40
"""So many turns with noise, one after another, that find nothing cheaper lead nowhere."""


def iterate(steps: Problem, sequence: Sequence[int], limit: int, effort: int) -> list[int]:
    """A sequence of no higher cost with a peak of at most `limit`, from one that has that."""
    best, cost = list(sequence), steps.extra_cost(sequence)
    tried = [best]
    relaxed: dict[float, list[int]] = {}  # the best, filled
    turns, failed = effort // max(len(steps), 1), 0
    for turn in range(turns):
        if failed == len(RELAXED) + IN_VAIN:
            break
        factor = RELAXED[turn % len(RELAXED)]
        if factor not in relaxed:
            relaxed[factor] = fill(steps, best, int(factor * limit))
        failed += 1
        if failed > len(RELAXED):
            shrunk = evict(steps, relaxed[factor], limit, _noise(len(steps), turn))
        elif relaxed[factor] in tried:
            continue
        else:
            tried.append(relaxed[factor])
            shrunk = evict(steps, relaxed[factor], limit)
        if shrunk is not None:
            filled = fill(steps, shrunk, limit)
            if steps.extra_cost(filled) < cost * (1 - 1e-9):  # less by rounding is no less
                best, cost, failed = filled, steps.extra_cost(filled), 0
                relaxed.clear()
    return best


def _noise(count: int, seed: int) -> Floats:
    """Factors that are as often high as low, by arithmetic that is the same on every machine."""
    part = (NOISE - 1) / (NOISE + 1) * random_numbers(count, seed)
    return (1 + part) / (1 - part)
