"""Allocation strategies: offsets of storages and workspaces, by live ranges and sizes only.

``none`` and ``inplace`` give each storage its own bytes; they differ in which values share one.
``sharing`` recycles blocks (Chen et al., 2016, Fig. 2), ``coloring`` finds such blocks by the
interference graph, and ``packed`` chooses an offset for each storage. Workspaces share one block
after the values, as in the system of Chen et al. (2016). ``packed`` instead gives each workspace
its own offset for its one step. If ``sharing`` has the smaller arena, ``packed`` uses its layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graphc.ir.graph import Node
from graphc.memory.coloring import color
from graphc.memory.sharing import share
from graphc.memory.storages import Storage
from graphc.planner.pack import NORMAL, pack
from graphc.plans.memory_plan import Allocate


@dataclass(frozen=True, slots=True)
class Tenant:
    """A storage or a workspace of a node that needs an offset for steps `[first, last)`."""

    first: int
    last: int
    bytes: int
    owner: Storage | Node


Placer = Callable[[Sequence[Tenant]], tuple[list[int], int]]
"""A function from tenants, in order of `first`, to their offsets and the height."""


def _side_by_side(tenants: Sequence[Tenant]) -> tuple[list[int], int]:
    """Place storages one after another without sharing bytes; workspaces share one block at the
    end."""
    return _with_common_workspace(tenants, lambda sizes: list(range(len(sizes))))


def _recycled(tenants: Sequence[Tenant]) -> tuple[list[int], int]:
    """Place storages in recycled blocks, as in Fig. 2 (Chen et al., 2016)."""
    return _with_common_workspace(tenants, share)


def _with_common_workspace(
    tenants: Sequence[Tenant], choose_blocks: Callable[[list[tuple[int, int, int]]], list[int]]
) -> tuple[list[int], int]:
    """Place storages in the blocks of `choose_blocks`, and one workspace after them.

    Each block has the size of its largest tenant, the common workspace that of the largest one.
    """
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


def _colored(tenants: Sequence[Tenant]) -> tuple[list[int], int]:
    """Place storages in the blocks of a graph coloring."""
    return _with_common_workspace(tenants, color)


def _packed(tenants: Sequence[Tenant]) -> tuple[list[int], int]:
    """Place tenants by a packing search, or in recycled blocks if these take fewer bytes."""
    columns = np.array([(t.first, t.last, t.bytes) for t in tenants], np.int64).reshape(-1, 3)
    packing = pack(*columns.T, effort=NORMAL)
    if not packing.is_optimal:
        offsets, height = _recycled(tenants)
        if height < packing.height:
            return offsets, height
    return packing.offsets.tolist(), packing.height


PLACERS: dict[Allocate, Placer] = {
    "none": _side_by_side,
    "inplace": _side_by_side,
    "sharing": _recycled,
    "packed": _packed,
    "coloring": _colored,
}
