"""The fewest bytes that can be live at a step, whatever the order: a minimum cut.

What has run before step w is a set D that holds all w waits for, and neither w nor what waits for
it. live(D) of precedence.py counts a value where its maker is in D and a reader is not, which is a
cut between a source, on whose side D lies, and a sink, in a network of steps and values:

    source → what w waits for    infinite    it has run
    w → sink                     infinite    it has not
    s → what s waits for         infinite    where s has run, so have they
    maker of v → v               bytes of v  the source for values from outside
    v → each reader of v         infinite    where one has not run, v is live
    v → sink                     infinite    where v is held

Closed sets D are cuts of finite capacity, so the least live(D) is a minimum cut: no order has a
peak below it and what w takes itself, and the set says what to run before w and what behind it.
What w takes is counted with as much overwritten as could be.

One cut is a maximum flow, of SciPy's in whole numbers of 32 bits: where the sum of sizes is above
2^30 in units of their greatest common divisor, they are rounded down, so the bound holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from graphc.scheduling.precedence import Precedence

CAPACITY = 2**30
"""The sum of all finite capacities stays below; whole numbers of 32 bits."""

UNCUTTABLE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class StepCut:
    """Bytes live at a step under every order, at least, and the steps to run before it."""

    bytes: int
    before: frozenset[int]


class Cuts:
    """The network of one problem, for cuts at any of its steps."""

    def __init__(self, problem: Precedence) -> None:
        self.problem = problem
        steps, count = problem.steps, len(problem)
        self.source, self.sink = count, count + 1
        sized = [
            value
            for value, size in enumerate(steps.bytes)
            # What nobody reads is live at its maker only, where `at` counts it.
            if size and (problem.consumers[value] or value in steps.live_out)
        ]
        sizes = [steps.bytes[value] for value in sized]
        # Rounded down where a coarser unit is needed: a bound stays one.
        unit = math.gcd(*sizes) or 1
        self.unit = max(unit, -(-sum(sizes) // CAPACITY))
        self.count = count + 2 + len(sized)
        rows: list[tuple[int, int, int]] = []
        for node, value in enumerate(sized, count + 2):
            producer = steps.producer[value]
            start = self.source if producer < 0 else producer
            rows.append((start, node, steps.bytes[value] // self.unit))
            # By way of one node a value: it is cut once, however many readers lie behind the cut.
            rows += [(node, consumer, UNCUTTABLE) for consumer in problem.consumers[value]]
            if value in steps.live_out:
                rows.append((node, self.sink, UNCUTTABLE))
        # Against the order: a step on the source's side has run, and draws all it waits for there.
        rows += [(s, first, UNCUTTABLE) for s in range(count) for first in problem.predecessors[s]]
        self.rows = np.array(rows, np.int32).reshape(-1, 3)

    def at(self, step: int) -> StepCut:
        """The least set to run before `step`, and the bytes live during the step behind it."""
        problem, steps = self.problem, self.problem.steps
        # All that step waits for and that waits for it, not just the nearest, which would have the
        # same cuts: the flow's paths are short so, where they were as long as a network is deep.
        ends = [(self.source, first, UNCUTTABLE) for first in _reached(problem.predecessors, step)]
        ends += [(last, self.sink, UNCUTTABLE) for last in _reached(problem.successors, step)]
        ends.append((step, self.sink, UNCUTTABLE))
        rows = np.concatenate([self.rows, np.array(ends, np.int32)])
        network = csr_array((rows[:, 2], (rows[:, 0], rows[:, 1])), shape=(self.count, self.count))
        result = maximum_flow(network, self.source, self.sink)
        residual = network - result.flow
        residual.eliminate_zeros()
        # Of equal cuts the one nearest the source: no more has to run before the step than must.
        reached = breadth_first_order(residual, self.source, return_predecessors=False)
        before = frozenset(int(node) for node in reached if node < len(problem))
        during = problem.needed[step]
        if steps.overwrites[step]:
            # As if all operands died, which no order can better: a bound stays one.
            during -= steps.overwritten(step, steps.inputs[step])
        return StepCut(problem.base + result.flow_value * self.unit + during, before)


def _reached(arcs: Sequence[Sequence[int]], start: int) -> list[int]:
    """The steps that arcs lead to from one, without itself."""
    found, waiting = {start}, [start]
    while waiting:
        for step in arcs[waiting.pop()]:
            if step not in found:
                found.add(step)
                waiting.append(step)
    return sorted(found - {start})
