"""The order of least peak of a few steps, by search over the sets of steps that have run.

With live(D) and during(s, D) of precedence.py, the least peak over all ways to reach a set is

    peak({}) = live({})
    peak(D)  = min over s in D that may run last of max(peak(D - s), during(s, D - s))

a bottleneck shortest path from the empty set to the full one: Dijkstra's algorithm with the largest
step of a path in place of the sum. Sets are bits of a whole number. At worst there are 2^steps of
them, each looked at once and expanded in O(steps), so the search gives up after a number of sets.

A step is run at once, without a look at others, where it leaves no more bytes live than before
and does not reach above the peak so far. This loses nothing. Take an order that runs it later and
move it to the front: whatever runs in between then finds at most the bytes live that it found
before, for the step frees at least as much after more readers have run; and an operand dies at
least as early, so as much is overwritten. Chains of such steps then cost one set a step, which is
what makes windows of training graphs quick.
"""

from __future__ import annotations

import heapq

from graphc.scheduling.precedence import Precedence


def least_peak_order(problem: Precedence, below: int, expansions: int) -> list[int] | None:
    """An order whose peak is least, if that is less than `below` bytes; else None.

    None as well where the search has looked at more than `expansions` sets: the cost grows with
    the number of sets that can have run, at worst 2 to the power of the steps.
    """
    count = len(problem)
    sets = _Sets(problem)
    full = (1 << count) - 1
    peak, live = problem.first_bytes, problem.first_bytes
    if not count or peak >= below:
        return None
    best = {0: peak}
    came: dict[int, tuple[int, int]] = {}
    # Live bytes follow from the set alone, so they travel with it and are no part of its distance.
    queue = [(peak, 0, 0, live)]
    while queue:
        peak, _, done, live = heapq.heappop(queue)
        if done == full:
            return _path(came, full)
        if best[done] < peak:  # reached again at a lower peak since it was queued
            continue
        expansions -= 1
        if expansions < 0:
            return None
        candidates = []
        for step in sets.ready(done):
            during, after = sets.run(step, done, live)
            # No order is better for running it later (see above), so the others need not be tried.
            if after <= live and during <= peak:
                candidates = [(step, during, after)]
                break
            candidates.append((step, during, after))
        for step, during, after in candidates:
            # Paths at or above `below` are of no use, so what only they reach is never queued.
            reached = max(peak, during)
            more = done | 1 << step
            if reached < min(below, best.get(more, below)):
                best[more] = reached
                came[more] = (done, step)
                # Of equal peaks the fullest set first: peaks are often equal, and this one is
                # nearest the end.
                heapq.heappush(queue, (reached, -more.bit_count(), more, after))
    return None


def _path(came: dict[int, tuple[int, int]], done: int) -> list[int]:
    order = []
    while done:
        done, step = came[done]
        order.append(step)
    return order[::-1]


class _Sets:
    """The transitions between sets of steps, which are bits of a whole number."""

    def __init__(self, problem: Precedence) -> None:
        steps = self.steps = problem.steps
        self.predecessors = [_bits(chosen) for chosen in problem.predecessors]
        self.needed, self.lasting = problem.needed, problem.lasting
        consumers = [_bits(chosen) for chosen in problem.consumers]
        self.mortal = [
            [
                (value, consumers[value], steps.bytes[value])
                for value in inputs
                if value not in steps.live_out
            ]
            for inputs in steps.inputs
        ]

    def ready(self, done: int) -> list[int]:
        """Steps that may run next, ascending."""
        return [
            step
            for step, predecessors in enumerate(self.predecessors)
            if not done >> step & 1 and not predecessors & ~done
        ]

    def run(self, step: int, done: int, live: int) -> tuple[int, int]:
        """Bytes live during the step and after it."""
        # The steps that are still to run when this one has: an operand that none of them reads
        # dies.
        left = ~done ^ 1 << step
        dying = {
            value: size for value, consumers, size in self.mortal[step] if not consumers & left
        }
        during = live + self.needed[step]
        if dying and self.steps.overwrites[step]:
            during -= self.steps.overwritten(step, dying)
        return during, live + self.lasting[step] - sum(dying.values())


def _bits(chosen: tuple[int, ...]) -> int:
    return sum(1 << step for step in chosen)
