"""Writes copies of whole values to the host as events of a schedule of a chain.

Copies begin in the order of production, when the value is made. A value is dropped when its copy
has ended, or earlier with a wait if the bytes are needed. Copies that do not end before the value
is used are omitted. Copies back start in the order of uses, as soon as the bytes suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphc.planner.given import Event, GivenProblem, HostLink


@dataclass(slots=True)
class Copy:
    """A copy of a value: the positions of its production, of its last use before and its first use
    after the copy, and those before which it is dropped and fetched."""

    value: int
    made: int
    start: int
    stop: int
    drop: int = -1
    fetch: int = -1


def placed(
    problem: GivenProblem, link: HostLink, sequence: list[int], values: Sequence[int], budget: int
) -> list[Event]:
    """Return the events of a sequence with copies of values that its first half produces."""
    turn = len(problem) // 2
    copies = []
    for value in values:
        uses = [at for at, node in enumerate(sequence) if value in problem.inputs[node]]
        made, stop = problem.producer[value], next(at for at in uses if at >= turn)
        start = max([made, *(at for at in uses if at < turn)])
        copies.append(Copy(value, made, start, stop))
    levels = problem.levels(sequence) + problem.fixed_bytes
    while True:
        spare = budget - levels
        for copy in copies:
            spare[copy.start + 1 : copy.stop] += problem.bytes[copy.value]
        late = _leave(problem, link, sequence, copies, spare)
        if not late:
            break
        copies = [copy for copy in copies if copy.value not in late]
    _return(problem, copies, spare)
    return _events(sequence, copies)


def _leave(
    problem: GivenProblem,
    link: HostLink,
    sequence: Sequence[int],
    copies: list[Copy],
    spare: np.ndarray,
) -> set[int]:
    """Set the drops, each when the copy has ended or when its bytes are needed, and take the bytes
    that values use until then from `spare`. Return values that are not dropped in time."""
    now = lane = 0.0
    ends: dict[int, float] = {}
    waiting = sorted(copies, key=lambda copy: copy.made)
    late = set()
    for at, node in enumerate(sequence):
        resident = [copy for copy in waiting if copy.start < at]
        live = sum(problem.bytes[copy.value] for copy in resident)
        for copy in resident:
            if ends[copy.value] > now and live <= spare[at]:
                break
            waiting.remove(copy)
            live -= problem.bytes[copy.value]
            if copy.stop <= at:
                late.add(copy.value)
                continue
            now, copy.drop = max(now, ends[copy.value]), at
        spare[at] -= live
        now += problem.cost[node]
        for copy in waiting:
            if copy.made == at:
                ends[copy.value] = lane = max(lane, now) + link.out_seconds(
                    problem.bytes[copy.value]
                )
    return late.union(copy.value for copy in waiting)


def _return(problem: GivenProblem, copies: list[Copy], spare: np.ndarray) -> None:
    """Set the positions of copies back: in the order of uses, each as soon as its bytes fit."""
    earliest = 0
    for copy in sorted(copies, key=lambda copy: copy.stop):
        size, fetch = problem.bytes[copy.value], copy.stop
        while fetch > max(earliest, copy.drop + 1) and spare[fetch - 1] >= size:
            fetch -= 1
        spare[fetch : copy.stop] -= size
        copy.fetch = earliest = fetch


def _events(sequence: Sequence[int], copies: list[Copy]) -> list[Event]:
    events: list[Event] = []
    for at, node in enumerate(sequence):
        events += [Event("drop", copy.value) for copy in copies if copy.drop == at]
        back = [copy for copy in copies if copy.fetch == at]
        events += [Event("in", copy.value) for copy in sorted(back, key=lambda copy: copy.stop)]
        events.append(Event("run", node))
        events += [Event("out", copy.value) for copy in copies if copy.made == at]
    return events
