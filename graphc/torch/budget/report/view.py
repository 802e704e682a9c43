"""HTML view of a torch plan: live ranges over the nodes of both graphs.

Torch's allocator chooses addresses when a step runs, so the page uses offsets of its own: resident
memory is at the bottom, and the rest is packed above it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from graphc.byte_sizes import exact_bytes
from graphc.devices.device import Device
from graphc.planner.pack import pack
from graphc.torch.budget.check.graphs import RANDOM_STATE, Content, Life, Moment, Replay
from graphc.torch.budget.host.host_memory import begin_in
from graphc.torch.budget.plan.steps import TorchSteps
from graphc.torch.budget.trace.held import Held
from graphc.torch.budget.trace.names import module_path
from graphc.torch.budget.trace.sources import Source
from graphc.view.page import Limit, page_of
from graphc.view.page_model import HOWS, PHASES, Table

KINDS = (
    "parameter", "input", "optimizer", "activation", "saved", "repeated", "gradient", "workspace",
    "random state",
)  # fmt: skip
"""Kinds of buffers.

``saved`` is a result of the forward pass after the forward/backward boundary, or a copy of one back
from host memory; ``repeated`` is a recomputed result.
"""

PACKING_EFFORT = 10**5
"""Effort limit of packing, in units of work; takes a fraction of a second."""


@dataclass(frozen=True)
class Shown:
    """Input of the page of a plan; `sources` describes those of the joint graph.

    With a `device`, costs are estimates for that profile.
    """

    torch_steps: TorchSteps
    replay: Replay
    held: Held
    sources: Mapping[fx.Node, Source]
    budget: int | None
    device: Device | None = None

    @property
    def costs(self) -> str:
        """A description of the costs of nodes."""
        if self.device is None:
            return "measured on this device"
        return f"estimated for {self.device.name} by a roofline, without workspaces"


def plan_page(shown: Shown, summary: list[tuple[str, str]]) -> str:
    """Return the page of one plan, with the summary beside the memory map."""
    return page_of([_Model(shown).json(summary)], "a step of torch", (), 0, KINDS)


@dataclass
class _Columns:
    """Buffers and values of the page, with one list per property."""

    bytes: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    turns: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    fixed: int = 0
    """Number of buffers resident before the step; they come first."""
    name: list[str] = field(default_factory=list)
    type: list[int] = field(default_factory=list)
    buffer: list[int] = field(default_factory=list)
    how: list[int] = field(default_factory=list)
    over: list[int] = field(default_factory=list)
    node: list[int] = field(default_factory=list)
    copy_of: list[int] = field(default_factory=list)
    readers: list[tuple[int, ...]] = field(default_factory=list)


class _Model:
    """The columns of a page, built from a replay."""

    def __init__(self, shown: Shown) -> None:
        self.shown, self.replay = shown, shown.replay
        self.end = len(self.replay.moments)
        self.originals = list(self._originals())
        self.columns = _Columns()
        self.types: Table[tuple[str, tuple[int, ...], str, int]] = Table()
        self.firsts: dict[tuple[fx.Node, int], int] = {}
        """Maps each result of a node of the joint graph to its first value."""
        self.outputs: dict[str, str] = {}
        self.phases = list(self._phases())
        self._add_sources()
        self.columns.fixed = len(self.columns.bytes)
        for life in self.replay.lives:
            self._add_life(life)
        for index, moment in enumerate(self.replay.moments):
            if moment.workspace:
                self._add_buffer(moment.workspace, index, index + 1, "workspace")

    def _originals(self) -> Iterator[fx.Node | None]:
        """Yield the planned node of each moment; copies of gradients are matched by tensor."""
        joint = self.shown.torch_steps.joint
        by_tensor = {id(node.meta.get("val")): node for node in joint.step_of}
        for moment in self.replay.moments:
            if moment.original is not None:
                yield joint.node_of[moment.original]
            elif _is_fetch(moment):
                yield None
            else:
                value = None if moment.node is None else moment.node.meta.get("val")
                yield None if value is None else by_tensor.get(id(value))

    def _phases(self) -> Iterator[str]:
        """Yield the phase of each moment; a later occurrence of a node is a recomputation."""
        seen: set[fx.Node | None] = {None}
        for index, original in enumerate(self.originals):
            is_repeat = original in seen and original is not None
            seen.add(original)
            if is_repeat:
                yield "mirror"
            else:
                yield "forward" if index <= self.replay.boundary else "gradient"

    def _add_sources(self) -> None:
        """Add parameters, buffers and arguments by name, then the bytes the graph does not read."""
        rest = {
            "parameter": self.shown.held.parameters + self.shown.held.buffers,
            "input": self.shown.held.inputs + self.shown.held.constants,
        }
        sources = (n for n in self.shown.torch_steps.joint.sources if n.op == "placeholder")
        seen: set[int] = set()
        for node, contents in zip(sources, self.replay.sources, strict=False):
            key = int(contents[0].tensor.untyped_storage()._cdata) if contents else -1
            if key in seen or not contents:
                continue
            seen.add(key)
            source = self.shown.sources[node]
            kind = "parameter" if source.kind in ("parameter", "buffer") else "input"
            size = min(rest[kind], source.bytes)
            rest[kind] -= size
            buffer = self._add_buffer(size, 0, self.end, kind)
            self._add_values(buffer, f"@{_path(source.name)}", contents)
        unread = {
            "other parameters and buffers": ("parameter", rest["parameter"]),
            "other arguments and constants": ("input", rest["input"]),
            "gradients of earlier steps": ("gradient", self.shown.held.gradients),
            "reserve": ("optimizer", self.shown.held.reserve),
            "arguments before padding": ("input", self.shown.held.unpadded),
            "library workspaces": ("workspace", self.shown.held.library_workspaces),
        }
        for name, (kind, size) in unread.items():
            if size:
                whole = Content(-1, torch.empty(size, dtype=torch.uint8, device="meta"), ())
                self._add_values(self._add_buffer(size, 0, self.end, kind), f"@{name}", (whole,))

    def _add_life(self, life: Life) -> None:
        kinds = [(content.moment, self._kind(content.moment, life)) for content in life.contents]
        boundary = self.replay.boundary
        is_saved = life.first < boundary < life.last - 1 and not life.is_held
        if is_saved and life.result != RANDOM_STATE:
            kinds.append((boundary, "saved"))
        (_, kind), *later = sorted(kinds, key=lambda entry: entry[0])
        buffer = self._add_buffer(life.bytes, life.first, life.last, kind)
        if later:
            self.columns.turns[buffer] = [(at, KINDS.index(each)) for at, each in later]
        moment = self.replay.moments[life.first]
        name = "tangent" if moment.node is None else moment.node.name
        ending = f".{life.result}" if life.result > 0 or moment.node is None else ""
        name = f"%{name}{'.state' if life.result == RANDOM_STATE else ending}"
        number = len(self.columns.name)
        self._add_values(buffer, name, life.contents)
        self._note_copy(self.originals[life.first], life.result, number)
        if life.is_held:
            self.outputs[self.columns.name[-1]] = self.columns.name[-1]

    def _note_copy(self, original: fx.Node | None, result: int, number: int) -> None:
        if original is None:
            return
        first = self.firsts.setdefault((original, result), number)
        if first != number:
            self.columns.copy_of[number] = first

    def _kind(self, index: int, life: Life) -> str:
        if life.result == RANDOM_STATE:
            return "random state"
        if index == self.replay.boundary:
            return "gradient"
        if _is_fetch(self.replay.moments[index]):
            return "saved"
        kinds = {"forward": "activation", "mirror": "repeated", "gradient": "gradient"}
        return kinds[self.phases[index]]

    def _add_buffer(self, size: int, first: int, last: int, kind: str) -> int:
        columns = self.columns
        columns.bytes.append(size)
        columns.first.append(first)
        columns.last.append(last)
        columns.kind.append(KINDS.index(kind))
        return len(columns.bytes) - 1

    def _add_values(self, buffer: int, name: str, contents: tuple[Content, ...]) -> None:
        """Add the successive values of a buffer; each one overwrites its predecessor."""
        columns = self.columns
        for number, content in enumerate(contents):
            dtype = str(content.tensor.dtype).removeprefix("torch.")
            shape = tuple(content.tensor.shape)
            size = content.tensor.numel() * content.tensor.element_size()
            described = (f"{dtype}{list(shape)}", shape, dtype, size)
            if number:
                written = self.replay.moments[content.moment].node
                name = f"%{written.name}" if written is not None else name
            columns.name.append(name)
            columns.type.append(self.types.number(described))
            columns.buffer.append(buffer)
            columns.over.append(len(columns.name) - 2 if number else -1)
            columns.how.append(HOWS.index(self._how(number, content)))
            columns.node.append(content.moment)
            columns.copy_of.append(-1)
            columns.readers.append(content.readers)

    def _how(self, number: int, content: Content) -> str:
        if content.moment < 0:
            return "state"
        return "over" if number else "new"

    def _offsets(self) -> tuple[list[int], int]:
        """Return the offsets of all buffers, and the total size."""
        columns = self.columns
        fixed = list(itertools.accumulate(columns.bytes[: columns.fixed], initial=0))
        there = [at for at in range(columns.fixed, len(columns.bytes)) if columns.bytes[at]]
        offsets = fixed[:-1] + [fixed[-1]] * (len(columns.bytes) - columns.fixed)
        if not there:
            return offsets, fixed[-1]
        packed = pack(
            [columns.first[at] for at in there],
            [columns.last[at] for at in there],
            [columns.bytes[at] for at in there],
            effort=PACKING_EFFORT,
        )
        for at, offset in zip(there, packed.offsets, strict=True):
            offsets[at] += int(offset)
        return offsets, fixed[-1] + int(packed.height)

    def json(self, summary: list[tuple[str, str]]) -> dict[str, Any]:
        """Return the model for the page's script, in the format of `graphc.view.page_model`."""
        columns, moments = self.columns, self.replay.moments
        offsets, height = self._offsets()
        live = [moment.bytes for moment in moments]
        texts = Table[str]()
        budget = self.shown.budget
        return {
            "label": "plan",
            "device": "torch",
            "summary": [*summary, ("packed for this page", exact_bytes(height))],
            "arena_bytes": height,
            "live_bytes": max(live),
            "peak_step": live.index(max(live)),
            "alignment": 1,
            "live": live,
            "buffers": {
                "offset": offsets,
                "bytes": columns.bytes,
                "first": columns.first,
                "last": columns.last,
                "kind": columns.kind,
                "turns": columns.turns,
            },
            "clock": self.shown.costs,
            "nodes": self._nodes(texts),
            "exchanges": {"node": [], "begin": [], "seconds": [], "sent_bytes": []},
            "values": self._values(),
            "outputs": self.outputs,
            "lowering": [],
            "limit": None if budget is None else Limit(budget, "budget")._asdict(),
            "texts": list(texts),
        }

    def _nodes(self, texts: Table[str]) -> dict[str, list[Any]]:
        originals, measured = self.originals, self.shown.torch_steps.measured
        names = list(map(_op, self.replay.moments, originals))
        scopes = [_path(module_path(node)) if node else "" for node in originals]
        seconds = [measured[node].seconds if node in measured else 0.0 for node in originals]
        return {
            "scope": [texts.number(scope) for scope in scopes],
            "op": [texts.number(name) for name in names],
            "phase": [PHASES.index(phase) for phase in self.phases],
            "seconds": [float(f"{each:.4g}") for each in seconds],
        }

    def _values(self) -> dict[str, Any]:
        columns = self.columns
        count = len(columns.name)
        return {
            "name": columns.name,
            "type": columns.type,
            "types": [list(each) for each in self.types],
            "buffer": columns.buffer,
            "offset": [0] * count,
            "strides": {},
            "how": columns.how,
            "over": columns.over,
            "node": columns.node,
            "copy_of": columns.copy_of,
            "reader_counts": [len(readers) for readers in columns.readers],
            "readers": list(itertools.chain.from_iterable(columns.readers)),
            "same": list(range(count)),
        }


def _path(name: str) -> str:
    """Convert a module path with dots into a scope of the page with slashes."""
    return name.replace(".", "/")


def _is_fetch(moment: Moment) -> bool:
    """Return whether a moment begins a copy from host memory."""
    return moment.node is not None and moment.node.target is begin_in


def _op(moment: Moment, original: fx.Node | None) -> str:
    if moment.node is None:
        return "boundary"
    if _is_fetch(moment):
        return "copy from the host"
    target = moment.node.target if original is None else original.target
    return getattr(getattr(target, "_schema", None), "name", str(target)).removeprefix("aten::")
