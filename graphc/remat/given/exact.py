"""The cheapest sequence of a small problem, in any order of its nodes.

A state is the set of live values, as bits of a whole number. From L one may

    compute v   to L + v at cost(v), if L holds all that v reads and bytes(L + v) + workspace(v) fit
    drop v      to L - v for free, unless v is pinned

and the optimum is a shortest path (Dijkstra) from the empty set to any that holds outputs and
pinned values. Nothing else has to be remembered: a pinned value is never dropped, so never computed
again. With n nodes there are up to 2^n states of n transitions, hence the limit of 13 nodes.

A sequence has its peak where each value is dropped right behind its last reader, which is one of
the paths that compute its nodes in its order.
"""

from __future__ import annotations

import heapq

from graphc.remat.given.problem import Problem

LARGEST = 13
"""Needed nodes up to which all live sets are few enough."""


def cheapest(problem: Problem, budget: int) -> list[int] | None:
    """An optimal sequence of positions, or None where nothing fits the budget."""
    nodes = problem.needed
    bit = {node: 1 << index for index, node in enumerate(nodes)}
    reads = {node: sum(bit[s] for s in set(problem.inputs[node])) for node in nodes}
    pinned = sum(bit[node] for node in problem.pinned)
    goal = sum(bit[node] for node in problem.outputs) | pinned
    best: dict[int, float] = {0: 0.0}
    before: dict[int, tuple[int, int | None]] = {}
    heap = [(0.0, 0, 0)]
    # Bytes follow from the set alone, whatever path led to it.
    size = {0: problem.fixed_bytes}
    while heap:
        cost, _, live = heapq.heappop(heap)
        if cost > best[live]:
            continue
        # Whatever else is live does no harm: it fits.
        if live & goal == goal:
            return _path(before, live)
        for node in nodes:
            if live & bit[node]:  # drop
                # It may not be computed again, so it may not be lost.
                if bit[node] & pinned:
                    continue
                fresh, total, step = live & ~bit[node], cost, None
                size[fresh] = size[live] - problem.bytes[node]
            else:  # compute
                needed = size[live] + problem.bytes[node]
                if live & reads[node] != reads[node] or needed + problem.workspace[node] > budget:
                    continue
                fresh, total, step = live | bit[node], cost + problem.cost[node], node
                size[fresh] = needed
            if total < best.get(fresh, float("inf")):
                best[fresh] = total
                before[fresh] = (live, step)
                # Drops cost nothing, so many states cost the same: the fullest is nearest the goal.
                heapq.heappush(heap, (total, -fresh.bit_count(), fresh))
    return None


def _path(before: dict[int, tuple[int, int | None]], live: int) -> list[int]:
    sequence = []
    while live in before:
        live, step = before[live]
        if step is not None:
            sequence.append(step)
    return sequence[::-1]
