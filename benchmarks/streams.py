"""What streams take and gain: bytes of the arena against the modelled seconds of a step.

By the roofline of a device, which takes it that nodes side by side do not slow each other: so the
figures are what the order of nodes and their bytes allow, not what a device reaches. Then steps of
small networks are measured on this CPU, where kernels of several streams share its threads. Run:
python benchmarks/streams.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from report import circumstances, output_argument, print_table, write_json

import graphc
from graphc.models import inception_v3, lstm, two_tower
from graphc.plans.streams import Streams
from graphc.runtime.feeds import random_feeds

MODELS: dict[str, Callable[[], graphc.Value]] = {
    "two_tower": two_tower,
    "inception_v3": inception_v3,
    "lstm": lstm,
}
COUNTS = (2, 4)
ON_CPU: dict[str, Callable[[], graphc.Value]] = {
    "two_tower": lambda: two_tower(batch=16, width=64, rows=1000),
    "inception_v3": lambda: inception_v3(batch=1, image=75, width=8),
    "lstm": lambda: lstm(batch=4, hidden=64, seq_len=32),
}
"""Networks whose kernels are small."""

ROUNDS = 40
EVERYTHING_APART = 2**60
"""A budget that no way of using streams reaches."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="h200", help="a device profile")
    output_argument(parser, "streams.json")
    options = parser.parse_args()
    rows, found = [], []
    for name, build in MODELS.items():
        one = planned(build, options.device, 1, None)
        one_stream = None
        for count in COUNTS:
            for goal, budget in (("the same bytes", None), ("all apart", EVERYTHING_APART)):
                plan = planned(build, options.device, count, budget)
                streams = plan.streams
                assert isinstance(streams, Streams)
                one_stream = streams.one_stream_seconds
                rows.append(row_of(name, count, goal, plan, streams))
                frontier = [
                    {"arena_bytes": each.arena_bytes, "step_seconds": each.seconds}
                    for each in streams.choices
                ]
                found.append({**rows[-1], "frontier": frontier})
        alone = {"network": name, "streams": 1, "arena_bytes": one.arena_bytes}
        found.append({**alone, "step_ms": (one_stream or 0.0) * 1e3})
    print_table(rows)
    content = {**circumstances(["graphc", "numpy"]), "device": options.device, "modelled": True}
    measured = [row for name in ON_CPU for row in on_cpu(name)]
    print_table(measured)
    write_json(Path(options.output), {**content, "plans": found, "measured_on_cpu": measured})


def on_cpu(name: str) -> list[dict[str, object]]:
    """Measured steps on one stream and on several, all apart; turns are taken, the least counts."""
    plans = [
        planned(ON_CPU[name], "cpu", count, None if count == 1 else EVERYTHING_APART)
        for count in (1, *COUNTS)
    ]
    programs = [graphc.bind(plan) for plan in plans]
    feeds = {source.name: array for source, array in random_feeds(plans[0].graph, 0).items()}
    seconds: list[list[float]] = [[] for _ in programs]
    for _ in range(ROUNDS):
        for program, own in zip(programs, seconds, strict=True):
            program.step(feeds)
            started = time.perf_counter()
            program.step(feeds)
            own.append(time.perf_counter() - started)
    return [
        {
            "network": name,
            "streams": count,
            "arena_bytes": plan.arena_bytes,
            "step_ms": min(own) * 1e3,
            "times_one_stream": min(seconds[0]) / min(own),
        }
        for count, plan, own in zip((1, *COUNTS), plans, seconds, strict=True)
    ]


def planned(
    build: Callable[[], graphc.Value], device: str, count: int, budget: int | None
) -> graphc.MemoryPlan:
    """The plan of a step on so many streams."""
    optimizer = graphc.optim.SGD(0.1)
    return graphc.plan(build(), optimizer=optimizer, device=device, streams=count, budget=budget)


def row_of(
    name: str, count: int, goal: str, plan: graphc.MemoryPlan, streams: Streams
) -> dict[str, object]:
    """The figures of one plan as a row."""
    return {
        "network": name,
        "streams": count,
        "within": goal,
        "arena_bytes": plan.arena_bytes,
        "step_ms": streams.seconds * 1e3,
        "times_one_stream": streams.speedup,
        "planning_s": plan.planning_seconds,
    }


if __name__ == "__main__":
    main()
