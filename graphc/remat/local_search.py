"""Iterated local search on a schedule: relax the capacity, then come back to it.

`fill` only removes repetitions and `evict` only adds them, each where that is cheapest at the time.
In turn they leave what either alone is stuck with: within a somewhat larger capacity the first
drops expensive repetitions, and the second comes back to the capacity with others. The cheaper of
the two schedules goes on, until no relaxed capacity helps.

A turn fills twice and evicts once. `effort` bounds the turns, as a number of steps of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.remat.evict import evict
from graphc.remat.fill import fill
from graphc.scheduling.problem import Problem

RELAXED = (1.05, 1.1, 1.2, 1.03, 1.07, 1.15, 1.3)
"""Relaxed capacities, as multiples of the one that has to hold."""


def iterate(problem: Problem, sequence: Sequence[int], capacity: int, effort: int) -> list[int]:
    """Return a sequence of no higher cost that fits, from one that fits."""
    best, cost = list(sequence), problem.extra_cost(sequence)
    tried = [best]
    failed = 0
    for iteration in range(effort // max(len(problem), 1)):
        if failed == len(RELAXED):
            break
        failed += 1
        factor = RELAXED[iteration % len(RELAXED)]
        relaxed = fill(problem, best, int(factor * capacity))
        if relaxed in tried:
            continue
        tried.append(relaxed)
        found = evict(problem, relaxed, capacity)
        if found is None:
            continue
        filled = fill(problem, found, capacity)
        if problem.extra_cost(filled) < cost * (1 - 1e-9):  # less by rounding is no less
            best, cost, failed = filled, problem.extra_cost(filled), 0
    return best
