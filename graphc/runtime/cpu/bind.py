"""Kernels become prebound calls on arrays; a step is then a plain list of calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from graphc.errors import NonFiniteError
from graphc.ir.device import CPU, Device
from graphc.ir.graph import Graph, Node, Value
from graphc.ir.op import is_16_bit
from graphc.ir.plan import MemoryPlan, align
from graphc.ir.types import Layout, TensorType
from graphc.runtime.arena import Arena, aligned_bytes

Array = np.ndarray[Any, np.dtype[Any]]
Call = Callable[[], Any]


BUFFER_ELEMENTS = 512
"""NumPy's ufuncs buffer operands that are broadcast; this many elements keep a step's temporary
bytes far under those of any array, at no loss of speed on long rows."""


@contextmanager
def numpy_settings() -> Iterator[None]:
    """How kernels run: silent about infinities, with small ufunc buffers."""
    with np.errstate(all="ignore"):  # restores the buffer size, too
        np.setbufsize(BUFFER_ELEMENTS)
        yield


class Recording:
    """Collects what a kernel records; `scratch` is its part of the workspace."""

    def __init__(self, scratch: tuple[Array, ...]) -> None:
        self.scratch = scratch
        self.calls: list[Call] = []

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        bound = functools.partial(function, *args, **kwargs) if args or kwargs else function
        self.calls.append(bound)


def bind_node(
    node: Node,
    arrays: Mapping[Value, Array],
    workspace: Sequence[Array],
    strided: Container[Value],
) -> list[Call]:
    """The calls of one node on the arrays of its values, with one array a workspace tensor."""
    inputs = node.op.prepared(node, strided)
    outputs = [v for v in node.outputs if node.op.widens(node) and is_16_bit(v)]
    copies = dict(zip((*inputs, *outputs), workspace, strict=False))
    loads = [functools.partial(np.copyto, copies[value], arrays[value]) for value in inputs]
    stores = [
        functools.partial(np.copyto, arrays[value], copies[value], casting="same_kind")
        for value in outputs
    ]
    operands = {value: arrays[value] for value in node.inputs + node.outputs} | copies
    return [*loads, *_record(node, operands, tuple(workspace[len(copies) :])), *stores]


def _record(node: Node, arrays: Mapping[Value, Array], scratch: tuple[Array, ...]) -> list[Call]:
    recording = Recording(scratch)
    outputs: dict[str, Any] = {
        name: [arrays[v] for v in value] if isinstance(value, tuple) else arrays[value]
        for name, value in node.named_outputs().items()
    }
    kernel = getattr(node.op, "kernel")  # noqa: B009 - declared by subclasses
    kernel(recording, node, *(arrays[value] for value in node.inputs), **outputs)
    return recording.calls


def bind(
    plan: MemoryPlan, arena: Arena, poison: bool, check_finite: bool
) -> tuple[dict[Value, Array], list[Call]]:
    """Views of all values in the arena, and the calls of a step in order."""
    arrays = {
        value: arena.view(value.type, plan.address(value), placement.strides)
        for value, placement in plan.placements.items()
    }
    calls: list[Call] = _poison_at_start(plan, arena) if poison else []
    freed = _freed_after(plan) if poison else {}
    for step, node in enumerate(plan.graph.nodes):
        if not all(plan.placements[value].how == "view" for value in node.outputs):
            calls += bind_node(node, arrays, _workspace(plan, arena, node), plan.strided)
        if check_finite:
            calls += [
                functools.partial(_require_finite, node, plan.graph, value, arrays[value])
                for value in node.outputs
            ]
        for first, last in freed.get(step, ()):
            calls.append(functools.partial(arena.bytes[first:last].fill, 0xFF))
    return arrays, calls


def _workspace(plan: MemoryPlan, arena: Arena, node: Node) -> list[Array]:
    if node not in plan.workspaces:
        return []
    offset = plan.workspaces[node].offset
    arrays = []
    for type in node.op.workspace(node, plan.device, plan.strided):
        arrays.append(arena.view(type, offset))
        offset += align(type.bytes, plan.alignment)
    return arrays


def _poison_at_start(plan: MemoryPlan, arena: Arena) -> list[Call]:
    """NaN (all bits set) over everything but states and what the feeds just filled."""
    kept = sorted(
        (buffer.offset, buffer.offset + buffer.bytes)
        for buffer in plan.buffers
        if buffer.kind in ("state", "input")
    )
    calls: list[Call] = []
    start = 0
    for first, last in [*kept, (arena.bytes.size, arena.bytes.size)]:
        if first > start:
            calls.append(functools.partial(arena.bytes[start:first].fill, 0xFF))
        start = max(start, last)
    return calls


def _freed_after(plan: MemoryPlan) -> dict[int, list[tuple[int, int]]]:
    """Step → byte ranges of buffers whose lifetime ends with it."""
    freed: dict[int, list[tuple[int, int]]] = {}
    for buffer in plan.buffers:
        span = (buffer.offset, buffer.offset + buffer.bytes)
        freed.setdefault(buffer.lifetime.last - 1, []).append(span)
    return freed


def _require_finite(node: Node, graph: Graph, value: Value, array: Array) -> None:
    if array.dtype.kind not in "biu" and not np.isfinite(array.astype(np.float64)).all():
        raise NonFiniteError(
            f"{graph.names[value]} {value.type}, computed by {node.label}, holds NaN or infinity"
        )


def run_unplanned(
    graph: Graph, sources: Mapping[Value, Array], device: Device = CPU
) -> dict[Value, Array]:
    """Execute a graph with a fresh array for every value: the oracle for planned runs.

    Returns the arrays of all values; an updated state is a new array under its update's output.
    """
    arrays: dict[Value, Array] = dict(sources)
    with numpy_settings():
        for node in graph.nodes:
            if _show(node, arrays):
                continue
            arrays |= {value: fresh(value.type) for value in node.outputs}
            strided = {value for value in node.inputs if not arrays[value].flags.c_contiguous}
            workspace = [fresh(type) for type in node.op.workspace(node, device, strided)]
            for call in bind_node(node, arrays, workspace, strided):
                call()
    return arrays


def _show(node: Node, arrays: dict[Value, Array]) -> bool:
    """Make the outputs views of the operand, as the planner would."""
    if node.op.views is None:
        return False
    source = node.named_inputs()[node.op.views]
    assert isinstance(source, Value), "a viewed input is one value"
    array = arrays[source]
    layouts = node.op.view(node, Layout(0, array.strides))
    if layouts is None:
        return False
    for value, layout in zip(node.outputs, layouts, strict=True):
        shifted = _from(array, layout.offset)
        arrays[value] = np.lib.stride_tricks.as_strided(shifted, value.shape, layout.strides)
    return True


def _from(array: Array, offset: int) -> Array:
    """The element `offset` bytes behind the first, as an array of one."""
    if not offset:
        return array
    index = []
    for stride, extent in zip(array.strides, array.shape, strict=True):
        index.append(min(offset // stride, extent - 1) if stride else 0)
        offset -= index[-1] * stride
    return array[tuple(slice(i, i + 1) for i in index)]


def fresh(type: TensorType) -> Array:
    """An uninitialised array of its own, aligned like the arena."""
    return aligned_bytes(type.bytes).view(type.dtype.numpy).reshape(type.shape)
