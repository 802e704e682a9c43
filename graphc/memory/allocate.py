"""Memory planning of a graph in a given order.

The arena is `[state | slots | rest]`. If copies overlap with steps, slots hold the next feeds of
inputs and, if the graph changes no state, the last outputs. In the rest, every value has an offset
for its live range. Values copied to the host are placed in the same way in a second arena, in host
memory, after the states that are there. Planning takes five steps, each using only the results of
earlier ones (V values, E edges):

1. Live ranges (`liveness`): the producer and the last consumer of each value. O(V + E).
2. Layouts (`layout`): the values that are not row-major, by the target's preferences. O(V + E).
3. Storages (`inplace`): values that view, replace or may overwrite one another share bytes. An
   operand may be overwritten if its counter is 1 (Chen et al., 2016, Fig. 2). O(V + E).
4. Parts (`zero_copy`): values computed inside the concatenation that reads them, chosen on storages
   without overwriting. Step 3 then runs with and without these parts, and the storages with the
   lower peak are used.
5. Offsets (`placing`): an offset for every storage and workspace, by a strategy that sees only
   (first step, last step, bytes) of each. Near linear, except for the search of `packed` and for
   `coloring`.

Invariant: two storages with overlapping live ranges have no byte in common. Within a storage, an op
overwrites an operand only if it permits that. `graphc.plans.check` proves both for every plan, and
shares none of this code.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from graphc.devices.device import ALIGNMENT
from graphc.ir.copies import SharedByCopies
from graphc.ir.graph import Graph, Node, State, Value
from graphc.ir.op import Strided
from graphc.ir.types import Layout, align, contiguous_strides, span_bytes
from graphc.layouts import KnownLayouts, layouts
from graphc.memory.inplace import assign_storages
from graphc.memory.liveness import Liveness, liveness, peak_bytes
from graphc.memory.placing import PLACERS, Tenant
from graphc.memory.storages import Storage, Storages
from graphc.memory.zero_copy import choose_parts, is_bucket
from graphc.plans.cost_model import CostModel, recomputation
from graphc.plans.kinds import kind_of
from graphc.plans.memory_plan import (
    COMPARED,
    Allocate,
    Buffer,
    Lifetime,
    MemoryPlan,
    Placement,
    Slot,
    Way,
)
from graphc.target import CPU_TARGET, Target


@dataclass(frozen=True, slots=True)
class Places:
    """Tenants with their offsets in the arena, and the height; both count from the end of the
    slots."""

    tenants: list[Tenant]
    offsets: list[int]
    height: int


class Allocation:
    """The allocation of a graph's values, for the order of its nodes, a target and an alignment.

    Live ranges, layouts, storages and offsets are computed on first use and cached; `plan` combines
    them. The results are deterministic.
    """

    def __init__(
        self,
        graph: Graph,
        target: Target = CPU_TARGET,
        alignment: int = ALIGNMENT,
        has_slots: bool = False,
    ) -> None:
        self.graph = graph
        self.target = target
        self.alignment = alignment
        self.has_slots = has_slots
        self._places: dict[tuple[Allocate, bool], Places] = {}
        """Cached places, by strategy, on the device (False) and on the host (True)."""
        self._feature_maps: dict[Allocate, int] = {}
        """Cached bytes of feature maps, by strategy."""
        self._known_workspaces: SharedByCopies[int] = SharedByCopies()
        self._known_layouts: KnownLayouts = SharedByCopies()
        self._tenants: dict[bool, list[Tenant]] = {}
        """Cached tenants, with overwriting of operands (True) and without (False)."""

    def of(self, graph: Graph) -> Allocation:
        """Return the allocation of `graph` for the same target, alignment and slots.

        Returns this allocation, with its computed parts, if `graph` is its own graph.
        """
        if graph is self.graph:
            return self
        found = Allocation(graph, self.target, self.alignment, self.has_slots)
        found._known_workspaces = self._known_workspaces
        found._known_layouts = self._known_layouts
        return found

    def in_order(self, nodes: Iterable[Node]) -> Allocation:
        """Return the allocation of the same nodes in another order.

        Strides are shared, since layouts depend only on data dependences.
        """
        found = self.of(self.graph.in_order(nodes))
        found.strides = self.strides
        return found

    @cached_property
    def live(self) -> Liveness:
        """Live ranges of all values."""
        return liveness(self.graph)

    @cached_property
    def strides(self) -> dict[Value, tuple[int, ...]]:
        """Byte strides of each value whose layout is not row-major."""
        return layouts(self.graph, self.target, self._known_layouts)

    @cached_property
    def separate(self) -> Storages:
        """Storages without overwriting of operands; updates still overwrite states."""
        return assign_storages(self.graph, self.live, self.strides, overwrite=False)

    @cached_property
    def merged(self) -> Storages:
        """Storages with overwriting, and with parts inside concatenations unless the peak grows."""
        copied = assign_storages(self.graph, self.live, self.strides, overwrite=True)
        if all(node.op.gathers is None for node in self.graph.nodes):
            return copied
        has_buckets = any(is_bucket(self.graph, node) for node in self.graph.nodes)
        for fills_buckets in (True, False) if has_buckets else (False,):
            parts = choose_parts(self.graph, self.separate, self.target, fills_buckets)
            placed = assign_storages(
                self.graph, self.live, self.strides, overwrite=True, parts=parts
            )
            if placed.peak_bytes() <= copied.peak_bytes():
                return placed
        return copied

    @cached_property
    def separate_in_place(self) -> Storages:
        """Storages without overwriting, except by arrivals of copies between device and host."""
        if not any(node.op.copies_to for node in self.graph.nodes):
            return self.separate
        return assign_storages(
            self.graph, self.live, self.strides, overwrite=False, copies_in_place=True
        )

    def storages(self, strategy: Allocate) -> Storages:
        """Return the storages that a strategy places: without overwriting for ``none``, else with
        it."""
        return self.separate_in_place if strategy == "none" else self.merged

    @cached_property
    def state_bytes(self) -> int:
        """The bytes of the state region at the start of the arena."""
        return sum(self._aligned(s.type.bytes) for s in self.graph.states if not s.on_host)

    @cached_property
    def host_state_bytes(self) -> int:
        """The bytes of the states on the host, which precede all other values there."""
        return sum(self._aligned(s.type.bytes) for s in self.graph.states if s.on_host)

    def fixed_bytes(self, storages: Storages) -> int:
        """Return the bytes of states and slots, which precede all other buffers and are never
        shared."""
        return self.state_bytes + sum(self._aligned(size) for *_, size in self._slots(storages))

    def _slots(self, storages: Storages) -> list[tuple[Value, Way, int]]:
        """Return (value, direction, bytes) for each value with a slot; bytes span first to last
        element."""
        if not self.has_slots:
            return []
        graph, placements = self.graph, storages.placements

        def size(value: Value) -> int:
            strides = placements[value].strides or contiguous_strides(value.type)
            return span_bytes(value.type, Layout(0, strides))

        # The outputs of a step that changes states are copied out before the next step begins.
        outputs = () if graph.effects else dict.fromkeys(graph.outputs.values())
        slots: list[tuple[Value, Way, int]] = [(each, "in", size(each)) for each in graph.inputs]
        return [*slots, *((each, "out", size(each)) for each in outputs)]

    @cached_property
    def live_bytes(self) -> int:
        """The peak live bytes, with all sharing of bytes that storages allow."""
        tenants = self.tenants("packed")
        fixed = self.fixed_bytes(self.storages("packed"))
        return fixed + peak_bytes((t.first, t.last, t.bytes) for t in tenants)

    def arena_bytes(self, strategy: Allocate) -> int:
        """Return the bytes of the whole arena under a strategy."""
        return self.fixed_bytes(self.storages(strategy)) + self.placed(strategy).height

    def feature_map_bytes(self, strategy: Allocate) -> int:
        """Return the bytes of feature maps under a strategy, as Chen et al. (2016) count them.

        Excludes states, inputs, outputs, workspaces, values gathered from states, and operands of
        updates.
        """
        if strategy in self._feature_maps:
            return self._feature_maps[strategy]
        storages = self.storages(strategy)
        excluded = {storages.placements[value].buffer for value in self.graph.outputs.values()}
        for node in self.graph.effects:
            excluded |= {storages.placements[value].buffer for value in node.inputs}
        tenants = [
            tenant
            for tenant in self._storage_tenants(storages)
            if isinstance(tenant.owner, Storage)
            and tenant.owner.index not in excluded
            and kind_of(tenant.owner.root) not in ("input", "gathered")
        ]
        self._feature_maps[strategy] = PLACERS[strategy](tenants)[1]
        return self._feature_maps[strategy]

    def plan(
        self,
        strategy: Allocate,
        recompute: str = "none",
        costs: CostModel | None = None,
        places: Places | None = None,
    ) -> MemoryPlan:
        """Return the plan under a strategy.

        `recompute` is the name of the policy that created the graph. `costs` is the cost model of
        recomputation, by default the roofline of the target's device. `places` replaces the
        strategy's offsets.
        """
        started = time.perf_counter()
        storages = self.storages(strategy)
        places, on_host = places or self.placed(strategy), self.placed(strategy, on_host=True)
        arena_bytes = self.fixed_bytes(storages) + places.height
        buffers, workspaces = self._buffers(storages, places, on_host, self._aligned(arena_bytes))
        slots = self._slot_buffers(storages, len(buffers))
        buffers += tuple(slot.buffer for slot in slots)
        return MemoryPlan(
            graph=self.graph,
            recompute=recompute,
            allocate=strategy,
            alignment=self.alignment,
            device=self.target.device,
            buffers=buffers,
            placements=_with_origins(storages.placements, buffers),
            workspaces=workspaces,
            arena_bytes=arena_bytes,
            feature_map_bytes=self.feature_map_bytes(strategy),
            strategy_bytes={n: self.arena_bytes(n) for n in dict.fromkeys((*COMPARED, strategy))},
            recomputation=recomputation(self.graph, costs or CostModel(self.target.device)),
            planning_seconds=time.perf_counter() - started,
            slots=slots,
            host_bytes=self.host_state_bytes + on_host.height,
        )

    def workspace_bytes(self, node: Node, storages: Storages) -> int:
        """Return the workspace of a node in bytes, for the strides of its values in `storages`."""
        strided = storages.strided
        strides = tuple(strided.get(value) for value in (*node.inputs, *node.outputs))
        compute = partial(self._workspace_bytes, node, strided)
        return self._known_workspaces.get(node, strides, compute)

    def _workspace_bytes(self, node: Node, strided: Strided) -> int:
        return sum(self._aligned(type.bytes) for type in self.target.workspace(node, strided))

    def _aligned(self, size: int) -> int:
        return align(size, self.alignment)

    def placed(self, strategy: Allocate, on_host: bool = False) -> Places:
        """Return the tenants with the offsets that a strategy finds, and the height.

        They are those of device memory, or those on the host.
        """
        key = strategy, on_host
        if key not in self._places:
            storages = self.storages(strategy)
            tenants = (
                self._storage_tenants(storages, on_host=True) if on_host else self.tenants(strategy)
            )
            found = PLACERS[strategy](tenants) if tenants or not on_host else ([], 0)
            self._places[key] = Places(tenants, *found)
        return self._places[key]

    def _storage_tenants(self, storages: Storages, on_host: bool = False) -> list[Tenant]:
        """Return a tenant for each storage that is not a state's, in the order of storages.

        They are the storages on the device, or those on the host.
        """
        return [
            Tenant(storage.first, storage.last, self._aligned(storage.bytes), storage)
            for storage in storages.storages
            if not isinstance(storage.root, State) and storage.on_host == on_host
        ]

    def tenants(self, strategy: Allocate) -> list[Tenant]:
        """Return the tenants that a strategy places on the device, sorted by first step.

        Outputs of a step precede its workspace.
        """
        overwrites = strategy != "none"
        if overwrites not in self._tenants:
            storages = self.storages(strategy)
            tenants = self._storage_tenants(storages)
            for step, node in enumerate(self.graph.nodes):
                size = self.workspace_bytes(node, storages)
                if size:
                    tenants.append(Tenant(step, step + 1, size, node))
            self._tenants[overwrites] = sorted(tenants, key=lambda tenant: tenant.first)
        return self._tenants[overwrites]

    def _buffers(
        self, storages: Storages, places: Places, on_host: Places, host_start: int
    ) -> tuple[tuple[Buffer, ...], dict[Node, Buffer]]:
        """Return the buffers of the plan, and the workspace buffers by node.

        The buffers of storages come first, in their order, then workspaces in the order of nodes.
        Offsets on the host begin at `host_start`.
        """
        state_offsets = {False: 0, True: host_start}
        rest, host_rest = self.fixed_bytes(storages), host_start + self.host_state_bytes
        offset_of: dict[int | Node, int] = {
            tenant.owner.index if isinstance(tenant.owner, Storage) else tenant.owner: start + at
            for start, found in ((rest, places), (host_rest, on_host))
            for tenant, at in zip(found.tenants, found.offsets, strict=True)
        }
        buffers: list[Buffer] = []
        for storage in storages.storages:
            if isinstance(storage.root, State):
                offset = state_offsets[storage.on_host]
                state_offsets[storage.on_host] += self._aligned(storage.bytes)
            else:
                offset = offset_of[storage.index]
            lifetime = Lifetime(storage.first, storage.last)
            kind = kind_of(storage.root)
            buffers.append(Buffer(storage.index, kind, offset, storage.bytes, lifetime))
        workspaces: dict[Node, Buffer] = {}
        for tenant in places.tenants:
            if isinstance(tenant.owner, Node):
                lifetime = Lifetime(tenant.first, tenant.last)
                offset = offset_of[tenant.owner]
                buffer = Buffer(len(buffers), "workspace", offset, tenant.bytes, lifetime)
                workspaces[tenant.owner] = buffer
                buffers.append(buffer)
        return tuple(buffers), workspaces

    def _slot_buffers(self, storages: Storages, index: int) -> tuple[Slot, ...]:
        """Return the slots with their buffers, which follow the states and are numbered from
        `index`."""
        lifetime, offset = Lifetime(0, len(self.graph.nodes) + 1), self.state_bytes
        slots = []
        for number, (value, way, size) in enumerate(self._slots(storages), index):
            slots.append(Slot(value, way, Buffer(number, "slot", offset, size, lifetime)))
            offset += self._aligned(size)
        return tuple(slots)


def _with_origins(
    placements: dict[Value, Placement], buffers: Sequence[Buffer]
) -> dict[Value, Placement]:
    """Return the placements, with `reuse` in place of `new` if a buffer is recycled."""
    recycled = _recycled_buffers(buffers)
    return {
        value: replace(place, how="reuse")
        if place.how == "new" and place.buffer in recycled
        else place
        for value, place in placements.items()
    }


def _recycled_buffers(buffers: Sequence[Buffer]) -> set[int]:
    """Return the indices of buffers that overlap bytes of an earlier buffer."""
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
