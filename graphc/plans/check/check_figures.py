"""Recomputes the figures stated in a plan from its layout and its graph.

`check_plan` proves that a step corrupts nothing. This module checks that the stated lifetimes,
kinds, origins, strides and sizes are correct. It shares no code with the planners.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from graphc.errors import PlanError
from graphc.ir.graph import Graph, State, Value
from graphc.ir.types import Layout, align, contiguous_strides, span_bytes
from graphc.layouts import layouts
from graphc.plans.kinds import kind_of
from graphc.plans.memory_plan import Buffer, Lifetime, MemoryPlan, Placement
from graphc.plans.streams import Streams

CURE = "plan again, or correct the plan"

SLACK = 1 + 1e-9
"""Tolerance factor for rounding errors in sums of seconds."""


def check_figures(plan: MemoryPlan) -> None:
    """Raise `PlanError`, naming the values concerned, unless the plan's figures are right.

    Lifetimes, kinds, origins, strides and sizes must be exact. Figures that depend on a planner's
    choices or on measured times are checked against bounds: the bytes of feature maps, the arena
    under other strategies, proven bounds, and the cost of recomputation.
    """
    _check_buffers(plan)
    _check_origins(plan)
    _check_strides(plan)
    _check_sizes(plan)
    _check_recomputation(plan)
    if plan.streams is not None:
        _check_streams(plan, plan.streams)


def _stated(what: str, given: object, found: object, culprits: Sequence[str] = ()) -> None:
    if given != found:
        raise PlanError(
            f"the plan states {given} for {what}, but the correct value is {found}; {CURE}",
            culprits,
        )


def _check_buffers(plan: MemoryPlan) -> None:
    """Check lifetimes, kinds and sizes of buffers.

    A lifetime extends from the first write to the last read. A buffer has the kind of its first
    value, and ends at the last byte of its values. Inputs and states are written before the first
    step; outputs and states are read after the last step.
    """
    names, outputs = plan.graph.names, set(plan.graph.outputs.values())
    for buffer in plan.buffers:
        if buffer.kind in ("workspace", "slot"):
            continue
        values = plan.residents.get(buffer.index)
        if not values:
            raise PlanError(f"buffer {buffer.index} contains no value; {CURE}")
        who = [names[values[0]], f"buffer {buffer.index}"]
        where = f"of buffer {buffer.index}, which contains {who[0]}"
        _stated(f"the kind {where}", buffer.kind, kind_of(values[0]), who)
        spans = [_span(plan.graph, value, outputs) for value in values]
        whole = Lifetime(min(s.first for s in spans), max(s.last for s in spans))
        _stated(f"the lifetime {where}", buffer.lifetime, whole, who)
        # Freed bytes are poisoned on request, so a buffer must not extend beyond its values.
        filled = max(_end(value, plan.placements[value]) for value in values)
        _stated(f"the size {where}", buffer.bytes, filled, who)
    used = {buffer.index for buffer in plan.workspaces.values()}
    for buffer in plan.buffers:
        if buffer.kind == "workspace" and buffer.index not in used:
            raise PlanError(
                f"buffer {buffer.index} of the kind workspace belongs to no node; {CURE}"
            )
    for value, placement in plan.placements.items():
        kind = plan.buffers[placement.buffer].kind
        if kind in ("workspace", "slot"):
            who = [names[value], f"buffer {placement.buffer}"]
            raise PlanError(f"value {who[0]} is placed in {who[1]} of the kind {kind}; {CURE}", who)
    _check_slots(plan)


def _check_slots(plan: MemoryPlan) -> None:
    """Check that each input has a slot of its own, and each output too if no state changes.

    A plan may also have no slots at all.
    """
    buffers = [buffer for buffer in plan.buffers if buffer.kind == "slot"]
    _stated("the buffers of slots", [slot.buffer for slot in plan.slots], buffers)
    if not plan.slots:
        return
    outputs = () if plan.graph.effects else dict.fromkeys(plan.graph.outputs.values())
    expected = [*((v, "in") for v in plan.graph.inputs), *((v, "out") for v in outputs)]
    _stated("the values with slots", [(s.value, s.way) for s in plan.slots], expected)
    for slot in plan.slots:
        name, placement = plan.graph.names[slot.value], plan.placements[slot.value]
        size = _end(slot.value, placement) - placement.offset
        _stated(f"the size of the slot of {name}", slot.buffer.bytes, size, [name])
        whole = Lifetime(0, len(plan.graph.nodes) + 1)
        _stated(f"the lifetime of the slot of {name}", slot.buffer.lifetime, whole, [name])


def _span(graph: Graph, value: Value, outputs: set[Value]) -> Lifetime:
    """Return the lifetime of a value: from the step that writes it to its last use."""
    end = len(graph.nodes) + 1
    if isinstance(value, State):
        return Lifetime(0, end)
    born = 0 if value.node is None else graph.position[value.node]
    if value in outputs:
        return Lifetime(born, end)
    return Lifetime(born, max([born, *graph.uses[value][-1:]]) + 1)


def _end(value: Value, placement: Placement) -> int:
    """Return the end of a value's last element, in bytes from the start of its buffer."""
    strides = placement.strides or contiguous_strides(value.type)
    return placement.offset + span_bytes(value.type, Layout(placement.offset, strides))


