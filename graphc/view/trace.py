"""A plan's schedule in Chrome's trace event format, which Perfetto reads.

Each clock is a process of its own: a track of nodes, a counter of live bytes, and one of live bytes
by kind. Times are microseconds, as the format wants.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from graphc.ir.plan import MemoryPlan
from graphc.passes.cost import CostModel
from graphc.view.page_model import KINDS, aligned_bytes, lifetime_end

MICROSECONDS = 1e6

Event = dict[str, Any]


def trace(plan: MemoryPlan, clocks: Mapping[str, CostModel] | None = None) -> str:
    """The JSON of a trace; `clocks` maps the name of a process to what its nodes cost.

    By default there is one clock, the roofline of the plan's device.
    """
    clocks = clocks or {"planned": CostModel(plan.device)}
    events: list[Event] = []
    for process, (name, costs) in enumerate(clocks.items(), 1):
        events += _process(plan, process, name, costs)
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


def _process(plan: MemoryPlan, process: int, name: str, costs: CostModel) -> Iterator[Event]:
    yield _named("process_name", process, f"{name}: {costs}")
    yield _named("thread_name", process, "nodes")
    durations = [costs.seconds(node) * MICROSECONDS for node in plan.graph.nodes]
    ends = list(accumulate(durations))
    by_kind = _live_by_kind(plan)
    names = plan.graph.names
    for step, node in enumerate(plan.graph.nodes):
        begin = ends[step] - durations[step]
        yield {
            "ph": "X", "pid": process, "tid": 1, "ts": begin, "dur": durations[step],
            "name": node.label, "cat": node.phase,
            "args": {
                "node": step,
                "outputs": [f"{names[value]} {value.type}" for value in node.outputs],
                "inputs": [names[value] for value in node.inputs],
            },
        }  # fmt: skip
        yield _counter("live bytes", process, begin, {"bytes": plan.live_profile[step]})
        yield _counter("live bytes by kind", process, begin, by_kind[step])
    end = ends[-1] if ends else 0.0
    yield _counter("live bytes", process, end, {"bytes": plan.live_profile[-1] if not ends else 0})


def _named(what: str, process: int, name: str) -> Event:
    return {"ph": "M", "pid": process, "tid": 1, "name": what, "args": {"name": name}}


def _counter(name: str, process: int, time: float, numbers: Mapping[str, int]) -> Event:
    return {"ph": "C", "pid": process, "ts": time, "name": name, "args": dict(numbers)}


def _live_by_kind(plan: MemoryPlan) -> list[dict[str, int]]:
    """Live bytes of each kind at each step, rounded as `live_profile` is."""
    changes: list[dict[str, int]] = [{} for _ in range(len(plan.live_profile) + 1)]
    for buffer in plan.buffers:
        size = aligned_bytes(plan, buffer)
        for step, sign in (buffer.lifetime.first, 1), (lifetime_end(plan, buffer), -1):
            changes[step][buffer.kind] = changes[step].get(buffer.kind, 0) + sign * size
    live = dict.fromkeys(KINDS, 0)
    found = []
    for change in changes[:-1]:
        live = {kind: size + change.get(kind, 0) for kind, size in live.items()}
        found.append({str(kind): size for kind, size in live.items()})
    return found
