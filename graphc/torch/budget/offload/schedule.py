"""Schedules of a joint graph with copies to host memory, and the offsets of values on the host.

`graphc.planner.copies` searches recomputation and copies together. Its schedules are adapted to the
two graphs of a step: a copy back that is first used in the backward pass begins there. Host offsets
are packed (`graphc.planner.pack`) by live ranges over the events of a schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from graphc.planner.copies.events import Event, seconds_of
from graphc.planner.copies.search import OffloadSearch
from graphc.planner.goals import Capacity
from graphc.planner.host_link import HostLink
from graphc.planner.pack import pack
from graphc.planner.problem import Problem
from graphc.planner.recompute.solver import Schedule

ALIGNMENT = 64
"""Alignment of values on the host in bytes, a cache line."""

PACKINGS = 3
"""Maximum number of searches; the limit of live bytes on the host is corrected after each."""

PACKING_EFFORT = 10**6
"""Effort limit of packing host memory, in units of work."""


@dataclass(frozen=True)
class Copies:
    """The copies of a schedule: its events, and the offset of each value on the host in bytes.

    `host_bytes` is the size of host memory, `stalls` are the seconds for which computation waits.
    """

    events: tuple[Event, ...]
    offsets: Mapping[int, int]
    host_bytes: int
    bytes_to_host: int
    bytes_to_device: int
    copy_seconds: float
    stalls: float
    link: HostLink


@dataclass(frozen=True, slots=True)
class OffloadSchedule(Schedule):
    """A schedule with copies; `extra_cost` is the cost of recomputation and the stalls."""

    copies: Copies = field(kw_only=True)


@dataclass(frozen=True)
class OffloadGoal:
    """The link to the host with its bytes, and the values that may be copied."""

    link: HostLink
    movable: frozenset[int]


def offloaded(
    steps: Problem,
    turn: int,
    budget: int,
    goal: OffloadGoal,
    schedules: Callable[[int], Iterable[Sequence[int]]],
    start: Sequence[int] | None,
    idle: Callable[[Sequence[int]], frozenset[int]],
) -> OffloadSchedule | None:
    """Return the fastest schedule found with copies, or None if none fits.

    `schedules` and `start` are as for `OffloadSearch`. `turn` is the step of the forward/backward
    boundary. `idle` returns the values of a sequence that take no bytes.
    """
    host_bytes = goal.link.host_bytes
    assert host_bytes is not None, "a budget bounds host memory"
    resident = frozenset(range(len(steps.bytes))) - goal.movable
    on_host, seconds = Capacity(host_bytes, host_bytes), steps.cost_of(steps.order)
    for _ in range(PACKINGS):
        link = replace(goal.link, host_bytes=int(on_host.bytes))
        search = OffloadSearch(
            steps,
            link,
            budget,
            schedules,
            resident,
            seconds,
        )
        found = search.run(start)
        if found is None or all(event.kind == "run" for event in found.events):
            return None
        events = in_backward(steps, turn, found.events)
        offsets, height = host_offsets(steps, events)
        if height <= host_bytes:
            made = _schedule(steps, goal.link, events, offsets, height, idle)
            return made if made.peak_bytes <= budget else None
        on_host.correct(height)
    return None


def in_backward(steps: Problem, turn: int, events: Sequence[Event]) -> list[Event]:
    """Move copies back that are first used after the boundary to the begin of the backward pass.

    The device then has fewer bytes in between, and no tensor is saved while a copy writes it.
    """
    boundary = events.index(Event("run", turn)) + 1
    before, after = list(events[:boundary]), list(events[boundary:])
    pending: dict[int, int] = {}
    for at, event in enumerate(before):
        if event.kind == "in":
            pending[event.number] = at
        elif event.kind == "run":
            for value in (*steps.inputs[event.number], *steps.outputs[event.number]):
                pending.pop(value, None)
    late = sorted(pending.values())
    leading = list(takewhile(lambda event: event.kind != "run", after))
    drops = [event for event in leading if event.kind != "in"]
    fetches = [event for event in leading if event.kind == "in"]
    kept = [event for at, event in enumerate(before) if at not in pending.values()]
    return [*kept, *drops, *(before[at] for at in late), *fetches, *after[len(leading) :]]


def host_offsets(steps: Problem, events: Sequence[Event]) -> tuple[dict[int, int], int]:
    """Return the offset of each value that is copied to the host, and the bytes of host memory."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, (kind, number) in enumerate(events):
        if kind == "out":
            first[number] = last[number] = at
        elif kind == "in":
            last[number] = at
    values = list(first)
    if not values:
        return {}, 0
    packed = pack(
        [first[value] for value in values],
        [last[value] + 1 for value in values],
        [steps.bytes[value] for value in values],
        alignment=ALIGNMENT,
        effort=PACKING_EFFORT,
    )
    return dict(zip(values, map(int, packed.offsets), strict=True)), int(packed.height)


def levels(
    steps: Problem, events: Sequence[Event], idle: frozenset[int] = frozenset()
) -> list[int]:
    """Return the live bytes at each position of a schedule with copies, without `fixed_bytes`."""
    sequence = [event.number for event in events if event.kind == "run"]
    found = steps.profile(sequence, steps.live_out, idle)
    for value, absent in absences(steps, events):
        for at in absent:
            found[at] -= steps.bytes[value]
    return found


def absences(steps: Problem, events: Iterable[Event]) -> Iterator[tuple[int, range]]:
    """Yield values that are on the host alone, with the positions at which they are.

    They begin with the drop of a value, or after its last use, and end with its next fetch.
    """
    gone_from: dict[int, int] = {}
    position = 0
    for kind, number in events:
        if kind == "run":
            position += 1
            for value in (*steps.inputs[number], *steps.outputs[number]):
                gone_from[value] = position
        elif kind == "drop":
            gone_from[number] = position
        elif kind == "in":
            yield number, range(gone_from[number], position)


def _schedule(
    steps: Problem,
    link: HostLink,
    events: Sequence[Event],
    offsets: dict[int, int],
    height: int,
    idle: Callable[[Sequence[int]], frozenset[int]],
) -> OffloadSchedule:
    sequence = [event.number for event in events if event.kind == "run"]
    run_seconds = steps.cost_of(sequence)
    copied: Counter[str] = Counter()
    copy_seconds = 0.0
    for kind, number in events:
        size = steps.bytes[number] if kind in ("out", "in") else 0
        copied[kind] += size
        if size:
            copy_seconds += link.out_seconds(size) if kind == "out" else link.in_seconds(size)
    stalls = max(0.0, seconds_of(steps, link, events) - run_seconds)
    return OffloadSchedule(
        sequence,
        steps.extra_cost(sequence) + stalls,
        steps.fixed_bytes + max(levels(steps, events, idle(sequence)), default=0),
        copies=Copies(
            tuple(events), offsets, height, copied["out"], copied["in"], copy_seconds, stalls, link
        ),
    )
