"""What no sequence within a budget can go below: minimum cuts with a multiplier for bytes.

Take a node w. When it is first computed, at most the budget is live. Each ancestor of w that a
descendant of w reads is then either live, which takes bytes, or is computed again later, which
costs and asks the same of its own inputs. With a multiplier for the one row of bytes, the least of
that is a minimum cut; every multiplier gives a bound, and it holds for every order of execution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from graphc.planning.problem import Problem

LARGEST = 3000
"""Needed nodes up to which a cut takes little time."""

PLACES = 5
"""Nodes w that are tried, those at which the most bytes are live."""

MULTIPLIERS = 14
"""Steps of the search for the best multiplier; the bound is concave in it."""

CAPACITY = 2**30
"""Sum of all capacities; they are whole numbers, rounded down, which keeps the bound valid."""


def extra_cost(problem: Problem, budget: int) -> float:
    """A lower bound on the cost beyond computing every needed node once."""
    if len(problem.needed) > LARGEST:
        return 0.0
    return max((_Place(problem, w, budget).bound() for w in _places(problem)), default=0.0)


def _places(problem: Problem) -> list[int]:
    """Nodes at which the most is live when everything is kept, apart from one another."""
    last_use = {source: node for node in problem.needed for source in problem.inputs[node]}
    live, profile = 0, []
    ending: dict[int, int] = {}
    for node in problem.needed:
        live += problem.bytes[node]
        profile.append((live + problem.workspace[node], node))
        if node not in problem.outputs | problem.pinned:
            end = last_use.get(node, node)
            ending[end] = ending.get(end, 0) + problem.bytes[node]
        live -= ending.pop(node, 0)
    chosen: list[int] = []
    apart = len(problem.needed) // (4 * PLACES)
    for _, node in sorted(profile, reverse=True):
        if all(abs(node - other) > apart for other in chosen):
            chosen.append(node)
        if len(chosen) == PLACES:
            break
    return chosen


@dataclass(frozen=True, slots=True)
class _Row:
    """One edge of the cut graph: a fixed part of its capacity and one for each byte."""

    start: int
    end: int
    cost: float
    bytes: float


class _Place:
    """The cut graph of one node w. Node 0 is the source, 1 the sink, 2 + 2a and 3 + 2a ancestor a's
    in and out: source to in costs a computation, in to out costs bytes."""

    def __init__(self, problem: Problem, w: int, budget: int) -> None:
        ancestors = _ancestors(problem, w)
        index = {node: number for number, node in enumerate(sorted(ancestors))}
        read_later = {
            source
            for node in _descendants(problem, w)
            for source in problem.inputs[node]
            if source in ancestors
        }
        self.room = budget - problem.fixed_bytes - problem.bytes[w] - problem.workspace[w]
        self.count = 2 + 2 * len(index)
        self.rows: list[_Row] = []
        for node, number in index.items():
            into, out = 2 + 2 * number, 3 + 2 * number
            self.rows.append(_Row(0, into, problem.cost[node], 0.0))
            self.rows.append(_Row(into, out, 0.0, float(problem.bytes[node])))
            for source in set(problem.inputs[node]):
                self.rows.append(_Row(3 + 2 * index[source], into, math.inf, 0.0))
            if node in read_later:
                self.rows.append(_Row(out, 1, math.inf, 0.0))
        costs = [row.cost for row in self.rows if math.isfinite(row.cost)]
        self.total_cost = sum(costs)
        self.total_bytes = sum(row.bytes for row in self.rows)

    def bound(self) -> float:
        """The best over multipliers, by golden section."""
        if not self.total_cost or not self.total_bytes or self.room < 0:
            return 0.0
        low, high = 0.0, 4 * self.total_cost / max(self.total_bytes, 1)
        ratio = (math.sqrt(5) - 1) / 2
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        at_a, at_b = self.at(a), self.at(b)
        best = max(0.0, at_a, at_b)
        for _ in range(MULTIPLIERS):
            if at_a >= at_b:
                high, b, at_b = b, a, at_a
                a = high - ratio * (high - low)
                at_a = self.at(a)
            else:
                low, a, at_a = a, b, at_b
                b = low + ratio * (high - low)
                at_b = self.at(b)
            best = max(best, at_a, at_b)
        return best

    def at(self, multiplier: float) -> float:
        """Minimum cut, less what the budget's bytes are worth."""
        scale = CAPACITY / (self.total_cost + multiplier * self.total_bytes)
        capacity = [
            CAPACITY if math.isinf(row.cost) else int((row.cost + multiplier * row.bytes) * scale)
            for row in self.rows
        ]
        ends = ([row.start for row in self.rows], [row.end for row in self.rows])
        graph = csr_array((np.array(capacity, np.int32), ends), shape=(self.count,) * 2)
        return float(maximum_flow(graph, 0, 1).flow_value) / scale - multiplier * self.room


def _ancestors(problem: Problem, w: int) -> set[int]:
    found: set[int] = set()
    pending = [w]
    while pending:
        for source in problem.inputs[pending.pop()]:
            if source not in found:
                found.add(source)
                pending.append(source)
    return found


def _descendants(problem: Problem, w: int) -> set[int]:
    found = {w}
    for node in problem.needed:
        if node > w and not found.isdisjoint(problem.inputs[node]):
            found.add(node)
    return found - {w}
