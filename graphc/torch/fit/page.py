"""HTML page of an eager step: torch's caching allocator over the ops of the second step.

Addresses are those of the replay of both steps without a limit of memory, so the page shows what
the allocator reserves and cannot use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from graphc.byte_sizes import format_bytes
from graphc.devices.device_memory import DeviceMemory
from graphc.torch.fit.allocator import Block, CachingAllocator
from graphc.torch.fit.eager import EagerPeak
from graphc.torch.fit.recorder import ACTIVATIONS, HEAD, STATES
from graphc.view.page import Limit, page_of
from graphc.view.page_model import HOWS, PHASES, Table

KIND_OF = {
    "parameters": "parameter", "buffers": "parameter", "inputs": "input", "gradients": "gradient",
    STATES: "optimizer", ACTIVATIONS: "activation", HEAD: "logits", "workspace": "workspace",
}  # fmt: skip
"""Kinds of the page for those of a recording."""

KINDS = tuple(dict.fromkeys(KIND_OF.values()))


@dataclass
class _Blocks:
    """Blocks of the allocator, with one list per property; those before the step come first."""

    end: int
    """The number of ops of the step."""
    keys: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    states: int = 0
    """The number of blocks that are live before the step."""
    reserved_bytes: int = 0

    @classmethod
    def of(cls, found: EagerPeak) -> _Blocks:
        """Return the blocks that are live during the second step."""
        count = len(found.recorder.kinds)
        made, allocator = cls(len(found.recorder.ops)), CachingAllocator()
        row_of: dict[int, int] = {}
        ops = [-1] * found.second + [*found.ops]
        for at, ((key, size), op) in enumerate(zip(found.trace, ops, strict=True)):
            if at == found.second:
                for live, block in allocator.live.items():
                    row_of[live] = made._add(live % count, block, 0)
                made.states = len(row_of)
            if size > 0:
                allocator.allocate(key, size)
                if at >= found.second:
                    row_of[key] = made._add(key % count, allocator.live[key], op)
            else:
                allocator.free(key)
                if key in row_of:
                    made.last[row_of[key]] = op + 1
        made.reserved_bytes = allocator.peaks.reserved_bytes
        return made

    def _add(self, key: int, block: Block, first: int) -> int:
        """Append a block that is live from an op on, and return its row."""
        self.keys.append(key)
        self.offset.append(block.address)
        self.bytes.append(block.size)
        self.first.append(first)
        self.last.append(self.end)
        return len(self.keys) - 1

    def live(self) -> list[int]:
        """Return the bytes of live blocks at each op."""
        changes = [0] * (self.end + 1)
        for size, first, last in zip(self.bytes, self.first, self.last, strict=True):
            changes[first] += size
            changes[last] -= size
        return list(accumulate(changes))[:-1]


def fit_page(
    title: str,
    found: EagerPeak,
    memory: DeviceMemory,
    kinds: Mapping[str, int],
    needed_bytes: int,
    notes: Sequence[str] = (),
) -> str:
    """Return the page of a recorded step; `kinds` are the bytes by kind at its peak."""
    return page_of([_model(found, memory, kinds, needed_bytes)], title, notes, 0, KINDS)


def _model(
    found: EagerPeak, memory: DeviceMemory, kinds: Mapping[str, int], needed_bytes: int
) -> dict[str, Any]:
    """Return the model for the page's script, in the format of `graphc.view.page_model`."""
    recorder, texts = found.recorder, Table[str]()
    ops = recorder.ops
    blocks = _Blocks.of(found)
    live = blocks.live()
    requested = sum(kinds.values())
    summary = [
        *kinds.items(),
        ("rounded up", max(live) - requested),
        ("peak", max(live)),
        ("reserved beside it", needed_bytes - max(live)),
        ("needed", needed_bytes),
    ]
    return {
        "label": "second step",
        "heading": "training step",
        "device": memory.name,
        "summary": [(name, format_bytes(size)) for name, size in summary if size],
        "arena_bytes": blocks.reserved_bytes,
        "live_bytes": max(live),
        "peak_step": live.index(max(live)),
        "alignment": 1,
        "live": live,
        "buffers": {
            "offset": blocks.offset,
            "bytes": blocks.bytes,
            "first": blocks.first,
            "last": blocks.last,
            "kind": [KINDS.index(KIND_OF[recorder.kinds[key]]) for key in blocks.keys],
            "turns": {},
        },
        "clock": "estimated by a roofline",
        "nodes": {
            "scope": [texts.number(op.scope.replace(".", "/")) for op in ops],
            "op": [texts.number(op.name) for op in ops],
            "phase": [PHASES.index(op.phase) for op in ops],
            "seconds": [float(f"{op.seconds:.4g}") for op in ops],
        },
        "exchanges": {"node": [], "begin": [], "seconds": [], "sent_bytes": []},
        "values": _values(found, blocks),
        "outputs": {},
        "lowering": [],
        "limit": Limit(memory.usable_bytes, memory.name)._asdict(),
        "texts": list(texts),
    }


def _values(found: EagerPeak, blocks: _Blocks) -> dict[str, Any]:
    """Return one value per block; which ops read it is not recorded."""
    recorder, types = found.recorder, Table[tuple[str, tuple[int, ...], str, int]]()
    count = len(blocks.keys)
    names, hows, nodes = [], [], []
    for row, (key, first) in enumerate(zip(blocks.keys, blocks.first, strict=True)):
        is_state = row < blocks.states
        name = recorder.names[key] if key < len(recorder.names) else f"{recorder.kinds[key]} {row}"
        names.append(f"@{name.replace('.', '/')}" if is_state else f"%{row}")
        hows.append(HOWS.index("state" if is_state else "new"))
        nodes.append(-1 if is_state else first)
    described = (
        (recorder.types[key] or f"{size:,} bytes", (), "", size)
        for key, size in zip(blocks.keys, blocks.bytes, strict=True)
    )
    return {
        "name": names,
        "type": [types.number(each) for each in described],
        "types": [list(each) for each in types],
        "buffer": list(range(count)),
        "offset": [0] * count,
        "strides": {},
        "how": hows,
        "over": [-1] * count,
        "node": nodes,
        "copy_of": [-1] * count,
        "reader_counts": [0] * count,
        "readers": [],
        "same": list(range(count)),
    }
