"""Events of a schedule with copies to the host, in the order in which they are issued.

    run n     compute step n
    out v     begin the copy of the value v, which is live, to the host
    drop v    free the device bytes of v, after waiting until its copy has ended
    in v      allocate the bytes of v on the device and begin the copy back

A value is copied to the host at most once and may be fetched several times. Three lanes work side
by side: computation in the order of the events, copies to the host, and copies to the device, each
first in, first out. `seconds_of` gives the time at which all of them are done; clocks.py of
graphc/planner/given defines the same times for the checker, without sharing code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from graphc.planner.host_link import HostLink
from graphc.planner.problem import Problem

Kind = Literal["run", "out", "drop", "in"]


class Event(NamedTuple):
    """An event of a schedule: its kind, and a step for `run`, else a value."""

    kind: Kind
    number: int


def events_of(sequence: Iterable[int]) -> list[Event]:
    """Return a schedule without copies as events."""
    return [Event("run", step) for step in sequence]


def seconds_of(steps: Problem, link: HostLink, events: Sequence[Event]) -> float:
    """Return the seconds of legal events, with all waits of computation for copies.

    Copies back are in the order of their events. If the host's bytes are limited, a copy to the
    host also waits for the copies back after which host bytes were released.
    """
    last_in = {event.number: at for at, event in enumerate(events) if event.kind == "in"}
    now = out_lane = in_lane = released = 0.0
    ready = dict.fromkeys(range(len(steps.bytes)), 0.0)
    on_host: dict[int, float] = {}
    for at, (kind, number) in enumerate(events):
        if kind == "run":
            now = max([now, *(ready[value] for value in steps.inputs[number])])
            now += steps.cost[number]
            ready.update(dict.fromkeys(steps.outputs[number], now))
        elif kind == "out":
            begin = max(out_lane, ready[number], 0.0 if link.host_bytes is None else released)
            on_host[number] = out_lane = begin + link.out_seconds(steps.bytes[number])
            in_lane = in_lane if link.both_ways else out_lane
        elif kind == "drop":
            now = max(now, on_host[number])
        else:
            begin = max(in_lane, now, on_host[number])
            ready[number] = in_lane = begin + link.in_seconds(steps.bytes[number])
            out_lane = out_lane if link.both_ways else in_lane
            if last_in[number] == at:
                released = max(released, in_lane)
    return max([now, *(ready[value] for value in steps.live_out)])
