"""A plan as a PyTorch memory snapshot, for the viewer at pytorch.org/memory_viz.

The format is a pickled dictionary of plain lists, numbers and strings;
`torch.cuda.memory._snapshot` documents it. A plan becomes one segment, the arena, and a trace of
events. At each node, frees precede allocations. A frame's name is a value, its file is the node's
scope and op, and its line is the node's index. The format has an order of events but no times. It
cannot represent values that share bytes. A buffer is therefore one block per span of one kind,
named by its first value in that span.
"""

from __future__ import annotations

import pickle
from typing import Any

from graphc.plans.memory_plan import Buffer, MemoryPlan
from graphc.plans.names import Span, born, buffer_name, origin, spans
from graphc.view.page_model import LASTING, aligned_bytes

PROTOCOL = 4
"""The newest pickle protocol that the viewer can read."""

Event = dict[str, Any]

Block = tuple[Buffer, Span]
"""A buffer during one span, in which its kind is constant."""


def snapshot(plan: MemoryPlan) -> bytes:
    """Return the pickled snapshot of a step of the plan."""
    return pickle.dumps(snapshot_object(plan), protocol=PROTOCOL)


def snapshot_object(plan: MemoryPlan) -> dict[str, Any]:
    """Return the snapshot before pickling: one device with one segment, and its events."""
    used = [buffer for buffer in plan.arena_buffers if buffer.bytes]
    steps = len(plan.live_profile)
    begins: list[list[Block]] = [[] for _ in range(steps + 1)]
    ends: list[list[Block]] = [[] for _ in range(steps + 1)]
    for buffer in used:
        for span in spans(plan, buffer):
            begins[span.first].append((buffer, span))
            if buffer.kind not in LASTING:
                ends[span.last].append((buffer, span))
    events: list[Event] = []
    for begun, ended in zip(begins, ends, strict=True):
        for block in ended:
            events.append(_event(plan, "free_requested", block))
            events.append(_event(plan, "free_completed", block))
        events += [_event(plan, "alloc", block) for block in begun]
    # If events have categories, the viewer fails unless one of them is "unknown".
    events.append({"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "frames": [],
                   "category": "unknown"})  # fmt: skip
    return {"segments": [_segment(plan)], "device_traces": [events]}


def _event(plan: MemoryPlan, action: str, block: Block) -> Event:
    buffer, span = block
    return {
        "action": action,
        "addr": buffer.offset,
        "size": aligned_bytes(plan, buffer),
        "stream": 0,
        "frames": _frames(plan, buffer, span),
        "category": span.kind,
    }


def _frames(plan: MemoryPlan, buffer: Buffer, span: Span) -> list[dict[str, Any]]:
    """Return a stack of frames that names the values written to a buffer during a span.

    The first value is the innermost frame.
    """
    step = buffer.lifetime.first
    residents = plan.residents.get(buffer.index, [])
    values = [v for v in residents if span.first <= max(step, born(plan, v)) < span.last]
    if buffer.kind == "slot":
        return [{"name": buffer_name(plan, buffer, step), "filename": "slot", "line": 0}]
    if not residents:
        return [{"name": "workspace", "filename": plan.graph.nodes[step].label, "line": step}]
    return [
        {
            "name": f"{plan.graph.names[value]} {value.type}",
            "filename": origin(value) or span.kind,
            "line": plan.graph.position[value.node] if value.node is not None else 0,
        }
        for value in values
    ]


def _segment(plan: MemoryPlan) -> dict[str, Any]:
    """Return the arena as a segment after the step, when only states and slots are live."""
    blocks: list[dict[str, Any]] = []
    end = 0
    lasting = (b for b in plan.buffers if b.kind in LASTING and b.bytes)
    for buffer in sorted(lasting, key=lambda buffer: buffer.offset):
        if buffer.offset > end:
            blocks.append(_free_block(end, buffer.offset))
        size = aligned_bytes(plan, buffer)
        blocks.append(
            {
                "address": buffer.offset,
                "size": size,
                "requested_size": buffer.bytes,
                "state": "active_allocated",
                "frames": _frames(plan, buffer, spans(plan, buffer)[0]),
            }
        )
        end = buffer.offset + size
    if end < plan.arena_bytes:
        blocks.append(_free_block(end, plan.arena_bytes))
    in_use = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    return {
        "device": 0,
        "address": 0,
        "total_size": plan.arena_bytes,
        "allocated_size": in_use,
        "active_size": in_use,
        "requested_size": sum(block["requested_size"] for block in blocks),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def _free_block(begin: int, end: int) -> dict[str, Any]:
    return {"address": begin, "size": end - begin, "requested_size": 0, "state": "inactive",
            "frames": []}  # fmt: skip
