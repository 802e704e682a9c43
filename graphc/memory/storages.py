"""Storages: bytes that values share, before they get an offset in the arena."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from graphc.ir.graph import Value
from graphc.memory.liveness import peak_bytes
from graphc.plans.memory_plan import Placement, strided


@dataclass(slots=True)
class Storage:
    """Bytes that several values share, live on steps `[first, last)`; `root` is the first of the
    values."""

    index: int
    bytes: int
    first: int
    last: int
    root: Value
    on_host: bool = False
    """True if the bytes are in host memory."""


@dataclass(frozen=True)
class Storages:
    """All storages of a graph, and the placement of each value in them.

    A storage becomes the buffer with the same number, so placements in storages hold for buffers
    too.
    """

    storages: list[Storage]
    placements: dict[Value, Placement]

    @cached_property
    def strided(self) -> dict[Value, tuple[int, ...]]:
        """The byte strides of values that are not contiguous and row-major."""
        return strided(self.placements)

    def peak_bytes(self) -> int:
        """Return the peak live bytes of device memory."""
        return peak_bytes((s.first, s.last, s.bytes) for s in self.storages if not s.on_host)
