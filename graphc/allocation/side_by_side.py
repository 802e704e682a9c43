"""Which stream runs what: list schedules (Graham, 1966) of nodes that wait for one another.

A schedule is partial: on each stream nodes run in order, and a node waits for some on other
streams. `Schedule.before` says of each node how far every stream has come for certain when it
starts, as a clock with one hand a stream (Mattern, 1989): node a runs before node b in every legal
order if and only if a's stream has come past a for b.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from graphc.plans.streams import StreamSlot

NOBODY = -1
"""The hand of a clock for a stream on which nothing has run for certain."""

Needs = Sequence[Sequence[int]]
"""Of each node, by number, the earlier ones that it must come after."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Slots by the number of the node, None for views; the seconds of all; and of each node the
    last one of every stream that has run for certain when it starts."""

    slots: list[StreamSlot | None]
    seconds: float
    before: list[list[int]]


def scheduled(needs: Needs, seconds: Sequence[float | None], count: int) -> Schedule:
    """Nodes in their order, each on the stream where it can start first; None are views."""
    free, done = [0.0] * count, [0.0] * len(needs)
    known = [[NOBODY] * count for _ in range(count)]
    """The last node of every stream that a stream has waited for, for each stream."""
    before: list[list[int]] = [[] for _ in needs]
    behind: list[list[int]] = [[] for _ in needs]
    slots: list[StreamSlot | None] = [None] * len(needs)
    stream_of = [0] * len(needs)
    for number, needed in enumerate(needs):
        own = seconds[number]
        if own is None:
            continue
        ready = max((done[other] for other in needed), default=0.0)
        latest = max(needed, key=lambda other: done[other], default=None)
        home = stream_of[latest] if latest is not None else 0
        stream = min(range(count), key=lambda s: (max(free[s], ready), s != home, s))
        waits = []
        for other in sorted(needed, reverse=True):
            theirs = stream_of[other]
            if theirs != stream and known[stream][theirs] < other:
                waits.append(other)
                pairs = zip(known[stream], behind[other], strict=True)
                known[stream] = [max(pair) for pair in pairs]
        before[number] = list(known[stream])
        known[stream][stream] = number
        behind[number] = list(known[stream])
        done[number] = free[stream] = max(free[stream], ready) + own
        slots[number], stream_of[number] = StreamSlot(stream, tuple(waits)), stream
    return Schedule(slots, max(done, default=0.0), before)


def longest_paths_first(needs: Needs, seconds: Sequence[float | None], count: int) -> list[int]:
    """An order of all nodes in which, of those that are ready when a stream is, the one goes first
    that the longest chain of others waits for."""
    rank = [own or 0.0 for own in seconds]
    readers: list[list[int]] = [[] for _ in needs]
    for number in range(len(needs) - 1, -1, -1):
        for other in needs[number]:
            rank[other] = max(rank[other], (seconds[other] or 0.0) + rank[number])
            readers[other].append(number)
    missing = [len(set(needed)) for needed in needs]
    ready = [(-rank[n], n) for n, left in enumerate(missing) if left == 0]
    heapq.heapify(ready)
    running: list[tuple[float, int]] = []
    order: list[int] = []
    now = 0.0
    while ready or running:
        while ready and (len(running) < count or seconds[ready[0][1]] is None):
            _, number = heapq.heappop(ready)
            order.append(number)
            heapq.heappush(running, (now + (seconds[number] or 0.0), number))
        now, number = heapq.heappop(running)
        for reader in set(readers[number]):
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(ready, (-rank[reader], reader))
    return order


@dataclass(frozen=True, slots=True)
class Launches:
    """Neighbours that share a launch are one to a schedule: the `heads` of all nodes, which are
    their own where they stand alone, and the last node behind each head."""

    heads: list[int]
    tails: dict[int, int]

    @classmethod
    def of(cls, needs: Needs, keys: Sequence[Hashable | None]) -> Launches:
        """Neighbours of one key that do not wait for each other; None shares no launch, and what
        `keys` leaves out, as it does nothing, parts none."""
        heads: list[int] = []
        tails: dict[int, int] = {}
        head, last = 0, None
        for number, key in enumerate(keys):
            if key is VIEW:
                heads.append(number)
                continue
            waits = any(other >= head for other in needs[number])
            if key is None or key != last or waits:
                head = number
            last = key
            heads.append(head)
            tails[head] = number
        return cls(heads, tails)

    def needs(self, needs: Needs) -> list[list[int]]:
        """What the heads wait for; the others wait for nothing."""
        found: list[set[int]] = [set() for _ in needs]
        for number, needed in enumerate(needs):
            found[self.heads[number]].update(self.heads[other] for other in needed)
        return [sorted(each - {number}) for number, each in enumerate(found)]

    def seconds(self, seconds: Sequence[float | None]) -> list[float | None]:
        """Those of launches, by their heads: as long as the longest of them."""
        found: list[float | None] = [None] * len(seconds)
        for number, own in enumerate(seconds):
            head = self.heads[number]
            if own is not None:
                found[head] = max(own, found[head] or 0.0)
        return found

    def apart(self, schedule: Schedule) -> Schedule:
        """The schedule of all nodes, by that of the heads: who waits for one waits for its last."""
        slots, before, previous = list(schedule.slots), list(schedule.before), NOBODY
        for number, head in enumerate(self.heads):
            slot = schedule.slots[head]
            if slot is None:
                continue
            hands = [self.tails.get(hand, hand) for hand in schedule.before[head]]
            waits = tuple(self.tails[other] for other in slot.waits) if number == head else ()
            if number != head:
                hands[slot.stream] = previous
            slots[number], before[number] = StreamSlot(slot.stream, waits), hands
            previous = number
        return Schedule(slots, schedule.seconds, before)

    def in_order(self, order: Sequence[int]) -> list[int]:
        """An order of heads, and of what does nothing, with all nodes in it."""
        behind: dict[int, list[int]] = {}
        for number, head in enumerate(self.heads):
            behind.setdefault(head, []).append(number)
        return [n for each in order if self.heads[each] == each for n in behind[each]]


VIEW = object()
"""The key of nodes for which a step does nothing."""
