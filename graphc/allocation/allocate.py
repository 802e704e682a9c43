"""From a graph to its memory plan: liveness, storages, places.

The arena is [state | rest]. ``none`` gives every value its own storage, ``inplace`` merges what may
overwrite, ``sharing`` recycles blocks (Fig. 2), ``packed`` chooses an offset for every storage.
Under the first three, workspaces have one common place behind the values; ``packed`` gives each a
place for the one step that it lives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graphc.allocation.inplace import assign_storages
from graphc.allocation.liveness import liveness, peak_bytes
from graphc.allocation.sharing import share
from graphc.allocation.storages import Storage, Storages
from graphc.codegen.workspace import workspace
from graphc.ir.device import CPU, Device
from graphc.ir.graph import Graph, Input, Node, State, Value
from graphc.packing import NORMAL, pack
from graphc.plans.cost_model import CostModel, recomputation
from graphc.plans.memory_plan import (
    ALIGNMENT,
    ALLOCATE,
    Allocate,
    Buffer,
    Lifetime,
    MemoryPlan,
    Placement,
    align,
    kind_of,
)


@dataclass(frozen=True, slots=True)
class Tenant:
    """What needs a place: a storage, or the workspace of one node."""

    first: int
    last: int
    bytes: int
    owner: Storage | Node


Placer = Callable[[Sequence[Tenant]], tuple[list[int], int]]
"""Offsets of tenants that are given in order of `first`, and the height."""


def allocate(
    graph: Graph,
    strategy: Allocate,
    recompute: str = "none",
    alignment: int = ALIGNMENT,
    device: Device = CPU,
    costs: CostModel | None = None,
) -> MemoryPlan:
    """Plan a graph in its order under one strategy; deterministic.

    `costs` says what recomputation costs, by default the roofline of `device`.
    """
    started = time.perf_counter()
    live = liveness(graph)
    separate = assign_storages(graph, live, overwrite=False, device=device)
    merged = assign_storages(graph, live, overwrite=True, device=device)
    storages = {name: separate if name == "none" else merged for name in ALLOCATE}
    scratch = _scratch(graph, merged, device, alignment)
    places: dict[str, tuple[list[Tenant], list[int], int]] = {}
    for name in ALLOCATE:
        tenants = _tenants(graph, storages[name], scratch, alignment)
        places[name] = (tenants, *PLACERS[name](tenants))
    state_bytes = _state_bytes(merged, alignment)
    tenants, offsets, height = places[strategy]
    chosen = storages[strategy]
    buffers, workspaces = _buffers(chosen, tenants, offsets, state_bytes, alignment)
    return MemoryPlan(
        graph=graph,
        recompute=recompute,
        allocate=strategy,
        alignment=alignment,
        device=device,
        buffers=buffers,
        placements=_placements(chosen, buffers),
        workspaces=workspaces,
        arena_bytes=state_bytes + height,
        feature_map_bytes=_feature_map_bytes(graph, chosen, PLACERS[strategy], alignment),
        strategy_bytes={name: state_bytes + places[name][2] for name in ALLOCATE},
        recomputation=recomputation(graph, costs or CostModel(device)),
        planning_seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of the arena and of the feature maps by the paper's measure."""

    arena_bytes: int
    feature_map_bytes: int


def measure(
    graph: Graph, strategy: Allocate, alignment: int = ALIGNMENT, device: Device = CPU
) -> Sizes:
    """The sizes of `allocate`'s plan, without the plan."""
    storages = assign_storages(graph, liveness(graph), strategy != "none", device)
    return Sizes(
        _arena_bytes(graph, storages, strategy, alignment, device),
        _feature_map_bytes(graph, storages, PLACERS[strategy], alignment),
    )


def arena_bytes(
    graph: Graph, strategy: Allocate, alignment: int = ALIGNMENT, device: Device = CPU
) -> int:
    """The arena of `measure` alone."""
    storages = assign_storages(graph, liveness(graph), strategy != "none", device)
    return _arena_bytes(graph, storages, strategy, alignment, device)


def live_bytes(graph: Graph, alignment: int = ALIGNMENT, device: Device = CPU) -> int:
    """The most bytes live at one node where everything that may share bytes does."""
    storages = assign_storages(graph, liveness(graph), overwrite=True, device=device)
    tenants = _tenants(graph, storages, _scratch(graph, storages, device, alignment), alignment)
    return _state_bytes(storages, alignment) + peak_bytes(
        (tenant.first, tenant.last, tenant.bytes) for tenant in tenants
    )


def _arena_bytes(
    graph: Graph, storages: Storages, strategy: Allocate, alignment: int, device: Device
) -> int:
    scratch = _scratch(graph, storages, device, alignment)
    tenants = _tenants(graph, storages, scratch, alignment)
    return _state_bytes(storages, alignment) + PLACERS[strategy](tenants)[1]


def _side_by_side(tenants: Sequence[Tenant]) -> tuple[list[int], int]:
    """Every storage apart."""
    return _with_common_workspace(tenants, lambda sizes: list(range(len(sizes))))


def _recycled(tenants: Sequence[Tenant]) -> tuple[list[int], int]:
    """Storages in the blocks of Fig. 2."""
    return _with_common_workspace(tenants, share)


