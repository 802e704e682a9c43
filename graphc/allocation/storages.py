"""Storages: bytes that values share, before they have a place in the arena."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.allocation.liveness import peak_bytes
from graphc.ir.graph import Value
from graphc.ir.types import Layout, outer_axes
from graphc.plans.memory_plan import How


@dataclass(slots=True)
class Storage:
    """Bytes shared by values, alive on steps [first, last)."""

    index: int
    bytes: int
    first: int
    last: int
    root: Value


@dataclass(frozen=True, slots=True)
class Residence:
    """A value's storage, its layout there (None: row-major from the start) and how it got it."""

    storage: int
    layout: Layout | None
    how: How
    over: Value | None = None


@dataclass(frozen=True, slots=True)
class Storages:
    """All storages of a graph, and where each value resides."""

    storages: list[Storage]
    residences: dict[Value, Residence]

    def strided(self) -> dict[Value, tuple[int, ...]]:
        """Values that do not lie in one piece, row-major, and their strides in bytes."""
        places = self.residences.items()
        found = {value: place.layout.strides for value, place in places if place.layout is not None}
        return {v: strides for v, strides in found.items() if outer_axes(v.type, strides)}

    def peak_bytes(self) -> int:
        """The most bytes live at one step."""
        return peak_bytes((s.first, s.last, s.bytes) for s in self.storages)
