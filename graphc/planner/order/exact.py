"""Exact search for the order of least peak of a few steps: Dijkstra over sets of steps.

With `live(D)` and `during(s, D)` of precedence.py, the least peak over all ways to reach a set is

    peak({}) = live({})
    peak(D)  = min over s in D that may run last of max(peak(D - s), during(s, D - s))

This is a bottleneck shortest path from the empty set to the full set: Dijkstra's algorithm with the
maximum along a path in place of the sum. A set is a bit mask. There are at most 2^steps sets, each
expanded once in O(steps), so the search gives up after a given number of sets.

A step is run at once, without trying others, if it does not increase the live bytes and does not
exceed the peak so far. This loses no optimum. Take an order that runs the step later, and move it
to the front. A step frees at least as much once more consumers have run, so it does not increase
the live bytes of any later set. The steps in between thus see at most the live bytes that they saw
before. Their operands die no later, so they overwrite as much. A chain of such steps costs one set
per step, which makes windows of training graphs fast.
"""

from __future__ import annotations

import functools
import heapq
import operator
from collections.abc import Iterable

from graphc.planner.order.precedence import Precedence


def least_peak_order(problem: Precedence, below: int, expansions: int) -> list[int] | None:
    """Return an order of least peak if that peak is below `below` bytes, else None.

    Also returns None once more than `expansions` sets have been expanded. The number of sets is at
    most 2 to the power of the steps.
    """
    sets = _Sets(problem)
    full = (1 << len(problem)) - 1
    peak = live = problem.first_bytes
    if not full or peak >= below:
        return None
    best = {0: peak}
    last: dict[int, int] = {}  # set → the bit of the step that runs last on the path to it
    # Live bytes and ready steps depend only on the set, so an entry has them outside its distance.
    queue = [(peak, 0, 0, live, sets.ready)]
    while queue:
        peak, negative_count, done, live, ready = heapq.heappop(queue)
        if done == full:
            return _path(last, full)
        if best[done] < peak:  # an outdated entry: the set was reached at a lower peak
            continue
        expansions -= 1
        if expansions < 0:
            return None
        candidates = []
        waiting = ready
        while waiting:
            bit = waiting & -waiting
            waiting ^= bit
            needed, growth = sets.change(bit, done)
            # Running this step later gains nothing (see the module docstring).
            if growth <= 0 and live + needed <= peak:
                candidates = [(bit, needed, growth)]
                break
            candidates.append((bit, needed, growth))
        for bit, needed, growth in candidates:
            # Sets that are only reached at a peak of `below` or more are not queued.
            reached = max(peak, live + needed)
            more = done | bit
            if reached < best.get(more, below):
                best[more] = reached
                last[more] = bit
                next_ready = sets.ready_after(bit, more, ready)
                # Peaks are often equal; the set with the most steps is then nearest the end.
                heapq.heappush(
                    queue, (reached, negative_count - 1, more, live + growth, next_ready)
                )
    return None


def _path(last: dict[int, int], done: int) -> list[int]:
    order = []
    while done:
        bit = last[done]
        order.append(bit.bit_length() - 1)
        done ^= bit
    return order[::-1]


class _Sets:
    """Transitions between sets of steps that have run. A set is a bit mask with one bit per
    step."""

    def __init__(self, problem: Precedence) -> None:
        steps, count = problem.steps, len(problem)
        predecessors = [_mask(chosen) for chosen in problem.predecessors]
        self.ready = _mask(step for step in range(count) if not predecessors[step])
        """The steps without predecessors, as a bit mask."""
        self._successors = {
            1 << step: [(1 << other, predecessors[other]) for other in others]
            for step, others in enumerate(problem.successors)
        }
        consumers = [_mask(chosen) for chosen in problem.consumers]
        # By step: its operands that may die, as (other consumers, bytes, value).
        self._operands = [
            [
                (consumers[value] & ~(1 << step), steps.bytes[value], value)
                for value in steps.inputs[step]
                if value not in steps.live_out
            ]
            for step in range(count)
        ]
        # By bit: the other consumers of these operands, and the changes by those that have run.
        self._changes: dict[int, tuple[int, dict[int, tuple[int, int]]]] = {
            1 << step: (_union(others for others, _, _ in operands), {})
            for step, operands in enumerate(self._operands)
        }
        self._problem = problem

    def ready_after(self, bit: int, done: int, ready: int) -> int:
        """Return the ready steps, as a bit mask, once the step `bit` has run; `done` includes
        it."""
        ready ^= bit
        for other, predecessors in self._successors[bit]:
            if predecessors & done == predecessors:
                ready |= other
        return ready

    def change(self, bit: int, done: int) -> tuple[int, int]:
        """Return by how many bytes the live bytes rise during a step, and after it."""
        others, changes = self._changes[bit]
        found = changes.get(done & others)
        if found is None:
            found = changes[done & others] = self._counted(bit.bit_length() - 1, done)
        return found

    def _counted(self, step: int, done: int) -> tuple[int, int]:
        # An operand whose other consumers have run dies.
        dying = {value: size for others, size, value in self._operands[step] if not others & ~done}
        needed = self._problem.needed[step]
        steps = self._problem.steps
        if dying and steps.overwrites[step]:
            needed -= steps.overwritten(step, dying)
        return needed, self._problem.retained[step] - sum(dying.values())


def _mask(steps: Iterable[int]) -> int:
    return sum(1 << step for step in steps)


def _union(masks: Iterable[int]) -> int:
    return functools.reduce(operator.or_, masks, 0)