def _check_origins(plan: MemoryPlan) -> None:
    """Check the stated origin of each value's bytes, and the stated value that it overwrites."""
    recycled = _recycled(plan.buffers)
    for value, placement in plan.placements.items():
        name = plan.graph.names[value]
        fresh = "reuse" if placement.buffer in recycled else "new"
        if isinstance(value, State):
            expected, over = "state", None
        elif value.node is None:
            expected, over = fresh, None
        else:
            expected, over = _origin(plan, value, fresh)
        _stated(f"the origin of {name}", placement.how, expected, [name])
        stated = None if placement.over is None else plan.graph.names[placement.over]
        found = None if over is None else plan.graph.names[over]
        _stated(f"the value that {name} overwrites", stated, found, [name])


def _check_strides(plan: MemoryPlan) -> None:
    """Check the strides of values that are neither views nor parts of concatenations.

    Strides determine the order of sums, and so the bits of results. `check_plan` checks views and
    parts.
    """
    expected = layouts(plan.graph, plan.target)
    for value, placement in plan.placements.items():
        if placement.how in ("view", "part"):
            continue
        rows = contiguous_strides(value.type)
        has, right = placement.strides or rows, expected.get(value) or rows
        if any(n > 1 and a != b for n, a, b in zip(value.shape, has, right, strict=True)):
            name = plan.graph.names[value]
            _stated(f"the strides of {name}", has, right, [name])


def _origin(plan: MemoryPlan, value: Value, fresh: str) -> tuple[str, Value | None]:
    """Return the origin of a node output's bytes, and the value it overwrites, views or updates.

    `fresh` is the origin to return for bytes of its own: ``new`` or ``reuse``.
    """
    node = value.producer
    placement = plan.placements[value]
    if placement.how == "view":  # `check_plan` has compared the two
        return "view", node.viewed
    if value in node.replaced:
        over = node.replaced[value]
        return ("state" if over.on_host or isinstance(over, State) else "over"), over
    wholes = _wholes(plan, value) if placement.how == "part" else []
    if wholes:
        return "part", placement.over if placement.over in wholes else wholes[0]
    if (
        node.op.gathers is not None
    ):  # operands are parts of the output, which does not overwrite them
        return fresh, None
    under = [v for v in node.inputs if plan.placements[v].buffer == placement.buffer]
    if under:
        return "over", placement.over if placement.over in under else under[0]
    return fresh, None


def _wholes(plan: MemoryPlan, value: Value) -> list[Value]:
    """Return the concatenations that contain a value, or a view of it, and are in its buffer."""
    buffer, wholes, pending = plan.placements[value].buffer, [], [value]
    while pending:
        part = pending.pop()
        for step in plan.graph.uses[part]:
            node = plan.graph.nodes[step]
            if plan.placements[node.outputs[0]].how == "view":
                pending += node.outputs
            elif node.op.gathers is not None and plan.placements[node.output].buffer == buffer:
                wholes.append(node.output)
    return wholes


def _recycled(buffers: Sequence[Buffer]) -> set[int]:
    """Return the indices of buffers on bytes that an earlier buffer has used.

    Buffers are ordered by first step, then by index.
    """
    edges = {edge for b in buffers for edge in (b.offset, b.offset + b.bytes)}
    cell = {edge: index for index, edge in enumerate(sorted(edges))}
    touched = np.zeros(len(cell), bool)
    found = set()
    for buffer in sorted(buffers, key=lambda b: (b.lifetime.first, b.index)):
        cells = touched[cell[buffer.offset] : cell[buffer.offset + buffer.bytes]]
        if cells.any():
            found.add(buffer.index)
        cells[:] = True
    return found


