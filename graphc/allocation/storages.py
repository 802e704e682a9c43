"""Storages: bytes that values share, before they have a place in the arena."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from graphc.allocation.liveness import peak_bytes
from graphc.ir.graph import Value
from graphc.plans.memory_plan import Placement, strided


@dataclass(slots=True)
class Storage:
    """Bytes that values share, alive on steps [first, last); `root` is the first of them."""

    index: int
    bytes: int
    first: int
    last: int
    root: Value


@dataclass(frozen=True)
class Storages:
    """All storages of a graph, and where in them each value lies.

    A storage becomes the buffer of the same number, so a value has its `Placement` here already.
    """

    storages: list[Storage]
    placements: dict[Value, Placement]

    @cached_property
    def strided(self) -> dict[Value, tuple[int, ...]]:
        """Values that do not lie in one piece, row-major, and their strides in bytes."""
        return strided(self.placements)

    def peak_bytes(self) -> int:
        """The most bytes live at one step."""
        return peak_bytes((s.first, s.last, s.bytes) for s in self.storages)
