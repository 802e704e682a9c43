"""Binding of a plan to calls with device addresses. It needs no GPU and accepts any address."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphc.codegen.cudnn_calls import library_calls
from graphc.codegen.cudnn_request import Request
from graphc.codegen.elementwise.kernel import elementwise
from graphc.codegen.elementwise.ops import straightened
from graphc.codegen.elementwise.updates import grouped, groups
from graphc.codegen.lowering import calls_of
from graphc.codegen.node_calls import Buffer, Call, Exchange, Gemm, HostCopy, Launch, Scratch
from graphc.codegen.products.kernel import product_kernel
from graphc.codegen.text.kernel import Kernel
from graphc.codegen.text.operands import Place, in_one_piece
from graphc.codegen.workspace import gpu_workspace
from graphc.devices.device import ALIGNMENT
from graphc.errors import PlanError
from graphc.ir.graph import Node, Value
from graphc.ir.types import align
from graphc.plans.memory_plan import MemoryPlan
from graphc.plans.streams import StreamSlot
from graphc.runtime.gpu.cudnn import Cudnn, Plan
from graphc.runtime.gpu.places import places_of_plan


@dataclass(frozen=True, slots=True)
class BoundLaunch:
    """A kernel with its arguments: addresses (`int`), and 32-bit numbers."""

    kernel: Kernel
    arguments: tuple[int | np.uint32, ...]
    grid: int
    block: int


@dataclass(frozen=True, slots=True)
class BoundGemm:
    """A product with the addresses of its operands and of the BLAS library's workspace."""

    gemm: Gemm
    addresses: Mapping[Buffer, int]
    workspace: int
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class BoundPlan:
    """A cuDNN plan with the addresses of its tensors, by role, and of its workspace."""

    library: Cudnn
    plan: Plan
    addresses: Mapping[str, int]
    workspace: int


@dataclass(frozen=True, slots=True)
class BoundExchange:
    """A collective with the addresses of its operand `x` and its result `y`."""

    exchange: Exchange
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class BoundCopy:
    """A copy between device and host, with the addresses of its source `x` and its result `y`."""

    copy: HostCopy
    x: int
    y: int


BoundCall = BoundLaunch | BoundGemm | BoundPlan | BoundExchange | BoundCopy


@dataclass(frozen=True, slots=True)
class Work:
    """The calls for one node, or for several update nodes that share a kernel launch.

    `step` is the index of the first of these nodes in the graph.
    """

    step: int
    nodes: tuple[Node, ...]
    calls: tuple[BoundCall, ...]


def bind(
    plan: MemoryPlan,
    address: int,
    tf32: bool = False,
    cudnn: Cudnn | None = None,
    together: bool = True,
    serves: Callable[[BoundGemm], bool] = lambda product: True,
    declines: Callable[[Request], None] = lambda request: None,
    elsewhere: Mapping[int, int] | None = None,
) -> list[Work]:
    """Bind every node that is not a view, in order, to an arena at `address`.

    `elsewhere` maps the indices of buffers outside of that arena to their addresses.

    With `cudnn`, cuDNN computes each node for which it has an engine within the workspace of the
    node; `declines` is called with each request for which it has none. Small adjacent updates share
    a launch, unless `together` is False.

    Products are library calls with fused epilogues if the library `serves` them. Otherwise
    generated kernels compute the epilogue, or the product, of that node only. Raises `PlanError` if
    the workspace of a node is smaller than its calls need.
    """
    places = places_of_plan(plan, address, elsewhere)
    nodes = [
        node
        for node in plan.graph.nodes
        if any(plan.placements[value].how != "view" for value in node.outputs)
    ]
    in_parts = any(node.op.gathers is not None for node in plan.graph.nodes)
    works = []
    found = _on_one_stream(groups(nodes, places), plan) if together else [(n,) for n in nodes]
    for group in found:
        if len(group) > 1:
            calls: list[BoundCall] = [_launched(grouped(group, places), _addresses(places, group))]
        else:
            calls = list(
                _bound(group[0], plan, places, address, tf32, cudnn, in_parts, serves, declines)
            )
        works.append(Work(plan.graph.position[group[0]], group, tuple(calls)))
    return works


