"""Places the copies of chosen gaps in a schedule: events whose bytes fit, with few stalls.

Given are a sequence of steps and its gaps (gaps.py), without whose values it fits the budget. What
is spare at each position holds values that have not left yet or are back early.

Out. Copies begin in the order of production, as soon as a value is made. A value is dropped when
its copy has ended, or when the next position needs the bytes. Then computation waits for the copy
that ends first. If the gap ends before the drop, the value simply stays, and its copy is omitted.

In. Copies back are in the order of the next uses. Backwards from the last one, each starts so late
that it and all later ones still arrive in time. From there the value must fit up to its use;
otherwise the copy begins at the first later position from which it does.

Times are estimates, since the wait for a copy back delays all later events. The clocks of events.py
measure the result.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphc.planner.copies.events import Event
from graphc.planner.copies.gaps import Gap
from graphc.planner.host_link import HostLink
from graphc.planner.problem import Problem
from graphc.planner.profile import Integers


@dataclass(slots=True)
class Copy:
    """A gap with the positions before which its value is dropped and fetched. `leaves` is true for
    the first gap of a value, which has an `out` and a `drop`; at later ones the host has it."""

    gap: Gap
    leaves: bool
    drop: int = -1
    fetch: int = -1


def placed(
    steps: Problem,
    link: HostLink,
    sequence: Sequence[int],
    gaps: Sequence[Gap],
    spare: Integers,
    small_first: bool = False,
) -> list[Copy]:
    """Return the copies of a sequence in which the values of `gaps` are on the host. `spare` has
    the bytes at each position that are free if they are there during their whole gaps. The results
    of one step leave in the order of their gaps, or with `small_first` by increasing bytes."""
    gaps = list(gaps)
    size = steps.bytes if small_first else None
    while True:
        copies = _copies(gaps, size)
        times, late = _leave(steps, link, sequence, copies, spare)
        if not late:
            break
        gaps = [gap for gap in gaps if gap not in late]
        # Values that stay take their bytes at every position of their gaps.
        spare = spare.copy()
        for gap in late:
            spare[gap.start + 1 : gap.stop] -= steps.bytes[gap.value]
    _return(steps, link, copies, times, spare)
    return copies


def _copies(gaps: Iterable[Gap], size: Sequence[int] | None = None) -> list[Copy]:
    """Return copies in the order of production; those of one step by `size`, if given."""
    first: dict[int, Gap] = {}
    ordered = sorted(gaps)
    for gap in ordered:
        first.setdefault(gap.value, gap)
    if size is not None:
        ordered.sort(key=lambda gap: (gap.made, size[gap.value]))
    return [Copy(gap, first[gap.value] is gap) for gap in ordered]


def _leave(
    steps: Problem,
    link: HostLink,
    sequence: Sequence[int],
    copies: Sequence[Copy],
    spare: Integers,
) -> tuple[list[float], set[Gap]]:
    """Set the drops of copies. Returns the times at which positions start, and the gaps that end
    before their value is dropped."""
    issued: dict[int, list[Copy]] = {}
    begun: dict[int, list[Copy]] = {}
    for copy in copies:
        if copy.leaves:
            issued.setdefault(copy.gap.made, []).append(copy)
            begun.setdefault(copy.gap.start + 1, []).append(copy)
        else:
            copy.drop = copy.gap.start + 1
    ready: dict[Gap, float] = {}
    pending: list[tuple[float, Gap]] = []
    by_gap = {copy.gap: copy for copy in copies}
    now = lane = 0.0
    resident = 0
    times = []
    late: set[Gap] = set()
    for at in range(len(sequence) + 1):
        for copy in begun.get(at, ()):
            heapq.heappush(pending, (ready[copy.gap], copy.gap))
            resident += steps.bytes[copy.gap.value]
        free = spare[at] if at < len(sequence) else resident
        while pending and (pending[0][0] <= now or resident > free):
            end, gap = heapq.heappop(pending)
            resident -= steps.bytes[gap.value]
            if gap.stop <= at:
                late.add(gap)  # the value stays
                continue
            now = max(now, end)
            by_gap[gap].drop = at
        times.append(now)
        if at < len(sequence):
            now += steps.cost[sequence[at]]
        for copy in issued.get(at, ()):
            lane = max(lane, now) + link.out_seconds(steps.bytes[copy.gap.value])
            ready[copy.gap] = lane
    late.update(gap for _, gap in pending)
    return times, late


def _return(
    steps: Problem,
    link: HostLink,
    copies: Sequence[Copy],
    times: Sequence[float],
    spare: Integers,
) -> None:
    """Set the positions at which copies back begin."""
    spare = spare.copy()
    for copy in copies:
        spare[copy.gap.start + 1 : copy.drop] -= steps.bytes[copy.gap.value]
    ordered = sorted(copies, key=lambda copy: (copy.gap.stop, copy.gap.value))
    start = times[-1]
    for copy in reversed(ordered):
        size = steps.bytes[copy.gap.value]
        start = min(times[copy.gap.stop], start) - link.in_seconds(size)
        copy.fetch = max(copy.drop + 1, bisect_right(times, start) - 1)
    earliest = 0
    for copy in ordered:
        size, stop = steps.bytes[copy.gap.value], copy.gap.stop
        fetch = stop
        while fetch > max(copy.fetch, earliest) and spare[fetch - 1] >= size:
            fetch -= 1
        copy.fetch = earliest = fetch
        spare[fetch:stop] -= size


def events_with(sequence: Sequence[int], copies: Sequence[Copy]) -> list[Event]:
    """Return a sequence with its copies as events."""
    before: dict[int, list[Event]] = {}
    after: dict[int, list[Event]] = {}
    for copy in copies:
        if copy.leaves:
            after.setdefault(copy.gap.made, []).append(Event("out", copy.gap.value))
            before.setdefault(copy.drop, []).append(Event("drop", copy.gap.value))
    for copy in sorted(copies, key=lambda copy: (copy.gap.stop, copy.gap.value)):
        before.setdefault(copy.fetch, []).append(Event("in", copy.gap.value))
    events: list[Event] = []
    for at, step in enumerate(sequence):
        events += [*before.get(at, ()), Event("run", step), *after.get(at, ())]
    return events + before.get(len(sequence), [])
