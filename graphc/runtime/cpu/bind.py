"""Binding of nodes to calls on arrays. A step is then a list of prebound calls.

Nodes with native kernels become rows of a table, which one call runs; see step_table.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.errors import GraphError, NonFiniteError
from graphc.ir.graph import Graph, Node, Value
from graphc.ir.op import Lane, Strided, is_16_bit
from graphc.ir.types import align
from graphc.plans.memory_plan import MemoryPlan
from graphc.runtime.arena import Arena
from graphc.runtime.cpu.copies import Immediate, Lanes
from graphc.runtime.cpu.native import Rows, native_rows
from graphc.runtime.cpu.side_by_side import side_by_side
from graphc.runtime.index_ranges import ComputedRange
from graphc.runtime.poison import POISON, Range, empty_at_start, freed_after
from graphc.runtime.ranks.lane import ALONE

Array = np.ndarray[Any, np.dtype[Any]]
Call = Callable[[], Any]


ONE_BY_ONE: Lane = Lanes(ALONE, Immediate())
"""The lane of nodes that run one by one, without other ranks."""

BUFFER_ELEMENTS = 512
"""The buffer size of NumPy's ufuncs, which buffer operands that are broadcast. This many elements
keep temporary memory far below that of any array, without slowing down long rows."""


@contextmanager
def numpy_settings() -> Iterator[None]:
    """Run kernels without floating-point warnings, and with small ufunc buffers."""
    with np.errstate(all="ignore"):  # restores the buffer size, too
        np.setbufsize(BUFFER_ELEMENTS)
        yield


class Recording:
    """The list of calls that a kernel records for a step.

    `scratch` has the arrays for the workspace tensors of its node.
    """

    def __init__(self, scratch: tuple[Array, ...], lane: Lane = ONE_BY_ONE) -> None:
        self.scratch, self.lane = scratch, lane
        self.calls: list[Call] = []

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        bound = functools.partial(function, *args, **kwargs) if args or kwargs else function
        self.calls.append(bound)


def bind_node(
    node: Node,
    arrays: Mapping[Value, Array],
    workspace: Sequence[Array],
    strided: Strided,
    lane: Lane = ONE_BY_ONE,
) -> list[Call]:
    """Return the calls of one node on the arrays of its values.

    `workspace` has one array per workspace tensor. Collectives and copies run on `lane`.
    """
    inputs = node.op.prepared(node, strided)
    outputs = [v for v in node.outputs if node.op.widens(node) and is_16_bit(v)]
    copies = dict(zip((*inputs, *outputs), workspace, strict=False))
    loads = [functools.partial(np.copyto, copies[value], arrays[value]) for value in inputs]
    stores = [
        functools.partial(np.copyto, arrays[value], copies[value], casting="same_kind")
        for value in outputs
    ]
    operands = {value: arrays[value] for value in node.inputs + node.outputs} | copies
    scratch = tuple(workspace[len(copies) :])
    return [*loads, *_record(node, operands, scratch, lane), *stores]


ADVICE = (
    "it runs once, when a program is bound: pass each computation of a step to `record`, such as "
    "record(np.copyto, y, x)"
)


def _record(
    node: Node, arrays: Mapping[Value, Array], scratch: tuple[Array, ...], lane: Lane
) -> list[Call]:
    recording = Recording(scratch, lane)
    outputs: dict[str, Any] = {
        name: [arrays[v] for v in value] if isinstance(value, tuple) else arrays[value]
        for name, value in node.named_outputs().items()
    }
    kernel = getattr(node.op, "kernel")  # noqa: B009 - declared by subclasses
    inputs = [arrays[value] for value in node.inputs]
    written = [arrays[value] for value in node.outputs if value.type.elements]
    with _unwritten(node, written):
        kernel(recording, node, *inputs, **outputs)
    in_place = any(np.may_share_memory(x, y) for x in inputs for y in written)
    if written and not recording.calls and not in_place:
        raise GraphError(f"the kernel of {node.label} records no call; {ADVICE}")
    return recording.calls


@contextmanager
def _unwritten(node: Node, outputs: Sequence[Array]) -> Iterator[None]:
    """Raise `GraphError` if the kernel of a node writes its outputs while it is bound.

    A kernel may only record calls for later. To detect writes, the first elements of each output
    are set to distinct numbers, compared afterwards, and restored.
    """
    corners = [_corner(y) for y in outputs]
    before = [corner.copy() for corner in corners]
    for corner in corners:
        corner[...] = np.arange(1, corner.size + 1).reshape(corner.shape)
    marks = [corner.copy() for corner in corners]
    yield
    unchanged = all(map(np.array_equal, corners, marks))
    for corner, numbers in zip(corners, before, strict=True):
        corner[...] = numbers
    if not unchanged:
        raise GraphError(f"the kernel of {node.label} computes while it is bound; {ADVICE}")


@dataclass(slots=True)
class StepCalls:
    """The calls of a step in order, split before the first update of a state.

    `reading` has the calls before that update, `updating` all others. `checks_late` is True if
    `updating` contains a check, which may fail the step.
    """

    reading: list[Call]
    updating: list[Call]
    checks_late: bool


def bind(
    plan: MemoryPlan,
    arena: Arena,
    poison: bool,
    check_finite: bool,
    computed: Mapping[Node, Sequence[ComputedRange]],
    threads: int | None = None,
    lane: Lane = ONE_BY_ONE,
) -> tuple[dict[Value, Array], StepCalls]:
    """Return views of all values in the arena, and the calls of a step.

    `computed` has the ranges in which computed integers must be when a node uses them as indices.
    `threads` is the number of threads of native kernels. With poisoning or any check, including
    range checks of integers, nodes run in the order of the plan instead of on streams.
    """
    arrays = arrays_of(plan, arena)
    run = node_calls(plan, arena, arrays, threads, lane)
    fill = functools.partial(_poisoned, arena)
    freed = freed_after(plan) if poison else {}
    reading: dict[Node, list[Call]] = {}
    updating: dict[Node, list[Call]] = {}
    calls, checks_late = reading, False
    for step, node in enumerate(plan.graph.nodes):
        if node.op.has_effect:
            calls = updating
        checks: list[Call] = [
            functools.partial(range.check, plan.graph.names[range.value], arrays[range.value])
            for range in computed.get(node, ())
        ]
        finite: list[Call] = [
            functools.partial(_require_finite, node, plan.graph, value, arrays[value])
            for value in (node.outputs if check_finite and not node.op.begins else ())
        ]
        checks_late |= calls is updating and bool(checks or finite)
        calls[node] = [*checks, *run[node], *finite, *map(fill, freed.get(step, ()))]
    # A check runs before the first consumer in the order of the plan, which streams do not keep.
    in_order = poison or check_finite or bool(computed) or plan.streams is None
    begin = [fill(span) for span in empty_at_start(plan)] if poison else []
    first, rest = (_arranged(plan, part, in_order) for part in (reading, updating))
    return arrays, StepCalls([*begin, *first], rest, checks_late)


def _arranged(plan: MemoryPlan, calls: Mapping[Node, list[Call]], in_order: bool) -> list[Call]:
    """Return the calls of some nodes, in sequence or as the plan's stream schedule allows."""
    if in_order or plan.streams is None:
        return joined([call for own in calls.values() for call in own])
    return joined(side_by_side(calls, plan.graph.position, plan.streams.slots))


