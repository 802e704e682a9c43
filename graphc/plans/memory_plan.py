"""The memory plan: the position of every value in one arena.

Offsets and sizes are bytes; offsets are relative to the start of the arena.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from graphc.devices.device import Device
from graphc.errors import OptionError, quoted
from graphc.ir.forms import written
from graphc.ir.graph import Graph, Node, State, Value
from graphc.ir.types import Layout, align, outer_axes
from graphc.plans.streams import Streams
from graphc.target import Target, target_of

How = Literal["new", "reuse", "over", "view", "part", "state"]
"""The origin of a value's bytes.

- ``new``: bytes used for the first time; ``reuse``: bytes used before by another buffer
- ``over``: the bytes of an operand that it overwrites; ``view``: a view of another value
- ``part``: a part of the concatenation that reads it; ``state``: the bytes of a state
"""

Kind = Literal[
    "state", "input", "feature map", "gradient", "mirror", "workspace", "slot", "gathered",
    "fetched", "host",
]  # fmt: skip
RARE: tuple[Kind, ...] = ("slot", "gathered", "fetched", "host")
"""Kinds of buffers that are listed only for plans that have such buffers."""

Way = Literal["in", "out"]

Recompute = Literal["none", "mirror", "cheap", "segments", "sublinear", "recursive", "optimal"]
Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
Allocate = Literal["none", "inplace", "sharing", "packed", "coloring"]

RECOMPUTE: tuple[Recompute, ...] = (
    "none", "mirror", "cheap", "segments", "sublinear", "recursive", "optimal",
)  # fmt: skip
COMPARED: tuple[Allocate, ...] = ("none", "inplace", "sharing", "packed")
"""Allocation strategies; every plan states the size of its arena under each of them."""

ALLOCATE: tuple[Allocate, ...] = (*COMPARED, "coloring")
"""All allocation strategies; the last one is a baseline that takes long to compute."""


PRECISIONS: dict[Precision, str] = {
    "fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "bfloat16"
}  # fmt: skip
"""Precision → the dtype in which feature maps are stored; in fp8, some operands have 8 bits."""


def as_plan(where: str, given: object) -> MemoryPlan:
    """Return `given` if it is a plan, else raise `OptionError` with the fix."""
    if isinstance(given, MemoryPlan):
        return given
    has_plan = isinstance(getattr(given, "plan", None), MemoryPlan)
    cure = "give its attribute plan" if has_plan else "graphc.plan and graphc.load_plan return one"
    raise OptionError(f"{where} must be a MemoryPlan, got {quoted(given)}; {cure}")


def check_alignment(alignment: object) -> int:
    """Return an alignment if it is a power of two of at least 16, else raise `OptionError`."""
    if not isinstance(alignment, int) or alignment < 16 or alignment & (alignment - 1):
        raise OptionError(f"alignment must be a power of two of at least 16, got {alignment!r}")
    return alignment


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A half-open range of steps `[first, last)`.

    States are live during the whole step and beyond it.
    """

    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        return self.first < other.last and other.first < self.last


@dataclass(frozen=True, slots=True)
class Buffer:
    """A range of bytes in the arena, or in host memory, for a lifetime.

    Values that view or overwrite each other share a buffer. A buffer of the kind ``host`` is in
    host memory, whose offsets begin at `MemoryPlan.host_start`, after those of the arena.
    """

    index: int
    kind: Kind
    offset: int
    bytes: int
    lifetime: Lifetime


@dataclass(frozen=True, slots=True)
class Placement:
    """The position of a value in a buffer.

    `offset` is in bytes from the buffer's start. `strides` are in bytes; None means contiguous and
    row-major. `how` is the origin of the bytes. `over` is the value that this value overwrites or
    views, or the concatenation that contains it.
    """

    buffer: int
    offset: int
    strides: tuple[int, ...] | None
    how: How
    over: Value | None = None

    @property
    def layout(self) -> Layout | None:
        """The offset and strides in bytes; None for a contiguous row-major value."""
        return None if self.strides is None else Layout(self.offset, self.strides)


@dataclass(frozen=True, slots=True)
class Slot:
    """A copy of a value in bytes that no other value shares.

    The next feeds of an input arrive in its slot while a step runs (``in``). An output is copied
    out of its slot while the next step runs (``out``).
    """

    value: Value
    way: Way
    buffer: Buffer


@dataclass(frozen=True, slots=True)
class Recomputation:
    """The nodes that a plan recomputes: their number, and their cost.

    The cost is given as fractions of the flops and of the seconds of a step without recomputation.
    """

    nodes: int
    extra_flops_fraction: float
    extra_time_fraction: float


