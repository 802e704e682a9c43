"""States sharded over ranks: each rank has one part of a row of states.

A row is the concatenation of several flattened parameters, or of their moments, padded with zeros
so that all parts have equal length. In the text of a graph, the state of a part lists the members
of the row:

    @shard0: f32[40] = parameter() {ranks=2, members=(('a/weight', (8, 8), 'uniform', 0.1), ...)}
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from graphc.errors import OptionError

if TYPE_CHECKING:
    from graphc.ir.graph import Initial


@dataclass(frozen=True, slots=True)
class Member:
    """A state that is part of a row: the name, shape and initial value that it has without
    sharding."""

    name: str
    shape: tuple[int, ...]
    initial: Initial

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Shard:
    """The initial value of a state that is one of `ranks` equal parts of a row of `members`."""

    ranks: int
    members: tuple[Member, ...]

    @property
    def elements(self) -> int:
        """The number of elements of a part."""
        return -(-sum(member.elements for member in self.members) // self.ranks)

    @property
    def padding(self) -> int:
        """The number of zeros at the end of the row."""
        return self.ranks * self.elements - sum(member.elements for member in self.members)

    def places(self) -> Iterator[tuple[int, Member]]:
        """Yield each member after its offset in the row, in elements."""
        first = 0
        for member in self.members:
            yield first, member
            first += member.elements

    def moments(self, kind: str, initial: Initial) -> Shard:
        """Return the shard of the members' moments, such as ``m/weight`` for ``weight``."""
        members = (replace(m, name=f"{kind}/{m.name}", initial=initial) for m in self.members)
        return Shard(self.ranks, tuple(members))

    @property
    def details(self) -> dict[str, Any]:
        """The shard as attributes in the text form of a graph."""
        members = tuple((m.name, m.shape, m.initial.kind, m.initial.scale) for m in self.members)
        return {"ranks": self.ranks, "members": members}

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise `OptionError` unless a part of this row has the shape `shape`."""
        if not self.members or self.ranks < 1 or shape != (self.elements,):
            raise OptionError(
                f"{name!r} is one of {self.ranks} shards of {len(self.members)} parameters and "
                f"must have the shape ({self.elements},), got {shape}"
            )


def overlap(first: int, length: int, other_first: int, other_length: int) -> tuple[slice, slice]:
    """Return the overlap of two intervals as a slice of each; both are empty without an overlap."""
    begin = max(first, other_first)
    end = max(begin, min(first + length, other_first + other_length))
    return slice(begin - first, end - first), slice(begin - other_first, end - other_first)
