"""Binding of nodes to rows of the step table: native kernels, and primitives of oneDNN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphc.codegen.llvm.kernel import NativeCall
from graphc.codegen.native import NativeTarget, is_native, native_calls, straightening
from graphc.codegen.node_calls import Buffer, Scratch
from graphc.codegen.text.operands import Place
from graphc.ir.graph import Node, Value
from graphc.ir.types import align, contiguous_strides
from graphc.plans.memory_plan import MemoryPlan
from graphc.runtime.arena import Arena
from graphc.runtime.cpu import llvm
from graphc.runtime.cpu.onednn.nodes import executions
from graphc.runtime.cpu.onednn.primitive import Execution
from graphc.runtime.cpu.step_table import StepTable, pool_of
from graphc.runtime.kernel_files import cache_folder

FLOPS_A_THREAD = 1 << 21
"""Minimum flops of a product per thread; with fewer, a further thread costs more than it saves. One
thread computes them in about 10 µs."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A call of a step that runs consecutive rows `[first, end)` of its table."""

    table: StepTable
    first: int
    end: int

    @property
    def rows(self) -> int:
        """The number of rows that a call runs."""
        return self.end - self.first

    def __call__(self) -> None:
        self.table.run(self.first, self.end)


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel call bound to addresses."""

    call: NativeCall
    pointers: tuple[int, ...]


def native_rows(plan: MemoryPlan, arena: Arena, threads: int | None) -> dict[Node, Rows]:
    """Return the rows of the nodes that run natively in an arena.

    All share one table. Nodes whose outputs are views, and nodes that run by NumPy, have no rows.
    """
    places = {
        value: Place(arena.address_of(value), placed.strides or contiguous_strides(value.type))
        for value, placed in plan.placements.items()
    }
    pool = pool_of(threads)
    found: dict[Node, list[_Kernel | Execution]] = {}
    for node in plan.graph.nodes:
        if all(plan.placements[value].how == "view" for value in node.outputs):
            continue
        calls = _calls(node, plan, places, arena.address, pool.threads)
        if calls is not None:
            found[node] = calls
    return _rows(found, StepTable(pool))


def _calls(
    node: Node, plan: MemoryPlan, places: Mapping[Value, Place], address: int, threads: int
) -> list[_Kernel | Execution] | None:
    """Return the calls of a node: copies of strided inputs to contiguous scratch, then its kernel.

    Returns None if the node has to run by NumPy.
    """
    workspace = plan.workspaces.get(node)
    start = address + (workspace.offset if workspace else 0)
    end = start + (workspace.bytes if workspace else 0)
    own = {value: places[value] for value in (*node.inputs, *node.outputs)}
    calls: list[_Kernel | Execution] = []
    for number, value in enumerate(plan.target.copies(node, plan.strided)):
        copy = Scratch(number)
        piece = Place(start, plan.target.copied_strides(node, value, plan.strided))
        call = straightening(value, places, copy, piece)
        calls.append(_with_addresses(call, {value: places[value].address, copy: start}))
        own[value] = piece
        start += align(value.type.bytes, plan.alignment)
    if not is_native(node):
        enough = max(1, node.op.cost(node).flops // FLOPS_A_THREAD)
        assert isinstance(plan.target, NativeTarget)
        size = min(end - start, plan.target.library_bytes(node, plan.strided))
        found = executions(node, own, start, max(0, size), min(threads, enough))
        return None if found is None else [*calls, *found]
    addresses: dict[Buffer, int] = {value: place.address for value, place in own.items()}
    kernels = native_calls(node, own)
    for number, type in enumerate(kernels.scratch):
        addresses[Scratch(number)] = start
        start += align(type.bytes, plan.alignment)
    return [*calls, *(_with_addresses(call, addresses) for call in kernels.calls)]


def _with_addresses(call: NativeCall, addresses: Mapping[Buffer, int]) -> _Kernel:
    return _Kernel(call, tuple(addresses[buffer] for buffer in call.pointers))


def _rows(found: Mapping[Node, list[_Kernel | Execution]], table: StepTable) -> dict[Node, Rows]:
    kernels = [each.call.kernel for e in found.values() for each in e if isinstance(each, _Kernel)]
    code = llvm.addresses(kernels, cache_folder())
    rows = {}
    for node, calls in found.items():
        first = len(table)
        for each in calls:
            if isinstance(each, _Kernel):
                call = each.call
                function = code[call.kernel.name]
                table.add_kernel(function, each.pointers, call.numbers, call.pieces, call.work)
            else:
                table.add_primitive(each)
        rows[node] = Rows(table, first, len(table))
    return rows
