"""The strategies: offsets of what needs a place, by steps and bytes alone.

``none`` and ``inplace`` put every storage apart, ``sharing`` recycles blocks (Fig. 2), ``coloring``
finds such blocks by the graph of conflicts, ``packed`` chooses an offset for each. Under all but
the last, workspaces have one common place behind the values, as the paper's system had; ``packed``
gives each a place for the one step that it lives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graphc.allocation.coloring import color
from graphc.allocation.sharing import share
from graphc.allocation.storages import Storage
from graphc.ir.graph import Node
from graphc.packing import NORMAL, pack
from graphc.plans.memory_plan import Allocate


@dataclass(frozen=True, slots=True)
class Tenant:
    """What needs a place on steps [first, last): a storage, or the workspace of one node."""

    first: int
    last: int
    bytes: int
    owner: Storage | Node


Placer = Callable[[Sequence[Tenant]], tuple[list[int], int]]
"""Offsets of tenants that are given in order of `first`, and the height."""


def _side_by_side(tenants: Sequence[Tenant]) -> tuple[list[int], int]:
    """Offsets where every storage has bytes of its own, one behind another."""
    return _with_common_workspace(tenants, lambda sizes: list(range(len(sizes))))


def _recycled(tenants: Sequence[Tenant]) -> tuple[list[int], int]:
    """Offsets where storages share recycled blocks, as in Fig. 2."""
    return _with_common_workspace(tenants, share)


def _with_common_workspace(
    tenants: Sequence[Tenant], choose_blocks: Callable[[list[tuple[int, int, int]]], list[int]]
) -> tuple[list[int], int]:
    """Offsets of blocks that `choose_blocks` gives storages, and one workspace behind them.

    Each block is as large as its largest tenant, and the workspace as that of the neediest node.
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
    """Offsets where storages share the blocks of a colouring."""
    return _with_common_workspace(tenants, color)


def _packed(tenants: Sequence[Tenant]) -> tuple[list[int], int]:
    """Offsets that a search for a low packing chose; never above those of recycled blocks."""
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
