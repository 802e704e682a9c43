"""Iterated local search on a schedule: relax the capacity, then return to it.

`fill` only removes recomputed steps and `evict` only adds them, each by the cheapest next change.
Alternating them escapes the local optima of either. Within a larger capacity `fill` removes
expensive recomputation, then `evict` returns to the capacity by other recomputation. The cheaper
of the two schedules is kept, until no relaxed capacity helps.

An iteration fills twice and evicts once. `effort` bounds the product of iterations and steps,
so larger problems than that have no local search.

`perturbed` is one iteration in which eviction sees costs with random factors, so it returns to the
capacity in another way. It serves searches that have seconds (given/solve.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.planner.problem import Problem
from graphc.planner.recompute.evict import evict
from graphc.planner.recompute.fill import fill
from graphc.random_numbers import random_numbers

RELAXED = (1.05, 1.1, 1.2, 1.03, 1.07, 1.15, 1.3)
"""Relaxed capacities, as multiples of the required one."""

LARGEST_FACTOR = 3
"""The largest factor of a perturbed cost; the smallest is its inverse."""


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


def perturbed(
    problem: Problem, sequence: Sequence[int], capacity: int, number: int
) -> list[int] | None:
    """Return another sequence that fits the capacity, near one that does, or None.

    `number` determines the relaxed capacity and the random factors of the costs.
    """
    relaxed = fill(problem, sequence, int(RELAXED[number % len(RELAXED)] * capacity))
    part = (LARGEST_FACTOR - 1) / (LARGEST_FACTOR + 1) * random_numbers(len(problem), number)
    found = evict(problem, relaxed, capacity, (1 + part) / (1 - part))
    return None if found is None else fill(problem, found, capacity)