@dataclass(frozen=True, slots=True)
class Certificate:
    """The goal of a plan, and bounds that planners have proven.

    No schedule of this graph has an arena smaller than `bound_bytes`. No schedule within the plan's
    bytes adds less than the fraction `extra_time_bound` of a step's seconds.
    """

    goal: str
    bound_bytes: int
    extra_time_bound: float


@dataclass(frozen=True, eq=False, repr=False)
class MemoryPlan:
    """The buffers and placements of a graph's values in one arena, for the order of its nodes.

    `strategy_bytes` maps allocation strategies to arena sizes, for comparison. `settings` records
    how the step trains: the optimizer and the options that differ from the defaults.
    """

    graph: Graph
    recompute: str
    allocate: Allocate
    alignment: int
    device: Device
    buffers: tuple[Buffer, ...]
    placements: Mapping[Value, Placement]
    workspaces: Mapping[Node, Buffer]
    arena_bytes: int
    feature_map_bytes: int
    strategy_bytes: Mapping[str, int]
    recomputation: Recomputation
    planning_seconds: float
    certificate: Certificate | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    slots: tuple[Slot, ...] = ()
    streams: Streams | None = None
    """The stream schedule; None if nodes run one after another."""
    host_bytes: int = 0
    """The bytes of host memory for states on the host, and for values that are copied there."""

    @cached_property
    def host_state_bytes(self) -> int:
        """The bytes of the states on the host, which precede all other values there."""
        states = (state for state in self.graph.states if state.on_host)
        buffers = (self.buffers[self.placements[state].buffer] for state in states)
        return sum(align(buffer.bytes, self.alignment) for buffer in buffers)

    @cached_property
    def host_start(self) -> int:
        """The offset of the first byte of host memory, which no byte of the arena has."""
        return align(self.arena_bytes, self.alignment)

    @cached_property
    def arena_buffers(self) -> tuple[Buffer, ...]:
        """The buffers in the arena: all except those on the host."""
        return tuple(buffer for buffer in self.buffers if buffer.kind != "host")

    def address(self, value: Value) -> int:
        """Return the offset of a value's first element in the arena, or in host memory."""
        placement = self.placements[value]
        return self.buffers[placement.buffer].offset + placement.offset

    @property
    def bound_bytes(self) -> int | None:
        """A proven lower bound on the bytes of every schedule of this graph, or None."""
        return self.certificate.bound_bytes if self.certificate else None

    @cached_property
    def target(self) -> Target:
        """The target (kernels of a device) for which the plan was made."""
        return target_of(self.device)

    @cached_property
    def strided(self) -> dict[Value, tuple[int, ...]]:
        """Value → its byte strides, for values that are not contiguous and row-major."""
        return strided(self.placements)

    @cached_property
    def state_bytes(self) -> int:
        """The bytes of the state region at the start of the arena, without states on the host."""
        return self._total("state")

    @cached_property
    def workspace_bytes(self) -> int:
        """The bytes of the largest workspace that a node has."""
        return max((buffer.bytes for buffer in self.workspaces.values()), default=0)

    @cached_property
    def bytes_by_kind(self) -> dict[Kind, int]:
        """The total bytes of all buffers of each kind, as if no two shared bytes.

        For workspaces it is the size of the largest one.
        """
        kinds: tuple[Kind, ...] = ("state", "input", "feature map", "gradient", "mirror")
        totals = {kind: self._total(kind) for kind in kinds}
        there = {buffer.kind for buffer in self.buffers}
        rare = {kind: self._total(kind) for kind in RARE if kind in there}
        return {**totals, "workspace": self.workspace_bytes, **rare}

    def _total(self, kind: Kind) -> int:
        sizes = (b.bytes for b in self.buffers if b.kind == kind)
        return sum(align(size, self.alignment) for size in sizes)

    @cached_property
    def live_profile(self) -> tuple[int, ...]:
        """The live bytes of the arena at each step, rounded up to the alignment.

        There is one entry per node, and at least one.
        """
        steps = max(1, len(self.graph.nodes))
        change = [0] * (steps + 1)
        for buffer in self.arena_buffers:
            size = align(buffer.bytes, self.alignment)
            change[buffer.lifetime.first] += size
            change[self.lifetime_end(buffer)] -= size
        live, profile = 0, []
        for step in range(steps):
            live += change[step]
            profile.append(live)
        return tuple(profile)

    def lifetime_end(self, buffer: Buffer) -> int:
        """Return the step from which the bytes of a buffer are free, at most the number of steps.

        States, slots, and outputs until they are copied, are live beyond the last step.
        """
        return min(buffer.lifetime.last, max(1, len(self.graph.nodes)))

    @cached_property
    def live_bytes(self) -> int:
        """The peak live bytes, a lower bound on the arena of any layout of these buffers."""
        return max(self.live_profile)

    @cached_property
    def peak_step(self) -> int:
        """The first step with `live_bytes` live bytes."""
        return self.live_profile.index(self.live_bytes)

    def live_at(self, step: int) -> list[Buffer]:
        """Return the buffers in the arena that are live at a step, largest first."""
        alive = [b for b in self.arena_buffers if b.lifetime.first <= step < b.lifetime.last]
        return sorted(alive, key=lambda buffer: (-buffer.bytes, buffer.index))

    @cached_property
    def residents(self) -> dict[int, list[Value]]:
        """Buffer index → the values in that buffer, in order of appearance."""
        residents: dict[int, list[Value]] = {}
        for value, placement in self.placements.items():
            residents.setdefault(placement.buffer, []).append(value)
        return residents

    def saved(self) -> list[Value]:
        """Return the values saved for backward: inputs and forward values that backward nodes read.

        Backward nodes are gradient and recomputed nodes. States are not listed.
        """
        kept: dict[Value, None] = {}
        for node in self.graph.nodes:
            if node.phase in ("gradient", "mirror"):
                for value in node.inputs:
                    if isinstance(value, State) or (
                        value.node is not None and value.node.phase != "forward"
                    ):
                        continue
                    kept[value] = None
        return list(kept)

    def summary(self, model: str) -> dict[str, Any]:
        """Return a JSON object with the figures of the plan.

        Its keys are part of the public interface.
        """
        forward = sum(node.phase == "forward" for node in self.graph.nodes)
        return {
            "model": model,
            "recompute": self.recompute,
            "allocate": self.allocate,
            "nodes": len(self.graph.nodes),
            "forward_nodes": forward,
            "arena_bytes": self.arena_bytes,
            "state_bytes": self.state_bytes,
            "workspace_bytes": self.workspace_bytes,
            "feature_map_bytes": self.feature_map_bytes,
            "live_bytes": self.live_bytes,
            "bound_bytes": self.bound_bytes,
            "recomputed_nodes": self.recomputation.nodes,
            "extra_flops_fraction": self.recomputation.extra_flops_fraction,
            "extra_time_fraction": self.recomputation.extra_time_fraction,
            "planning_seconds": self.planning_seconds,
            "extra_time_bound": self.certificate.extra_time_bound if self.certificate else None,
            "settings": dict(self.settings),
            "device": self.device.name,
            "alignment": self.alignment,
            "goal": self.certificate.goal if self.certificate else None,
            "peak_node": {"number": self.peak_step, "name": self._peak_name()},
            "bytes_by_kind": dict(self.bytes_by_kind),
            "arena_by_strategy": dict(self.strategy_bytes),
            **({"host_bytes": self.host_bytes} if self.host_bytes else {}),
            **({"host_state_bytes": self.host_state_bytes} if self.host_state_bytes else {}),
            **self._streams_summary(),
        }

    def _streams_summary(self) -> dict[str, Any]:
        """Return the summary's entries for plans with streams."""
        if self.streams is None:
            return {}
        return {
            "streams": self.streams.count,
            "step_seconds": self.streams.seconds,
            "one_stream_seconds": self.streams.one_stream_seconds,
            "streams_frontier": [
                {"arena_bytes": choice.arena_bytes, "step_seconds": choice.seconds}
                for choice in self.streams.choices
            ],
        }

    def _peak_name(self) -> str | None:
        """Return scope and op of the node at the peak; None for a graph without nodes."""
        return self.graph.nodes[self.peak_step].label if self.graph.nodes else None

    def to_json(self) -> str:
        """Return the whole plan as JSON, as `graphc.save_plan` writes it; see docs/plan-file.md."""
        return written(self, "json")

    def __repr__(self) -> str:
        return f"<{self.allocate} plan of {len(self.graph.nodes)} nodes, {self.arena_bytes} bytes>"

    def __str__(self) -> str:
        """Return the peak, the bytes by kind and options that lower them, in at most 40 lines."""
        return written(self, "overview")

    def text(self) -> str:
        """Return the whole plan as text: every node, the summary and the peak."""
        return written(self, "text")

    def _repr_html_(self) -> str:
        """Return the display in a notebook: the summary, and a picture of the arena."""
        return written(self, "html")


def strided(placements: Mapping[Value, Placement]) -> dict[Value, tuple[int, ...]]:
    """Return the strides in bytes of placed values that are not contiguous and row-major."""
    found = {v: place.strides for v, place in placements.items() if place.strides is not None}
    return {v: strides for v, strides in found.items() if outer_axes(v.type, strides)}
