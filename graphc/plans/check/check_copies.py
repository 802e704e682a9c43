"""Checks of copies between device and host in a plan: memory, layout, arrivals.

This module belongs to the checker of plans and shares no code with the planners.

A copy runs at any time between the node that starts it and its arrival. Its source must be complete
when it starts and stay intact until the arrival, and its result must not be touched before. The
replay in `check_plan` covers both. It reads the source where the copy starts and, since the arrival
is one of its uses, where the copy ends. It writes the result where the copy starts and reads it at
the arrival. This module checks the rules that the replay needs:

- the graph has an arrival for each copy, which reads the source (`graphc.ir.host_copies`), and
  nothing else reads the result of the copy before it is done;
- values on the host are in host memory, and no others;
- a copy is one piece of bytes: source and result have the same strides;
- an arrival is in place, because no kernel runs for it.
"""

from __future__ import annotations

from graphc.errors import GraphError, PlanError
from graphc.ir.graph import Node, Value
from graphc.ir.host_copies import check_host_copies
from graphc.plans.check.check_places import PlacedValues
from graphc.plans.memory_plan import MemoryPlan


def check_copies(plan: MemoryPlan, places: PlacedValues) -> None:
    """Raise `PlanError`, naming the values, unless copies between device and host are correct."""
    copies = [node for node in plan.graph.nodes if node.host_copy is not None]
    if not copies and all(buffer.kind != "host" for buffer in plan.buffers):
        return
    try:
        check_host_copies(plan.graph)
    except GraphError as error:
        raise PlanError(str(error)) from None
    if plan.streams is not None:
        raise PlanError(
            "the plan has copies to the host and streams, which cannot be combined; plan without "
            "streams"
        )
    _check_memory(plan)
    _check_reads(plan)
    for node in copies:
        if node.op.copies_to:
            _check_strides(plan, places, node)
        elif places.layout(node.inputs[0]) != places.layout(node.output):
            names = [plan.graph.names[value] for value in (node.output, node.inputs[0])]
            raise PlanError(
                f"{names[0]} is the finished copy {names[1]}, but has other bytes or strides; no "
                "kernel moves it there",
                names,
            )


def _check_reads(plan: MemoryPlan) -> None:
    """Check that only the arrival of a copy reads the unfinished result."""
    for node in plan.graph.nodes:
        for position, value in enumerate(node.inputs):
            begun = value.node if value.node is not None and value.node.op.copies_to else None
            if begun is not None and (position or node.awaited is not begun):
                name = plan.graph.names[value]
                raise PlanError(f"{node.label} reads {name} before its copy is done", [name])


def _check_memory(plan: MemoryPlan) -> None:
    """Check that exactly the values on the host are in buffers of host memory."""
    for value, placement in plan.placements.items():
        if value.on_host != (plan.buffers[placement.buffer].kind == "host"):
            who = [plan.graph.names[value], f"buffer {placement.buffer}"]
            is_on, is_in = ("host", "the arena") if value.on_host else ("device", "host memory")
            raise PlanError(f"value {who[0]} is on the {is_on}, but {who[1]} is in {is_in}", who)


def _check_strides(plan: MemoryPlan, places: PlacedValues, node: Node) -> None:
    """Check that the source and the result of a copy have equal strides, without overlaps."""
    x, y = node.inputs[0], node.output
    (*_, given), (*_, found) = places.layout(x), places.layout(y)
    if given != found or 0 in given:
        names = [plan.graph.names[value] for value in (y, x)]
        raise PlanError(
            f"{names[0]} is a copy of {names[1]}, but {_shown(plan, y)} differ from "
            f"{_shown(plan, x)}, or elements overlap; a copy keeps strides",
            names,
        )


def _shown(plan: MemoryPlan, value: Value) -> str:
    strides = plan.placements[value].strides
    return f"the strides {'of a row-major value' if strides is None else strides}"