def _check_sizes(plan: MemoryPlan) -> None:
    """Check the bytes of arena and workspaces exactly, and other sizes against bounds."""
    for what, stated, kept, start in (
        ("the arena", plan.arena_bytes, plan.arena_buffers, 0),
        ("host memory", plan.host_bytes, _on_host(plan), plan.host_start),
    ):
        ends = (b.offset + align(b.bytes, plan.alignment) - start for b in kept)
        _stated(f"the size of {what}", stated, max(ends, default=0))
    for node, buffer in plan.workspaces.items():
        types = plan.target.workspace(node, plan.strided)
        needed = sum(align(type.bytes, plan.alignment) for type in types)
        _stated(f"the workspace of {node.label}", buffer.bytes, needed, [node.label])
    sizes = plan.strategy_bytes
    if plan.streams is None:
        _stated(f"the arena with {plan.allocate!r}", sizes[plan.allocate], plan.arena_bytes)
    for name, size in sizes.items():
        if size < plan.state_bytes:
            raise PlanError(
                f"the plan states {size} bytes for the arena with {name!r}, below the "
                f"{plan.state_bytes} bytes of the states; {CURE}"
            )
    maps = _feature_maps(plan)
    total = sum(align(buffer.bytes, plan.alignment) for buffer in maps)
    least = total if plan.allocate in ("none", "inplace") else _most_live(plan, maps)
    if not least <= plan.feature_map_bytes <= total:
        raise PlanError(
            f"the plan states {plan.feature_map_bytes} bytes of feature maps, but the correct "
            f"value is between {least} and {total}; {CURE}"
        )
    if plan.bound_bytes is not None and plan.bound_bytes > plan.live_bytes:
        raise PlanError(
            f"the plan states a proven bound of {plan.bound_bytes} bytes, above the "
            f"{plan.live_bytes} bytes that it needs; {CURE}"
        )


def _on_host(plan: MemoryPlan) -> list[Buffer]:
    """Return the buffers in host memory."""
    return [buffer for buffer in plan.buffers if buffer.kind == "host"]


def _feature_maps(plan: MemoryPlan) -> list[Buffer]:
    """Return the buffers whose bytes count as feature maps in the paper's measure."""
    apart = {*plan.graph.outputs.values(), *plan.graph.sources}
    apart |= {value for node in plan.graph.effects for value in node.inputs}
    excluded = {plan.placements[value].buffer for value in apart}
    others = ("workspace", "slot", "gathered", "host")
    return [b for b in plan.buffers if b.kind not in others and b.index not in excluded]


def _most_live(plan: MemoryPlan, buffers: Sequence[Buffer]) -> int:
    change = np.zeros(len(plan.graph.nodes) + 2, np.int64)
    for buffer in buffers:
        size = align(buffer.bytes, plan.alignment)
        change[buffer.lifetime.first] += size
        change[buffer.lifetime.last] -= size
    return int(change.cumsum().max())


def _check_streams(plan: MemoryPlan, streams: Streams) -> None:
    """Check the stated stream choices and seconds.

    The choices must be a Pareto frontier that contains the plan itself, and the speedup must be at
    most the number of streams.
    """
    pairs = [(choice.arena_bytes, choice.seconds) for choice in streams.choices]
    own = plan.arena_bytes, streams.seconds
    if own not in pairs or any(b[0] <= a[0] or b[1] >= a[1] for a, b in itertools.pairwise(pairs)):
        raise PlanError(
            f"the plan states the stream choices {pairs}; they must have rising bytes and falling "
            f"seconds, and include the plan's own {own}; {CURE}"
        )
    most = streams.count * streams.seconds
    if not streams.seconds <= streams.one_stream_seconds * SLACK <= most * SLACK**2:
        raise PlanError(
            f"the plan states {streams.seconds} s for a step on {streams.count} streams and "
            f"{streams.one_stream_seconds} s on one stream, a larger speedup than possible; {CURE}"
        )
    if plan.settings.get("streams", streams.count) != streams.count:
        _stated("the number of streams", plan.settings["streams"], streams.count)


def _check_recomputation(plan: MemoryPlan) -> None:
    stated = plan.recomputation
    copies = sum(node.phase == "mirror" for node in plan.graph.nodes)
    _stated("the number of recomputed nodes", stated.nodes, copies)
    if not copies:
        _stated("the extra flops of recomputation", stated.extra_flops_fraction, 0.0)
        _stated("the extra time of recomputation", stated.extra_time_fraction, 0.0)
