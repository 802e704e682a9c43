"""Schedules of a joint graph with copies to host memory, and the offsets of values on the host.

`graphc.planner.copies` searches recomputation and copies together. Its schedules are adapted to the
two graphs of a step: a copy back that is first used in the backward pass begins there. Host offsets
are packed (`graphc.planner.pack`) by live ranges over the events of a schedule. `movable` selects
the values that may be copied, and `CopyNodes` emits the copies.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import torch
from torch import fx

from graphc.planner.copies.events import Event, seconds_of
from graphc.planner.copies.search import OffloadSearch
from graphc.planner.goals import Capacity
from graphc.planner.host_link import HostLink
from graphc.planner.pack import pack
from graphc.planner.problem import Problem
from graphc.planner.recompute.solver import Schedule
from graphc.torch.budget.host.host_memory import begin_in, begin_out, end_in, end_out, open_host
from graphc.torch.budget.plan.steps import TorchSteps
from graphc.torch.budget.trace.joint import Joint, mutates
from graphc.torch.budget.trace.measure import allocated_bytes, bytes_alone

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
    boundary: int,
    budget: int,
    goal: OffloadGoal,
    schedules: Callable[[int], Iterable[Sequence[int]]],
    start: Sequence[int] | None,
    idle: Callable[[Sequence[int]], frozenset[int]],
) -> OffloadSchedule | None:
    """Return the fastest schedule found with copies, or None if none fits.

    `schedules` and `start` are as for `OffloadSearch`. `boundary` is the step between
    forward and backward pass. `idle` returns the values of a sequence that take no bytes.
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
        events = in_backward(steps, boundary, found.events)
        offsets, height = host_offsets(steps, events)
        if height <= host_bytes:
            made = _schedule(steps, goal.link, events, offsets, height, idle)
            return made if made.peak_bytes <= budget else None
        on_host.correct(height)
    return None


def in_backward(steps: Problem, boundary: int, events: Sequence[Event]) -> list[Event]:
    """Move copies back that are first used after the boundary to the begin of the backward pass.

    The device then has fewer bytes in between, and no tensor is saved while a copy writes it.
    """
    begin = events.index(Event("run", boundary)) + 1
    before, after = list(events[:begin]), list(events[begin:])
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


def movable(torch_steps: TorchSteps) -> frozenset[int]:
    """Return the values that a step computes, that only its graphs refer to, and whose tensors are
    dense and fill their storages. No op writes into them, and none returns an alias of them beside
    a new tensor."""
    joint, steps = torch_steps.joint, torch_steps.steps
    device = device_of_copies(joint)
    fixed = joint.source_values | torch_steps.returned
    for step in joint.steps:
        if mutates(step.node):
            fixed |= set(step.reads)
        fixed |= set(joint.values[step.node]) - set(step.makes)
    found = set()
    for value, node in enumerate(joint.base):
        producer = steps.producer[value]
        fake = node.meta.get("val")
        if (
            value not in fixed
            and producer >= 0
            and torch_steps.nodes[producer] is not None
            and isinstance(fake, torch.Tensor)
            and fake.device == device
            and _fills_its_storage(fake)
            and steps.bytes[value] == allocated_bytes(fake) > 0
        ):
            found.add(value)
    return frozenset(found)


def device_of_copies(joint: Joint) -> torch.device:
    """Return the GPU of a joint graph, or the CPU if it has none."""
    for node in joint.base:
        fake = node.meta.get("val")
        if isinstance(fake, torch.Tensor) and fake.device.type == "cuda":
            return fake.device
    return torch.device("cpu")


def _fills_its_storage(fake: torch.Tensor) -> bool:
    """Return whether each element of a storage is one element of the tensor."""
    expected = 1
    for stride, size in sorted(zip(fake.stride(), fake.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return bytes_alone(fake) == allocated_bytes(fake)


class CopyNodes:
    """Emits the copies of a schedule; `host` is the node with the lease of host memory."""

    def __init__(self, joint: Joint, copies: Copies | None) -> None:
        self.joint, self.copies = joint, copies
        self.host: fx.Node | None = None
        self._coming: set[int] = set()
        self.views: dict[int, list[fx.Node]] = defaultdict(list)
        """The views of each value, which are emitted anew after a copy back."""
        for node in joint.values if copies is not None else ():
            if node not in joint.step_of and node.op == "call_function":
                for value in joint.values[node]:
                    self.views[value].append(node)

    def is_coming(self, value: int) -> bool:
        """Return whether a copy of a value to the device has begun and has not been awaited."""
        return value in self._coming

    def open(self, graph: fx.Graph) -> None:
        """Emit the lease of host memory, if there are copies."""
        if self.copies is not None:
            device = device_of_copies(self.joint)
            self.host = graph.call_function(open_host, (self.copies.host_bytes, device))
            with self.joint.fake_mode:
                self.host.meta["val"] = torch.empty((), dtype=torch.int64)

    def begin_out(self, graph: fx.Graph, value: int, source: fx.Node) -> None:
        """Emit the begin of a copy to the host."""
        fake = source.meta["val"]
        size = fake.numel() * fake.element_size()
        assert self.copies is not None, "there are copies"
        self._call(graph, begin_out, source, value, self.copies.offsets[value], size)

    def end_out(self, graph: fx.Graph, value: int, source: fx.Node) -> None:
        """Emit the end of a copy to the host."""
        self._call(graph, end_out, source, value)

    def begin_in(self, graph: fx.Graph, value: int) -> fx.Node:
        """Emit the begin of a copy to the device; returns the node of its tensor."""
        self._coming.add(value)
        meta = self.joint.base[value].meta
        made = self._call(graph, begin_in, value, meta["val"].device)
        made.meta = dict(meta)
        return made

    def end_in(self, graph: fx.Graph, value: int, coming: fx.Node) -> fx.Node:
        """Emit the end of a copy to the device; returns the node of its tensor."""
        self._coming.remove(value)
        made = self._call(graph, end_in, coming, value)
        made.meta = dict(coming.meta)
        return made

    def _call(self, graph: fx.Graph, target: Any, *args: Any) -> fx.Node:
        return graph.call_function(target, (self.host, *args))