def _with_common_workspace(
    tenants: Sequence[Tenant], choose_blocks: Callable[[list[tuple[int, int, int]]], list[int]]
) -> tuple[list[int], int]:
    """Blocks one after another, each as large as its largest tenant, then one workspace for all."""
    values = [t for t in tenants if isinstance(t.owner, Storage)]
    blocks = choose_blocks([(t.first, t.last, t.bytes) for t in values])
    sizes = [0] * (max(blocks, default=-1) + 1)
    for tenant, block in zip(values, blocks, strict=True):
        sizes[block] = max(sizes[block], tenant.bytes)
    *starts, height = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).tolist()
    block_of = iter(blocks)
    offsets = [
        starts[next(block_of)] if isinstance(tenant.owner, Storage) else height
        for tenant in tenants
    ]
    work = max((t.bytes for t in tenants if not isinstance(t.owner, Storage)), default=0)
    return offsets, height + work


def _packed(tenants: Sequence[Tenant]) -> tuple[list[int], int]:
    """Chosen offsets; never above recycled blocks, which are a packing too."""
    columns = np.array([(t.first, t.last, t.bytes) for t in tenants], np.int64).reshape(-1, 3)
    packing = pack(*columns.T, effort=NORMAL)
    if not packing.is_optimal:
        offsets, height = _recycled(tenants)
        if height < packing.height:
            return offsets, height
    return packing.offsets.tolist(), packing.height


PLACERS: dict[str, Placer] = {
    "none": _side_by_side,
    "inplace": _side_by_side,
    "sharing": _recycled,
    "packed": _packed,
}


def _state_bytes(storages: Storages, alignment: int) -> int:
    states = (s for s in storages.storages if isinstance(s.root, State))
    return sum(align(storage.bytes, alignment) for storage in states)


def _scratch(graph: Graph, storages: Storages, device: Device, alignment: int) -> dict[Node, int]:
    """Bytes of workspace of the nodes that have one."""
    strided = storages.strided()
    found: dict[Node, int] = {}
    for node in graph.nodes:
        types = workspace(node, device, strided)
        if types:
            found[node] = sum(align(type.bytes, alignment) for type in types)
    return found


def _tenants(
    graph: Graph, storages: Storages, scratch: dict[Node, int], alignment: int
) -> list[Tenant]:
    """All that is not state, in order of first use; a step's outputs before its workspace."""
    tenants = [
        Tenant(storage.first, storage.last, align(storage.bytes, alignment), storage)
        for storage in storages.storages
        if not isinstance(storage.root, State)
    ]
    tenants += [
        Tenant(step, step + 1, scratch[node], node)
        for step, node in enumerate(graph.nodes)
        if node in scratch
    ]
    return sorted(tenants, key=lambda tenant: tenant.first)


def _buffers(
    storages: Storages,
    tenants: Sequence[Tenant],
    offsets: Sequence[int],
    state_bytes: int,
    alignment: int,
) -> tuple[tuple[Buffer, ...], dict[Node, Buffer]]:
    """Buffers in the order of their storages, then workspaces in the order of their nodes."""
    place = {
        tenant.owner.index if isinstance(tenant.owner, Storage) else tenant.owner: offset
        for tenant, offset in zip(tenants, offsets, strict=True)
    }
    buffers: list[Buffer] = []
    state_offset = 0
    for storage in storages.storages:
        if isinstance(storage.root, State):
            offset = state_offset
            state_offset += align(storage.bytes, alignment)
        else:
            offset = state_bytes + place[storage.index]
        lifetime = Lifetime(storage.first, storage.last)
        kind = kind_of(storage.root)
        buffers.append(Buffer(storage.index, kind, offset, storage.bytes, lifetime))
    workspaces: dict[Node, Buffer] = {}
    for tenant in tenants:
        if isinstance(tenant.owner, Node):
            lifetime = Lifetime(tenant.first, tenant.last)
            offset = state_bytes + place[tenant.owner]
            buffer = Buffer(len(buffers), "workspace", offset, tenant.bytes, lifetime)
            workspaces[tenant.owner] = buffer
            buffers.append(buffer)
    return tuple(buffers), workspaces


def _placements(storages: Storages, buffers: Sequence[Buffer]) -> dict[Value, Placement]:
    recycled = _recycled_buffers(buffers)
    placements = {}
    for value, residence in storages.residences.items():
        layout, how = residence.layout, residence.how
        if how == "new" and residence.storage in recycled:
            how = "reuse"
        offset, strides = (layout.offset, layout.strides) if layout else (0, None)
        placements[value] = Placement(residence.storage, offset, strides, how, residence.over)
    return placements


def _recycled_buffers(buffers: Sequence[Buffer]) -> set[int]:
    """Indices of buffers on bytes that an earlier one had."""
    ends = [buffer.offset + buffer.bytes for buffer in buffers]
    marks = np.unique([buffer.offset for buffer in buffers] + ends)
    used = np.zeros(len(marks), bool)
    recycled = set()
    lows = np.searchsorted(marks, [buffer.offset for buffer in buffers]).tolist()
    highs = np.searchsorted(marks, ends).tolist()
    for buffer in sorted(buffers, key=lambda buffer: (buffer.lifetime.first, buffer.index)):
        span = used[lows[buffer.index] : highs[buffer.index]]
        if span.any():
            recycled.add(buffer.index)
        span[:] = True
    return recycled


def _feature_map_bytes(graph: Graph, storages: Storages, placer: Placer, alignment: int) -> int:
    """The paper's measure: neither state, input, output, workspace nor handed to an update."""
    excluded = {storages.residences[value].storage for value in graph.outputs.values()}
    for node in graph.effects:
        excluded |= {storages.residences[value].storage for value in node.inputs}
    tenants = [
        Tenant(storage.first, storage.last, align(storage.bytes, alignment), storage)
        for storage in storages.storages
        if storage.index not in excluded and not isinstance(storage.root, State | Input)
    ]
    return placer(sorted(tenants, key=lambda tenant: tenant.first))[1]
