"""States that ranks hold together: each rank has one part of a row of parameters, or of moments.

The row has the elements of several states behind each other, and zeros at the end that make its
parts equal. In the text of a graph its members stand beside it:

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
    """One of the states of a row, as it is where one process has it whole."""

    name: str
    shape: tuple[int, ...]
    initial: Initial

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Shard:
    """How a state begins that is one of `ranks` equal parts of a row of `members`."""

    ranks: int
    members: tuple[Member, ...]

    @property
    def elements(self) -> int:
        """The elements of a part."""
        return -(-sum(member.elements for member in self.members) // self.ranks)

    @property
    def padding(self) -> int:
        """The zeros at the end of the row."""
        return self.ranks * self.elements - sum(member.elements for member in self.members)

    def places(self) -> Iterator[tuple[int, Member]]:
        """Each member behind the place in the row where it begins."""
        first = 0
        for member in self.members:
            yield first, member
            first += member.elements

    def moments(self, kind: str, initial: Initial) -> Shard:
        """The like of moments: one for each member, called by its kind and the member's name."""
        members = (replace(m, name=f"{kind}/{m.name}", initial=initial) for m in self.members)
        return Shard(self.ranks, tuple(members))

    @property
    def details(self) -> dict[str, Any]:
        """What the text of a graph says of it."""
        members = tuple((m.name, m.shape, m.initial.kind, m.initial.scale) for m in self.members)
        return {"ranks": self.ranks, "members": members}

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise `OptionError` unless a state of that shape can be such a part."""
        if not self.members or self.ranks < 1 or shape != (self.elements,):
            raise OptionError(
                f"{name!r} is one of {self.ranks} parts of a row of {len(self.members)} members: "
                f"({self.elements},), got {shape}"
            )


def overlap(first: int, length: int, other_first: int, other_length: int) -> tuple[slice, slice]:
    """Where two intervals overlap, as slices of each; both empty where they do not."""
    begin = max(first, other_first)
    end = max(begin, min(first + length, other_first + other_length))
    return slice(begin - first, end - first), slice(begin - other_first, end - other_first)
