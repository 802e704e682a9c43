"""A plan's schedule in Chrome's trace event format, which Perfetto reads.

Each clock is a process with a track of nodes, a track of collectives between ranks, a counter of
live bytes, and counters of live bytes by kind. Plans with copies to the host also have a track for
each direction, and a counter of live bytes on the host. Perfetto names a counter by its event and
its argument, so the counter of all live bytes has the event "live" and the argument "bytes". Times
are in microseconds, as the format requires.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphc.ir.host_copies import original
from graphc.plans.memory_plan import Kind, MemoryPlan
from graphc.plans.names import called
from graphc.view.clock import Clock, estimated
from graphc.view.page_model import LASTING, arena_kinds, host_profile, live_by_kind

Event = dict[str, Any]

NODES, EXCHANGES = 1, 2
"""Numbers of the tracks of nodes and collectives in each process."""

COPIES = {"host": (3, "copies to the host"), "device": (4, "copies to the device")}
"""Direction → number and name of the track of its copies."""


def trace(plan: MemoryPlan, clocks: Mapping[str, Clock] | None = None) -> str:
    """Return a trace as JSON; `clocks` maps the name of a process to its node times.

    By default there is one clock, the roofline of the plan's device.
    """
    clocks = clocks or {"planned": estimated(plan)}
    events: list[Event] = []
    for process, (name, clock) in enumerate(clocks.items(), 1):
        events += _process(plan, process, name, clock)
    content = {
        "displayTimeUnit": "ns",
        "otherData": {
            "live_bytes": plan.live_bytes,
            "arena_bytes": plan.arena_bytes,
            "allocate": plan.allocate,
            "recompute": plan.recompute,
        },
        "traceEvents": events,
    }
    return json.dumps(content, separators=(",", ":")) + "\n"


def _process(plan: MemoryPlan, process: int, name: str, clock: Clock) -> Iterator[Event]:
    yield _named("process_name", process, f"{name}: {clock.source}")
    yield _named("thread_name", process, "nodes")
    begins = _nanoseconds(clock.seconds)
    by_kind, on_host = live_by_kind(plan), host_profile(plan)
    names = plan.graph.names
    for step, node in enumerate(plan.graph.nodes):
        begin = _microseconds(begins[step])
        yield {
            "ph": "X", "pid": process, "tid": NODES, "ts": begin,
            "dur": _microseconds(begins[step + 1] - begins[step]),
            "name": node.label, "cat": node.phase,
            "args": {
                "node": step,
                "outputs": [f"{names[value]} {value.type}" for value in node.outputs],
                "inputs": [names[value] for value in node.inputs],
            },
        }  # fmt: skip
        yield _counter("live", process, begin, {"bytes": plan.live_profile[step]})
        yield _counter("live bytes of", process, begin, by_kind[step])
        if plan.host_bytes:
            yield _counter("live on the host", process, begin, {"bytes": on_host[step]})
    if clock.exchanges:
        yield _named("thread_name", process, "exchanges with other ranks", EXCHANGES)
    for step, at, length in clock.exchanges:
        node, (first, last) = plan.graph.nodes[step], _whole(at, at + length)
        yield {
            "ph": "X", "pid": process, "tid": EXCHANGES, "ts": _microseconds(first),
            "dur": _microseconds(last - first), "name": node.label, "cat": "exchange",
            "args": {"node": step, "sent_bytes": node.op.sent_bytes(node)},
        }  # fmt: skip
    yield from _copies(plan, process, clock)
    lasting = {k: size for k, size in plan.bytes_by_kind.items() if k in LASTING}
    after = dict.fromkeys(arena_kinds(plan), 0) | lasting
    if not plan.graph.nodes:
        after = by_kind[-1]
    end = _microseconds(begins[-1])
    yield _counter("live", process, end, {"bytes": sum(after.values())})
    yield _counter("live bytes of", process, end, after)
    if plan.host_bytes:
        yield _counter("live on the host", process, end, {"bytes": 0})


def _copies(plan: MemoryPlan, process: int, clock: Clock) -> Iterator[Event]:
    """Yield the tracks of copies between device and host.

    A copy is named by the value that is copied first. ``stall_us`` has the microseconds that the
    step waits for its end.
    """
    for to in dict.fromkeys(copy.to for copy in clock.copies):
        track, name = COPIES[to]
        yield _named("thread_name", process, name, track)
    for copy in clock.copies:
        node, (first, last) = plan.graph.nodes[copy.node], _whole(copy.start, copy.end)
        yield {
            "ph": "X", "pid": process, "tid": COPIES[copy.to][0], "ts": _microseconds(first),
            "dur": _microseconds(last - first), "name": called(plan, original(node.output)),
            "cat": "copy",
            "args": {
                "node": copy.node, "bytes": copy.bytes,
                "stall_us": _microseconds(round(copy.stall * 1e9)),
            },
        }  # fmt: skip


def _whole(begin: float, end: float) -> tuple[int, int]:
    """Convert the begin and the end of concurrent work from seconds to nanoseconds."""
    return round(begin * 1e9), round(end * 1e9)


def _nanoseconds(seconds: Sequence[float]) -> list[int]:
    """Return the start of each node and the end of the last in nanoseconds.

    Nodes with nonzero seconds take at least 1 ns.
    """
    begins, end = [0], 0.0
    for each in seconds:
        end += each
        begins.append(max(round(end * 1e9), begins[-1] + (each > 0)))
    return begins


def _microseconds(nanoseconds: int) -> float:
    """Convert whole nanoseconds to microseconds that truncate back to the same nanoseconds.

    Perfetto truncates times. If rounding let a node end 1 ns late, it would overlap with the next
    node, and Perfetto would drop one of them.
    """
    found = nanoseconds / 1000
    return found if int(found * 1000) >= nanoseconds else math.nextafter(found, math.inf)


def _named(what: str, process: int, name: str, track: int = NODES) -> Event:
    return {"ph": "M", "pid": process, "tid": track, "name": what, "args": {"name": name}}


def _counter(
    name: str, process: int, time: float, numbers: Mapping[str, int] | Mapping[Kind, int]
) -> Event:
    return {"ph": "C", "pid": process, "ts": time, "name": name, "args": dict(numbers)}