def _on_one_stream(
    groups: Iterable[tuple[Node, ...]], plan: MemoryPlan
) -> Iterator[tuple[Node, ...]]:
    """Split each group into parts that run on one stream."""
    slots = None if plan.streams is None else plan.streams.slots

    def stream(node: Node) -> int:
        return 0 if slots is None else slots[node].stream

    for group in groups:
        for _, part in itertools.groupby(group, stream):
            yield tuple(part)


def slots_of_works(plan: MemoryPlan, works: Sequence[Work], alone: bool) -> list[StreamSlot]:
    """Return the stream of each work (calls of a node), and the indices of works that it waits for.

    All works run on one stream if `alone` or if the plan has no stream schedule. In the second
    case, collectives get a stream of their own, and so do copies in each direction.
    """
    if plan.streams is None and not alone and any(_beside(work) is not None for work in works):
        return _slots_of_concurrent(plan, works)
    if plan.streams is None or alone:
        return [StreamSlot(0, ())] * len(works)
    position, slots = plan.graph.position, plan.streams.slots
    number_of = {position[node]: number for number, work in enumerate(works) for node in work.nodes}
    found = []
    for work in works:
        waits = {number_of[other] for node in work.nodes for other in slots[node].waits}
        found.append(StreamSlot(slots[work.nodes[0]].stream, tuple(sorted(waits))))
    return found


BESIDE = ("exchange", "host", "device")
"""Works that run concurrently with kernels: collectives, and copies to the host and back."""


def _beside(work: Work) -> str | None:
    """Return the kind of a concurrent work (`BESIDE`); None for kernels."""
    for call in work.calls:
        if isinstance(call, BoundExchange):
            return "exchange"
        if isinstance(call, BoundCopy):
            return call.copy.to
    return None


def _slots_of_concurrent(plan: MemoryPlan, works: Sequence[Work]) -> list[StreamSlot]:
    """Schedule each kind of concurrent work on a stream of its own.

    A work is the calls of a node. A concurrent work waits for all kernels before it. Each has a
    node that awaits its result. The first kernel from that node on waits for the concurrent work,
    and so do concurrent works from then on, since they wait for the node.
    """
    kinds = [_beside(work) for work in works]
    streams = {kind: at for at, kind in enumerate((k for k in BESIDE if k in kinds), 1)}
    begun = {work.step: n for n, work in enumerate(works) if kinds[n] is not None}
    position = plan.graph.position
    due = [
        (step, begun[position[source]])
        for step, node in enumerate(plan.graph.nodes)
        if (source := node.awaited) is not None and position[source] in begun
    ]
    due.reverse()
    found: list[StreamSlot] = []
    before: tuple[int, ...] = ()
    for number, work in enumerate(works):
        kind = kinds[number]
        if kind is not None:
            found.append(StreamSlot(streams[kind], before))
            continue
        waits: set[int] = set()
        while due and due[-1][0] <= work.step:
            waits.add(due.pop()[1])
        found.append(StreamSlot(0, tuple(sorted(waits))))
        before = (number,)
    return found


def kernels_of(calls: Iterable[BoundCall]) -> list[Kernel]:
    """Return the distinct kernels that are launched."""
    found = {call.kernel.name: call.kernel for call in calls if isinstance(call, BoundLaunch)}
    return list(found.values())


def _bound(
    node: Node,
    plan: MemoryPlan,
    places: Mapping[Value, Place],
    address: int,
    tf32: bool,
    cudnn: Cudnn | None,
    in_parts: bool,
    serves: Callable[[BoundGemm], bool],
    declines: Callable[[Request], None],
) -> Iterator[BoundCall]:
    workspace = gpu_workspace(node, plan.device, plan.strided)
    starts, end = workspace_starts(plan, node, address, [type.bytes for type in workspace.types])
    own = {value: places[value] for value in (*node.inputs, *node.outputs)}
    for number, (value, start) in enumerate(zip(workspace.copies, starts, strict=False)):
        copy = Scratch(number)
        launch = elementwise(straightened(value, places, copy, in_one_piece(value.type, start)))
        yield _launched(launch, {value: places[value].address, copy: start})
        own[value] = in_one_piece(value.type, start)
    if cudnn is not None:
        rest = starts[len(workspace.copies) :]
        start, size = (rest[0], end - rest[0]) if rest else (address, 0)
        chosen = _by_cudnn(cudnn, node, own, tf32, start, size, in_parts, declines)
        if chosen:
            yield from chosen
            return
    addresses: dict[Buffer, int] = {value: place.address for value, place in own.items()}
    scratch = starts[len(workspace.copies) : len(workspace.copies) + len(workspace.scratch)]
    addresses |= {Scratch(index): start for index, start in enumerate(scratch)}
    library = end - workspace.library_bytes, workspace.library_bytes
    for epilogues in (True, False):
        found = calls_of(node, own, tf32, epilogues)
        if found.scratch != workspace.scratch:
            raise PlanError(
                f"{node.label}: its kernels need another workspace than the plan has; plan again"
            )
        bound = [_with_addresses(call, addresses, *library) for call in found.calls]
        declined = [c for c in bound if isinstance(c, BoundGemm) and not serves(c)]
        if not any(call.gemm.epilogue != "none" for call in declined):
            break
    for call in bound:
        yield _by_kernel(call) if call in declined else call


