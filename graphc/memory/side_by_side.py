"""Stream schedules: list schedules (Graham, 1966) of dependent nodes on several streams.

A schedule is a partial order: nodes on a stream run in order, and a node may wait for nodes on
other streams. `Schedule.before` has a vector clock (Mattern, 1989) for each node: the last node of
every stream that is certain to have run when the node starts. Node a runs before node b in every
legal order if and only if the clock of b has reached a on the stream of a.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from graphc.plans.streams import StreamSlot

NOBODY = -1
"""The clock entry of a stream on which no node is certain to have run."""

Needs = Sequence[Sequence[int]]
"""For each node, by number, the earlier nodes that it depends on."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule of nodes on streams.

    `slots` are by node number, None for views. `seconds` is the time of the whole schedule.
    `before` has for each node the last node of every stream that is certain to have run when it
    starts.
    """

    slots: list[StreamSlot | None]
    seconds: float
    before: list[list[int]]


def scheduled(needs: Needs, seconds: Sequence[float | None], count: int) -> Schedule:
    """Return a list schedule of nodes on `count` streams: in order, each on the stream where it can
    start first. `seconds` has the duration of each node, None for views.
    """
    free, done = [0.0] * count, [0.0] * len(needs)
    known = [[NOBODY] * count for _ in range(count)]
    """The vector clock of each stream: the last node of every stream that it has waited for."""
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
    """Return an order of all nodes by list scheduling with critical-path priorities.

    When a stream is free, the ready node with the longest path of dependent nodes goes first.
    """
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
    """Groups of successive nodes that share a launch and are scheduled as one.

    `heads` has, for each node, the first node of its group, which is the node itself if it is
    alone. `tails` maps the first node of each group to its last.
    """

    heads: list[int]
    tails: dict[int, int]

    @classmethod
    def of(cls, needs: Needs, keys: Sequence[Hashable | None]) -> Launches:
        """Group successive nodes with equal keys that do not depend on each other.

        A node with key None is alone. Nodes with key `VIEW` do no work and do not split a group.
        """
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
        """Return the dependences of each group at the group's first node; other nodes get none."""
        found: list[set[int]] = [set() for _ in needs]
        for number, needed in enumerate(needs):
            found[self.heads[number]].update(self.heads[other] for other in needed)
        return [sorted(each - {number}) for number, each in enumerate(found)]

    def seconds(self, seconds: Sequence[float | None]) -> list[float | None]:
        """Return the seconds of each group at the group's first node: the maximum over the group's
        nodes."""
        found: list[float | None] = [None] * len(seconds)
        for number, own in enumerate(seconds):
            head = self.heads[number]
            if own is not None:
                found[head] = max(own, found[head] or 0.0)
        return found

    def apart(self, schedule: Schedule) -> Schedule:
        """Expand a schedule of the first nodes of groups to all nodes.

        A node that waits for a head waits for the last node of its group.
        """
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
        """Expand an order of heads to all nodes: the nodes of a group follow its head."""
        behind: dict[int, list[int]] = {}
        for number, head in enumerate(self.heads):
            behind.setdefault(head, []).append(number)
        return [n for each in order if self.heads[each] == each for n in behind[each]]


VIEW = object()
"""The key of views, which do no work."""
