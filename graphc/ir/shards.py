"""States sharded over ranks: each rank has one part of a row of parameters, or of moments.

The row is the concatenation of several states, padded with zeros so that all parts are equal. In
the text of a graph, the state of a part lists the members:

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
    """One state of a row, as it is when it is not sharded."""

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
        """The elements of a part."""
        return -(-sum(member.elements for member in self.members) // self.ranks)

    @property
    def padding(self) -> int:
        """The number of zeros at the end of the row."""
        return self.ranks * self.elements - sum(member.elements for member in self.members)

    def places(self) -> Iterator[tuple[int, Member]]:
        """Yield the offset in the row, in elements, and the member for each member."""
        first = 0
        for member in self.members:
            yield first, member
            first += member.elements

    def moments(self, kind: str, initial: Initial) -> Shard:
        """Return the shard of the moments of all members, such as ``m/weight`` for ``weight``."""
        members = (replace(m, name=f"{kind}/{m.name}", initial=initial) for m in self.members)
        return Shard(self.ranks, tuple(members))

    @property
    def details(self) -> dict[str, Any]:
        """The attributes in the text form of a graph."""
        members = tuple((m.name, m.shape, m.initial.kind, m.initial.scale) for m in self.members)
        return {"ranks": self.ranks, "members": members}

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise `OptionError` unless a state of that shape can be this part of a row."""
        if not self.members or self.ranks < 1 or shape != (self.elements,):
            raise OptionError(
                f"{name!r} is one of {self.ranks} shards of {len(self.members)} parameters and "
                f"must have the shape ({self.elements},), got {shape}"
            )


def overlap(first: int, length: int, other_first: int, other_length: int) -> tuple[slice, slice]:
    """Return the overlap of two intervals as slices of each; both are empty if there is none."""
    begin = max(first, other_first)
    end = max(begin, min(first + length, other_first + other_length))
    return slice(begin - first, end - first), slice(begin - other_first, end - other_first)
