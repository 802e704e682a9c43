"""Measurement of the kernels of a plan on the CPU of this machine, and of its link to the host."""

from __future__ import annotations

import bisect
import itertools
import math
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphc.errors import OptionError, check_seed, whole_number
from graphc.ir.graph import Node
from graphc.plans.costs import MeasuredCosts, Measurement, node_key
from graphc.plans.memory_plan import MemoryPlan, as_plan
from graphc.plans.timeline import TimedCopy, copied_bytes
from graphc.runtime.arena import Arena
from graphc.runtime.cpu.bind import Call, arrays_of, node_calls, numpy_settings
from graphc.runtime.cpu.copies import Concurrent, Lanes
from graphc.runtime.feeds import random_feeds
from graphc.runtime.gpu.cuda import CudaDevice
from graphc.runtime.gpu.device import find_gpu, profile_of
from graphc.runtime.host_link import cpu_link, gpu_link
from graphc.runtime.initial import fill_initial
from graphc.runtime.ranks.together import lane_of

REPEAT = 5


def profile(plan: MemoryPlan, repeat: int = REPEAT, seed: int = 0) -> MeasuredCosts:
    """Measure the mean seconds of nodes with equal keys (the same op, attributes and types), and
    the link between the arena and host memory.

    For a plan for a GPU, only the link of the first GPU is measured.

    Raises the errors of `step_times`, and `GpuUnavailable`.
    """
    if as_plan("profile: plan", plan).device.kind != "cpu":
        gpu = find_gpu(0)
        described = {"name": profile_of(gpu).name, "machine": machine()}
        return MeasuredCosts(described, (), gpu_link(CudaDevice(gpu)))
    best = node_seconds(plan, repeat, seed)
    device = {
        "name": plan.device.name,
        "machine": machine(),
        "numpy": np.__version__,
        "kernels": plan.device.kernels,
    }
    return MeasuredCosts(device, _by_key(plan.graph.nodes, best), cpu_link())


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of the nodes of a plan in order, and of the work that overlaps with them.

    `exchanges` has (node number, start, seconds) of each collective, and `copies` has the copies
    between device and host; a start is relative to that of the first node.
    """

    seconds: Sequence[float]
    exchanges: Sequence[tuple[int, float, float]] = ()
    copies: Sequence[TimedCopy] = ()


def node_seconds(plan: MemoryPlan, repeat: int = REPEAT, seed: int = 0) -> Sequence[float]:
    """Return the seconds of each node, measured by `step_times`."""
    return step_times(plan, repeat, seed).seconds


def step_times(plan: MemoryPlan, repeat: int = REPEAT, seed: int = 0) -> StepTimes:
    """Run whole steps on random inputs, and time every node in each of them.

    Caches are therefore as warm as in a real step. After one warm-up step, `repeat` steps are
    timed, and the result is the minimum of each node. For a plan of several ranks, all ranks call
    this. For such a plan, and for one with copies to the host, the result is the shortest step.
    `seed` seeds states and inputs.

    Raises `OptionError` for a `repeat` below 1, an invalid seed or a plan for a GPU, `RanksError`
    if other ranks are missing, and `ArenaError` if the plan does not fit into memory.
    """
    repeat, seed = whole_number("repeat", repeat), check_seed(seed)
    if plan.device.kind != "cpu":
        raise OptionError(
            "timing of nodes requires a plan for the CPU, but the plan is for "
            f"{plan.device.name}; plan with device='cpu'"
        )
    graph, lane = plan.graph, lane_of(plan, seed, None)
    arena = Arena(plan)
    arrays = arrays_of(plan, arena)
    copies = Concurrent()
    lanes = Lanes(lane, copies) if plan.host_bytes else lane
    steps = list(node_calls(plan, arena, arrays, None, lanes).values())
    for state in graph.states:
        fill_initial(state, seed, arrays[state], lane.wire.rank)
    feeds = random_feeds(graph, seed)
    lane.spans = {} if lane.wire.size > 1 else None
    found: list[StepTimes] = []
    for _ in range(1 + repeat):
        for source, given in feeds.items():  # a step may overwrite its inputs
            np.copyto(arrays[source], given)
        with numpy_settings():
            spans = [_timed(calls) for calls in steps]
        found.append(_times(plan, spans, lane.spans or {}, copies.spans()))
    lane.spans = None
    if lane.wire.size > 1 or plan.host_bytes:
        return min(found[1:], key=lambda times: math.fsum(times.seconds))
    return StepTimes([min(each) for each in zip(*(t.seconds for t in found[1:]), strict=True)])


def _timed(calls: Sequence[Call]) -> tuple[int, int]:
    """Run the calls; return the start of the first and the end of the last in nanoseconds."""
    started = time.perf_counter_ns()
    if not calls:
        return started, started
    for call in calls:
        call()
    return started, time.perf_counter_ns()


def _times(
    plan: MemoryPlan,
    spans: Sequence[tuple[int, int]],
    exchanges: Mapping[Node, tuple[int, int]],
    copies: Mapping[Node, tuple[int, int]],
) -> StepTimes:
    """Convert start and end times of nodes, collectives and copies to `StepTimes`, without gaps."""
    seconds = [(end - begin) * 1e-9 for begin, end in spans]
    begins, started = [0.0, *itertools.accumulate(seconds)], [begin for begin, _ in spans]

    def at(moment: int) -> float:
        step = max(bisect.bisect_right(started, moment) - 1, 0)
        return begins[step] + min(max((moment - started[step]) * 1e-9, 0.0), seconds[step])

    beside = [
        (plan.graph.position[node], at(begin), at(end) - at(begin))
        for node, (begin, end) in exchanges.items()
    ]
    arrivals = {node.awaited: step for step, node in enumerate(plan.graph.nodes) if node.awaited}
    timed = []
    for node, (begin, end) in copies.items():
        first, last, to = at(begin), at(end), node.op.copies_to
        assert to, "only copies between device and host run in this lane"
        stall = max(last - begins[arrivals[node]], 0.0)
        size = copied_bytes(plan, node)
        timed.append(TimedCopy(plan.graph.position[node], to, size, first, last, stall))
    timed.sort(key=lambda copy: copy.node)
    return StepTimes(seconds, sorted(beside), timed)


def _by_key(nodes: Sequence[Node], seconds: Sequence[float]) -> tuple[Measurement, ...]:
    """Return one measurement for each key of nodes, in order of first appearance."""
    groups: dict[str, list[tuple[Node, float]]] = {}
    for node, found in zip(nodes, seconds, strict=True):
        groups.setdefault(node_key(node), []).append((node, found))
    measured = []
    for key, group in groups.items():
        op, cost = group[0][0].op, group[0][0].op.cost(group[0][0])
        mean = round(sum(found for _, found in group) / len(group), 12)
        moved = cost.bytes_read + cost.bytes_written
        measured.append(Measurement(key, op.name, mean, len(group), cost.flops, moved))
    return tuple(measured)


def machine() -> str:
    """Describe the architecture and the processors, without identifying this one machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()}, {platform.processor() or 'unknown processor'}"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    described = f"{len(names)} x {names[0]}" if names else "unknown processor"
    return f"{platform.machine()}, {described}"