def node_calls(
    plan: MemoryPlan,
    arena: Arena,
    arrays: Mapping[Value, Array],
    threads: int | None,
    lane: Lane = ONE_BY_ONE,
) -> dict[Node, list[Call]]:
    """Return the calls of each node, native if possible; none if all its outputs are views."""
    rows: Mapping[Node, Rows] = {}
    if plan.device.kernels == "native":
        rows = native_rows(plan, arena, threads)
    return {
        node: [rows[node]] if node in rows else numpy_calls(node, plan, arena, arrays, lane)
        for node in plan.graph.nodes
    }


def joined(calls: Sequence[Call]) -> list[Call]:
    """Merge calls that run consecutive rows of a table into one call."""
    found: list[Call] = []
    for call in calls:
        last = found[-1] if found else None
        if isinstance(call, Rows) and isinstance(last, Rows) and last.end == call.first:
            found[-1] = Rows(call.table, last.first, call.end)
        else:
            found.append(call)
    return found


def arrays_of(plan: MemoryPlan, arena: Arena) -> dict[Value, Array]:
    """Return views of all values in the arena."""
    return {value: arena.array(value) for value in plan.placements}


def numpy_calls(
    node: Node,
    plan: MemoryPlan,
    arena: Arena,
    arrays: Mapping[Value, Array],
    lane: Lane = ONE_BY_ONE,
) -> list[Call]:
    """Return the NumPy calls of one node; none if all its outputs are views."""
    if all(plan.placements[value].how == "view" for value in node.outputs):
        return []
    workspace, copies = _workspace(plan, arena, node), plan.target.copies(node, plan.strided)
    pieces = {
        value: np.lib.stride_tricks.as_strided(
            scratch, strides=plan.target.copied_strides(node, value, plan.strided)
        )
        for value, scratch in zip(copies, workspace, strict=False)
    }
    operands = {**arrays, **pieces}
    rest = {value: strides for value, strides in plan.strided.items() if value not in copies}
    calls = [functools.partial(np.copyto, operands[value], arrays[value]) for value in copies]
    own = len(node.op.workspace(node, plan.device, rest))  # followed by workspace for libraries
    return [*calls, *bind_node(node, operands, workspace[len(copies) :][:own], rest, lane)]


def _corner(array: Array) -> Array:
    """Return a view of the first elements, at most two along each axis."""
    index: Any = (..., *(slice(2),) * array.ndim)
    corner: Array = array[index]
    return corner


def _workspace(plan: MemoryPlan, arena: Arena, node: Node) -> list[Array]:
    if node not in plan.workspaces:
        return []
    offset = plan.workspaces[node].offset
    arrays = []
    for type in plan.target.workspace(node, plan.strided):
        arrays.append(arena.view(type, offset))
        offset += align(type.bytes, plan.alignment)
    return arrays


def _poisoned(arena: Arena, span: Range) -> Call:
    return functools.partial(arena.free(*span).fill, POISON)


def _require_finite(node: Node, graph: Graph, value: Value, array: Array) -> None:
    if array.dtype.kind not in "biu" and not np.isfinite(array.astype(np.float64)).all():
        raise NonFiniteError(
            f"{graph.names[value]} {value.type}, computed by {node.label}, contains NaN or infinity"
        )
