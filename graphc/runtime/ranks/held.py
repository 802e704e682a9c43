"""Mapping of names to states: a whole state, or a member of a sharded row.

A row is a concatenation of parameters or moments, its members, of which each rank stores one part.

By name, a program has whole parameters and moments on any number of ranks, so files and user code
do not depend on that number. Reading a sharded member gathers its row from all ranks. Writing is
local: all ranks get the whole array, and each stores its own part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.ir.graph import Graph, Role, State
from graphc.ir.shards import Shard, overlap
from graphc.ir.types import TensorType
from graphc.runtime.ranks import sums
from graphc.runtime.ranks.lane import Lane

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Held:
    """A named array: a whole state, or a member of the sharded row `state` from element `first`."""

    name: str
    type: TensorType
    state: State
    first: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def role(self) -> Role:
        return self.state.role


def held_by_name(graph: Graph) -> dict[str, Held]:
    """Return all states that steps may change, by name; members of sharded rows are separate."""
    found: dict[str, Held] = {}
    for state in graph.states:
        if isinstance(state.initial, Shard):
            for first, member in state.initial.places():
                type = state.type.with_shape(member.shape)
                found[member.name] = Held(member.name, type, state, first)
        elif state.role != "constant":
            found[state.name] = Held(state.name, state.type, state)
    return found


def whole_row(lane: Lane, state: State, part: Array) -> Array:
    """Gather a sharded row from the parts of all ranks.

    All ranks must call this function.
    """
    row = np.empty(lane.wire.size * part.size, part.dtype)
    lane.run(f"the all-gather of {state.name}", sums.all_gather(lane.wire, part, row))
    return row


def member_of(row: Array, held: Held) -> Array:
    """Return a member of a gathered row, in the shape of its parameter."""
    assert held.first is not None
    return row[held.first : held.first + held.type.elements].reshape(held.shape)


def parts_written(
    rank: int, given: Iterable[tuple[Held, Array]], read: Callable[[State], Array]
) -> Iterator[tuple[State, Array]]:
    """Yield the states of a rank that change when `given` is assigned, with their new contents.

    `read` returns the current part of a sharded row.
    """
    parts: dict[State, Array] = {}
    for held, array in given:
        if held.first is None:
            yield held.state, array
            continue
        if held.state not in parts:
            parts[held.state] = read(held.state)
        part = parts[held.state]
        in_part, in_member = overlap(rank * part.size, part.size, held.first, held.type.elements)
        part[in_part] = array.reshape(-1)[in_member]
    yield from parts.items()
