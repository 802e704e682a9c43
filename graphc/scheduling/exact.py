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

import heapq

from graphc.scheduling.precedence import Precedence


def least_peak_order(problem: Precedence, below: int, expansions: int) -> list[int] | None:
    """Return an order of least peak if that peak is below `below` bytes, else None.

    Also returns None once more than `expansions` sets have been expanded. The number of sets is at
    most 2 to the power of the steps.
    """
    count = len(problem)
    sets = _Sets(problem)
    full = (1 << count) - 1
    peak, live = problem.first_bytes, problem.first_bytes
    if not count or peak >= below:
        return None
    best = {0: peak}
    came: dict[int, tuple[int, int]] = {}
    # Live bytes depend only on the set, so an entry carries them outside its distance.
    queue = [(peak, 0, 0, live)]
    while queue:
        peak, _, done, live = heapq.heappop(queue)
        if done == full:
            return _path(came, full)
        if best[done] < peak:  # an outdated entry: the set was reached at a lower peak
            continue
        expansions -= 1
        if expansions < 0:
            return None
        candidates = []
        for step in sets.ready(done):
            during, after = sets.run(step, done, live)
            # Running this step later gains nothing (see the module docstring).
            if after <= live and during <= peak:
                candidates = [(step, during, after)]
                break
            candidates.append((step, during, after))
        for step, during, after in candidates:
            # Sets that are only reached at a peak of `below` or more are not queued.
            reached = max(peak, during)
            more = done | 1 << step
            if reached < min(below, best.get(more, below)):
                best[more] = reached
                came[more] = (done, step)
                # Peaks are often equal; the set with the most steps is then nearest the end.
                heapq.heappush(queue, (reached, -more.bit_count(), more, after))
    return None


def _path(came: dict[int, tuple[int, int]], done: int) -> list[int]:
    order = []
    while done:
        done, step = came[done]
        order.append(step)
    return order[::-1]


class _Sets:
    """Transitions between sets of steps, represented as bit masks."""

    def __init__(self, problem: Precedence) -> None:
        steps = self.steps = problem.steps
        self.predecessors = [_bits(chosen) for chosen in problem.predecessors]
        self.needed, self.retained = problem.needed, problem.retained
        consumers = [_bits(chosen) for chosen in problem.consumers]
        self.releasable = [
            [
                (value, consumers[value], steps.bytes[value])
                for value in inputs
                if value not in steps.live_out
            ]
            for inputs in steps.inputs
        ]

    def ready(self, done: int) -> list[int]:
        """Return the steps that may run next, in ascending order."""
        return [
            step
            for step, predecessors in enumerate(self.predecessors)
            if not done >> step & 1 and not predecessors & ~done
        ]

    def run(self, step: int, done: int, live: int) -> tuple[int, int]:
        """Return the bytes live during the step and after it."""
        # The steps still to run after this one. An operand that none of them reads dies.
        left = ~done ^ 1 << step
        dying = {
            value: size for value, consumers, size in self.releasable[step] if not consumers & left
        }
        during = live + self.needed[step]
        if dying and self.steps.overwrites[step]:
            during -= self.steps.overwritten(step, dying)
        return during, live + self.retained[step] - sum(dying.values())


def _bits(chosen: tuple[int, ...]) -> int:
    return sum(1 << step for step in chosen)
