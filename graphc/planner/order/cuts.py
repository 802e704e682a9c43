"""Lower bounds on the bytes live at a step under any order, by minimum cuts.

Let D be the set of steps that ran before step w. D contains all ancestors of w, but neither w nor
its descendants. `live(D)` of precedence.py counts a value if its producer is in D and a consumer is
not. This is a cut in a network of steps and values, with D on the side of the source:

    source → ancestors of w      infinite    they have run
    w, its descendants → sink    infinite    they have not run
    s → predecessors of s        infinite    if s has run, so have they
    producer of v → v            bytes of v  the source for values from outside
    v → each consumer of v       infinite    v is live until all consumers have run
    v → sink                     infinite    if v is in `live_out`

The finite cuts are the sets D that are closed under predecessors, so the least `live(D)` is a
minimum cut. No order has a peak below that cut plus the bytes that w itself takes. The cut also
gives the steps to run before w and those to run after it. The bytes of w assume that its outputs
overwrite as much as possible.

A cut is computed as a maximum flow by SciPy, in 32-bit integers. If the sum of the sizes exceeds
2^30 in units of their greatest common divisor, sizes are rounded down, so the bound holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from graphc.planner.order.precedence import Precedence

CAPACITY = 2**30
"""Upper limit of the sum of finite capacities, so that flows fit into 32-bit integers."""

UNCUTTABLE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class StepCut:
    """A lower bound on the bytes live at a step under any order, and the steps to run before the
    step."""

    bytes: int
    before: frozenset[int]


class Cuts:
    """The flow network of a problem, for minimum cuts at any of its steps."""

    def __init__(self, problem: Precedence) -> None:
        self.problem = problem
        steps, count = problem.steps, len(problem)
        self.source, self.sink = count, count + 1
        sized = [
            value
            for value, size in enumerate(steps.bytes)
            # A value without consumers is live only during its producer, where `at` counts it.
            if size and (problem.consumers[value] or value in steps.live_out)
        ]
        sizes = [steps.bytes[value] for value in sized]
        # A coarser unit rounds sizes down, so the result remains a lower bound.
        unit = math.gcd(*sizes) or 1
        self.unit = max(unit, -(-sum(sizes) // CAPACITY))
        self.count = count + 2 + len(sized)
        rows: list[tuple[int, int, int]] = []
        for node, value in enumerate(sized, count + 2):
            producer = steps.producer[value]
            start = self.source if producer < 0 else producer
            rows.append((start, node, steps.bytes[value] // self.unit))
            # One node per value, so that a cut counts it once for all its consumers.
            rows += [(node, consumer, UNCUTTABLE) for consumer in problem.consumers[value]]
            if value in steps.live_out:
                rows.append((node, self.sink, UNCUTTABLE))
        # From step to predecessor: a step on the side of the source pulls its predecessors there.
        rows += [(s, first, UNCUTTABLE) for s in range(count) for first in problem.predecessors[s]]
        self.rows = np.array(rows, np.int32).reshape(-1, 3)

    def at(self, step: int) -> StepCut:
        """Return the steps to run before `step` so that the fewest bytes are live during it, and
        these bytes."""
        problem, steps = self.problem, self.problem.steps
        # Arcs to all ancestors and descendants. Arcs to the direct ones have the same cuts, but
        # then paths of the flow are as long as the network is deep.
        ends = [(self.source, first, UNCUTTABLE) for first in _reached(problem.predecessors, step)]
        ends += [(last, self.sink, UNCUTTABLE) for last in _reached(problem.successors, step)]
        ends.append((step, self.sink, UNCUTTABLE))
        rows = np.concatenate([self.rows, np.array(ends, np.int32)])
        network = csr_array((rows[:, 2], (rows[:, 0], rows[:, 1])), shape=(self.count, self.count))
        result = maximum_flow(network, self.source, self.sink)
        residual = network - result.flow
        residual.eliminate_zeros()
        # Of equal cuts, the one nearest the source has the fewest steps before `step`.
        reached = breadth_first_order(residual, self.source, return_predecessors=False)
        before = frozenset(int(node) for node in reached if node < len(problem))
        during = problem.needed[step]
        if steps.overwrites[step]:
            # Assumes that all operands die, which no order exceeds, so the bound holds.
            during -= steps.overwritten(step, steps.inputs[step])
        return StepCut(problem.base + result.flow_value * self.unit + during, before)


def _reached(arcs: Sequence[Sequence[int]], start: int) -> list[int]:
    """Return the steps reachable from `start` along `arcs`, without `start` itself."""
    found, waiting = {start}, [start]
    while waiting:
        for step in arcs[waiting.pop()]:
            if step not in found:
                found.add(step)
                waiting.append(step)
    return sorted(found - {start})
