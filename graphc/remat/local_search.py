"""Iterated local search on a schedule: relax the capacity, then return to it.

`fill` only removes recomputed steps and `evict` only adds them, each by the cheapest next change.
Alternating them escapes the local optima of either. Within a larger capacity `fill` removes
expensive recomputation, then `evict` returns to the capacity by other recomputation. The cheaper
of the two schedules is kept, until no relaxed capacity helps.

An iteration fills twice and evicts once. `effort` bounds the product of iterations and steps,
so larger problems than that have no local search.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.remat.evict import evict
from graphc.remat.fill import fill
from graphc.scheduling.problem import Problem

RELAXED = (1.05, 1.1, 1.2, 1.03, 1.07, 1.15, 1.3)
"""Relaxed capacities, as multiples of the required one."""


def iterate(problem: Problem, sequence: Sequence[int], capacity: int, effort: int) -> list[int]:
    """Improve a sequence that fits the capacity; return one that fits and costs no more."""
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
        if problem.extra_cost(filled) < cost * (1 - 1e-9):  # ignores rounding differences
            best, cost, failed = filled, problem.extra_cost(filled), 0
    return best
