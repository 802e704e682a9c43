"""List scheduling within a limit of bytes, from the first step on or from the last one back.

Of the steps that may run, the first one of the given order that fits below the limit is taken, by
during(s, D) of precedence.py; steps that leave no more bytes live than there were come first. A
step that does not fit waits, with all that needs it, until enough has died. Where nothing fits any
more, there is no schedule under this limit by this method, and search.py asks for a higher one.

Forwards, a weight gradient whose operands are small beside it is put off so while the feature maps
are live. Backwards, steps are taken off the end, and what is made early and read late moves to its
readers. The second is the first on the reversed order: live bytes are those of values that what has
been taken reads and whose makers are still to be taken, so a step takes what it reads and is not
live yet, and frees what it makes.

In either direction, a step that leaves no more bytes live than there were is taken as soon as
it can be. This loses nothing. Take an order that takes it later and move it to the front: what
is taken in between then finds at most the bytes that it found before, for the step frees at least
as much when more steps have been taken. Forwards that is because more readers have run, backwards
because more of what it reads is live already.

A step's reach (bytes above those live while it runs) and growth only fall while it waits, each time
that a value comes to be its own to free. A fall costs one look at the step's operands and one more
entry in a heap; entries that are out of date are passed over.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from graphc.planning.order.precedence import Precedence


def list_schedule(
    problem: Precedence, sequence: Sequence[int], limit: int, backwards: bool
) -> list[int] | None:
    """All steps in the order of `sequence` as far as they fit into `limit` bytes; None where
    nothing that may be taken fits any more."""
    if backwards:
        found = _Backwards(problem, sequence[::-1], limit).run()
        return found and found[::-1]
    return _Forwards(problem, sequence, limit).run()


class _ListSchedule(ABC):
    """The queues, which are the same in both directions; subclasses know what a step frees."""

    def __init__(
        self,
        problem: Precedence,
        sequence: Sequence[int],
        limit: int,
        awaited: Sequence[Sequence[int]],
        waiting: Sequence[Sequence[int]],
        live: int,
    ) -> None:
        self.problem, self.steps, self.limit, self.live = problem, problem.steps, limit, live
        self.rank = {step: index for index, step in enumerate(sequence)}
        self.awaited = [len(others) for others in awaited]
        self.waiting = waiting
        self.growth = [0] * len(problem)
        self.reach = [0] * len(problem)
        """Bytes above those live that a step takes while it runs."""
        self.is_ready = [False] * len(problem)
        self.shrinking: list[tuple[int, int]] = []
        """Ready steps that leave no more bytes live, by rank."""
        self.growing: list[tuple[int, int]] = []
        """Other ready steps, by rank."""
        self.blocked: list[tuple[int, int]] = []
        """Ready steps that did not fit, by reach."""

    @abstractmethod
    def measure(self, step: int) -> tuple[int, int]:
        """The reach and the growth of a ready step, as things stand."""

    @abstractmethod
    def take(self, step: int) -> Iterable[int]:
        """Note that a step is taken; returns other steps whose reach or growth have fallen."""

    def run(self) -> list[int] | None:
        if self.live > self.limit:
            return None
        for step, count in enumerate(self.awaited):
            if not count:
                self._enter(step)
        order: list[int] = []
        while len(order) < len(self.problem):
            chosen = self._next()
            if chosen is None:
                return None
            order.append(chosen)
            self._leave(chosen)
        return order

    def _enter(self, step: int) -> None:
        self.is_ready[step] = True
        self.reach[step], self.growth[step] = self.measure(step)
        self._queue(step)

    def _leave(self, step: int) -> None:
        self.is_ready[step] = False
        self.live += self.growth[step]
        for other in self.take(step):
            # Measured and queued again; the older entry is passed over once the step has been
            # taken.
            if self.is_ready[other]:
                self._enter(other)
        for other in self.waiting[step]:
            self.awaited[other] -= 1
            if not self.awaited[other]:
                self._enter(other)

    def _queue(self, step: int) -> None:
        queue = self.shrinking if self.growth[step] <= 0 else self.growing
        heapq.heappush(queue, (self.rank[step], step))

    def _next(self) -> int | None:
        room = self.limit - self.live
        # By reach, as only room can free them; those that fit again go back to where rank decides.
        while self.blocked and self.blocked[0][0] <= room:
            _, step = heapq.heappop(self.blocked)
            if self.is_ready[step]:
                self._queue(step)
        # What leaves no more bytes first, whatever its rank: that loses nothing (see above).
        for queue in (self.shrinking, self.growing):
            while queue:
                _, step = heapq.heappop(queue)
                if not self.is_ready[step]:
                    continue
                if self.reach[step] <= room:
                    return step
                # A reach only falls, and a fall queues the step again, so nothing waits here too
                # long.
                heapq.heappush(self.blocked, (self.reach[step], step))
        return None


class _Forwards(_ListSchedule):
    """Steps run one after another: a value dies with its last reader, by a count of readers."""

    def __init__(self, problem: Precedence, sequence: Sequence[int], limit: int) -> None:
        awaited, waiting = problem.before, problem.behind
        super().__init__(problem, sequence, limit, awaited, waiting, problem.first_bytes)
        self.unread = [len(readers) for readers in problem.readers]
        for value in self.steps.held:
            # One reader more than there are, who never comes: a held value dies with nobody.
            self.unread[value] += 1
        self.last_reader = [sum(readers) for readers in problem.readers]
        """The sum of the numbers of each value's unread readers: one reader's, in the end."""

    def measure(self, step: int) -> tuple[int, int]:
        dying = [value for value in self.problem.sized[step] if self.unread[value] == 1]
        reach = self.problem.needed[step]
        if dying and self.steps.overwrites[step]:
            reach -= self.steps.overwritten(step, dying)
        return reach, self.problem.lasting[step] - self.steps.total(dying)

    def take(self, step: int) -> Iterable[int]:
        last: dict[int, None] = {}
        for value in self.problem.sized[step]:
            self.unread[value] -= 1
            self.last_reader[value] -= step
            # One reader is left: now it frees the value, so its reach and growth fall.
            if self.unread[value] == 1 and value not in self.steps.held:
                last[self.last_reader[value]] = None
        return last


class _Backwards(_ListSchedule):
    """Steps are taken off the end: a value is live from its first taken reader to its maker."""

    def __init__(self, problem: Precedence, sequence: Sequence[int], limit: int) -> None:
        awaited, waiting = problem.behind, problem.before
        live = problem.base + problem.steps.total(problem.steps.held)
        super().__init__(problem, sequence, limit, awaited, waiting, live)
        self.is_live = [value in problem.steps.held for value in range(len(problem.steps.bytes))]

    def measure(self, step: int) -> tuple[int, int]:
        fresh = [value for value in self.problem.sized[step] if not self.is_live[value]]
        taken, lasting = self.steps.total(fresh), self.problem.lasting[step]
        # Outputs that somebody reads are live already, as their readers have been taken; what comes
        # on top is what it reads afresh, its workspace, and outputs for nobody.
        reach = taken + self.problem.needed[step] - lasting
        if fresh and self.steps.overwrites[step]:
            reach -= self.steps.overwritten(step, fresh)
        return reach, taken - lasting

    def take(self, step: int) -> Iterable[int]:
        others: dict[int, None] = {}
        for value in self.problem.sized[step]:
            if not self.is_live[value]:
                self.is_live[value] = True
                # It is live now, so whoever else reads it brings less with it: all of its readers.
                others.update(dict.fromkeys(self.problem.readers[value]))
        return others
