"""A plan's schedule in Chrome's trace event format, which Perfetto reads.

Each clock is a process with a track of nodes, a track of collectives between ranks, a counter of
live bytes, and counters of live bytes by kind. Perfetto names a counter by its event and its
argument, so the counter of all live bytes has the event "live" and the argument "bytes". Times are
in microseconds, as the format requires.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphc.plans.memory_plan import Kind, MemoryPlan
from graphc.view.clock import Clock, estimated
from graphc.view.page_model import LASTING, kinds_of, live_by_kind

Event = dict[str, Any]

NODES, EXCHANGES = 1, 2
"""Numbers of the tracks of nodes and collectives in each process."""


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
    by_kind = live_by_kind(plan)
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
    if clock.exchanges:
        yield _named("thread_name", process, "exchanges with other ranks", EXCHANGES)
    for step, at, length in clock.exchanges:
        node, (first, last) = plan.graph.nodes[step], (round(t * 1e9) for t in (at, at + length))
        yield {
            "ph": "X", "pid": process, "tid": EXCHANGES, "ts": _microseconds(first),
            "dur": _microseconds(last - first), "name": node.label, "cat": "exchange",
            "args": {"node": step, "sent_bytes": node.op.sent_bytes(node)},
        }  # fmt: skip
    lasting = {k: size for k, size in plan.bytes_by_kind.items() if k in LASTING}
    after = dict.fromkeys(kinds_of(plan), 0) | lasting
    if not plan.graph.nodes:
        after = by_kind[-1]
    end = _microseconds(begins[-1])
    yield _counter("live", process, end, {"bytes": sum(after.values())})
    yield _counter("live bytes of", process, end, after)


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
