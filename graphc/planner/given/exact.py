"""The cheapest schedule of a small problem, among all valid orders of its nodes.

A state is the set of live values and of tracked nodes that have run, as the bits of an integer. A
node is tracked if it may run only once and its values may be evicted, or if an ordering constraint
requires another node to run after it. There are two moves from a state L:

    compute v   The new state is L and the outputs of v; the cost is cost(v). All inputs of v must
                be live, all nodes that must precede v must have run, and L, the outputs and the
                workspace must fit in the budget.
    evict x     The new state is L without the value x; the cost is 0. The node of x must not be
                pinned.

An input that an output overwrites is evicted by the computation itself: each set of such inputs is
a choice of its own, and their bytes are not counted twice. The optimum is a shortest path
(Dijkstra, 1959) from the empty set to any that has all values that are live out. For the fewest
bytes, the length of a path is its peak instead of its cost. With b bits there are up to 2^b states,
hence the limit of 13 bits. A tracked node has no live values before it has run, so with m values it
counts as log2(1 + 2^m) bits.

For a given sequence of computations, the peak is lowest if each value is evicted right after its
last use. The search contains that path for every sequence, so it misses no schedule that fits.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from graphc.planner.given.problem import GivenProblem

LARGEST = 13
"""Maximum number of bits of a state for an exhaustive search."""


Length = Callable[[float, int, int], float]
"""Returns the length of a path after one more computation: of a node, with bytes live during it."""


def is_small(problem: GivenProblem) -> bool:
    """Return whether a problem is small enough for `cheapest`: at most 2^`LARGEST` states."""
    tracked = set(_tracked(problem))
    states = (2 ** len(problem.outputs[node]) + (node in tracked) for node in problem.order)
    return sum(map(math.log2, states)) <= LARGEST


def cheapest(problem: GivenProblem, budget: int) -> list[int] | None:
    """Return an optimal schedule of nodes, or None if none fits the budget."""
    return _shortest(problem, budget, lambda cost, node, size: cost + problem.cost[node])


def lowest(problem: GivenProblem) -> list[int]:
    """Return a schedule of nodes with the fewest peak bytes of all."""
    peak = problem.peak(problem.order)
    found = _shortest(problem, peak, lambda most, node, size: max(most, size))
    assert found is not None, "the order of the nodes fits its own peak"
    return found


def _shortest(problem: GivenProblem, budget: int, length: Length) -> list[int] | None:
    """Return the schedule of a shortest path, or None if none fits the budget."""
    if problem.fixed_bytes > budget:
        return None
    states = _States(problem, budget)
    best: dict[int, float] = {0: 0.0}
    previous: dict[int, tuple[int, int | None]] = {}
    heap = [(0.0, 0, 0)]
    while heap:
        reached, _, state = heapq.heappop(heap)
        if reached > best[state]:
            continue
        if state & states.goal == states.goal:
            return _path(previous, state)
        for following, node, size in states.following(state):
            total = reached if node is None else length(reached, node, size)
            if total < best.get(following, float("inf")):
                best[following] = total
                previous[following] = (state, node)
                # Evictions are free, so costs tie: the fullest state is the nearest to the goal.
                heapq.heappush(heap, (total, -following.bit_count(), following))
    return None


def orders(problem: GivenProblem) -> Iterator[list[int]]:
    """Yield all orders of the nodes that run each node once."""

    def following(order: list[int], rest: frozenset[int]) -> Iterator[list[int]]:
        if not rest:
            yield order
        for node in sorted(rest):
            if rest.isdisjoint((*problem.sources[node], *problem.after[node])):
                yield from following([*order, node], rest - {node})

    return following([], frozenset(problem.order))


@dataclass(frozen=True, slots=True)
class _Computation:
    """A computation of a node, with the state bits that it needs, refuses, sets and clears. `bytes`
    is the workspace, less the bytes of inputs that outputs overwrite.
    """

    node: int
    needs: int
    refuses: int
    sets: int
    clears: int
    bytes: int


class _States:
    """The transitions between states of a problem within a budget."""

    def __init__(self, problem: GivenProblem, budget: int) -> None:
        self.problem, self.budget = problem, budget
        values = [value for node in problem.order for value in problem.outputs[node]]
        self.bit = {value: 1 << index for index, value in enumerate(values)}
        self.size = {bit: problem.bytes[value] for value, bit in self.bit.items()}
        tracked = enumerate(_tracked(problem), len(values))
        self.ran = {node: 1 << index for index, node in tracked}
        self.fixed = {value for node in problem.pinned for value in problem.outputs[node]}
        self.evictable = [self.bit[value] for value in values if value not in self.fixed]
        self.goal = self._bits(problem.live_out)
        self.goal |= sum(self.ran[node] for node in problem.pinned if not problem.outputs[node])
        self.computations = [c for node in problem.order for c in self._ways(node)]
        # Bytes follow from the set alone, whatever path led to it.
        self.bytes = {0: problem.fixed_bytes}

    def following(self, state: int) -> Iterator[tuple[int, int | None, int]]:
        """Yield each next state, with the node that the transition computes, or None for an
        eviction, and the bytes live during it."""
        live = self.bytes[state]
        for bit in self.evictable:
            if state & bit:
                self.bytes[state & ~bit] = live - self.size[bit]
                yield state & ~bit, None, live
        for way in self.computations:
            if state & way.needs != way.needs or state & way.refuses:
                continue
            if way.sets & ~state == 0:  # nothing new
                continue
            full = live + self._bytes_of(way.sets & ~state)
            if full + way.bytes <= self.budget:
                following = (state | way.sets) & ~way.clears
                self.bytes[following] = full - self._bytes_of(way.clears)
                yield following, way.node, full + way.bytes

    def _ways(self, node: int) -> Iterator[_Computation]:
        """Yield the possible computations of a node, one for each set of inputs that outputs may
        overwrite."""
        problem = self.problem
        outputs = self._bits(problem.outputs[node])
        own = self.ran.get(node, 0)
        needs = self._bits(problem.inputs[node])
        needs |= sum(self.ran[first] for first in problem.after[node] if first in self.ran)
        refuses = own if node in problem.once else 0
        operands = sorted({operand for _, operand in problem.overwrites[node]} - self.fixed)
        for count in range(len(operands) + 1):
            for dying in itertools.combinations(operands, count):
                size = problem.workspace[node] - self._overwritten(node, dying)
                yield _Computation(node, needs, refuses, outputs | own, self._bits(dying), size)

    def _overwritten(self, node: int, dying: tuple[int, ...]) -> int:
        """Return the bytes of the inputs in `dying` that outputs overwrite, matched in the order of
        pairs."""
        taken: set[int] = set()
        saved = 0
        for output, operand in self.problem.overwrites[node]:
            if operand in dying and taken.isdisjoint((output, operand)):
                taken |= {output, operand}
                saved += self.problem.bytes[output]
        return saved

    def _bits(self, values: frozenset[int] | tuple[int, ...]) -> int:
        return sum(self.bit[value] for value in set(values))

    def _bytes_of(self, bits: int) -> int:
        return sum(size for bit, size in self.size.items() if bits & bit)


def _tracked(problem: GivenProblem) -> list[int]:
    """Return the nodes that have a state bit for having run. A pinned node with values needs none,
    since its values are never evicted.
    """
    first = {node for nodes in problem.after for node in nodes}
    once = {n for n in problem.once if n not in problem.pinned or not problem.outputs[n]}
    return [node for node in problem.order if node in first or node in once]


def _path(previous: dict[int, tuple[int, int | None]], state: int) -> list[int]:
    sequence = []
    while state in previous:
        state, node = previous[state]
        if node is not None:
            sequence.append(node)
    return sequence[::-1]