def _by_kernel(product: BoundGemm) -> BoundLaunch:
    """Return the launch of a generated kernel for a product that the library does not serve."""
    return _launched(product_kernel(product.gemm), product.addresses)


def _addresses(places: Mapping[Value, Place], nodes: Sequence[Node]) -> dict[Buffer, int]:
    """Return the addresses of all values of some nodes."""
    return {v: places[v].address for node in nodes for v in (*node.inputs, *node.outputs)}


def _by_cudnn(
    cudnn: Cudnn,
    node: Node,
    own: Mapping[Value, Place],
    tf32: bool,
    start: int,
    workspace_bytes: int,
    in_parts: bool,
    declines: Callable[[Request], None],
) -> list[BoundCall]:
    """Return the cuDNN calls of a node, for the first of its possible requests that has an engine.

    The workspace is `workspace_bytes` at address `start`. The list is empty if no request has an
    engine. `in_parts` is passed to `Cudnn.build`.
    """
    forms = list(library_calls(node, own, tf32))
    for asked in forms:
        addresses: dict[Buffer, int] = {value: place.address for value, place in own.items()}
        free = start
        for number, type in enumerate(asked.scratch):
            addresses[Scratch(number)] = free
            free += align(type.bytes, ALIGNMENT)
        if free > start + workspace_bytes:
            continue
        plan = cudnn.build(asked.request, start + workspace_bytes - free, in_parts)
        if plan is None:
            continue
        roles = {role: addresses[buffer] for role, buffer in asked.values.items()}
        before, after = (
            [_launched(launch, addresses) for launch in launches]
            for launches in (asked.before, asked.after)
        )
        return [*before, BoundPlan(cudnn, plan, roles, free), *after]
    for asked in forms[-1:]:
        declines(asked.request)
    return []


def workspace_starts(
    plan: MemoryPlan, node: Node, address: int, sizes: Sequence[int]
) -> tuple[list[int], int]:
    """Return the addresses of the workspace tensors of a node, and the end of the last one."""
    if not sizes:
        return [], address
    buffer = plan.workspaces.get(node)
    start = end = address + (buffer.offset if buffer else 0)
    starts = []
    for size in sizes:
        starts.append(start)
        end = start + size
        start += align(size, plan.alignment)
    if buffer is None or end > address + buffer.offset + buffer.bytes:
        raise PlanError(f"{node.label}: its workspace is smaller than its kernels need; plan again")
    return starts, end


def _with_addresses(
    call: Call, addresses: Mapping[Buffer, int], library: int, library_bytes: int
) -> BoundCall:
    if isinstance(call, Gemm):
        return BoundGemm(call, addresses, library, library_bytes)
    if isinstance(call, Exchange):
        return BoundExchange(call, addresses[call.x], addresses[call.y])
    if isinstance(call, HostCopy):
        return BoundCopy(call, addresses[call.x], addresses[call.y])
    assert isinstance(call, Launch)  # programs have been lowered to launches
    return _launched(call, addresses)


def _launched(call: Launch, addresses: Mapping[Buffer, int]) -> BoundLaunch:
    arguments = tuple(np.uint32(a) if isinstance(a, int) else addresses[a] for a in call.arguments)
    return BoundLaunch(call.kernel, arguments, call.grid, call.block)
