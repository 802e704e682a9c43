"""Plans of one network for several sizes, which share one arena and its states.

The arena begins with a region for the states of all plans: those that steps may change, in the
order of their names, then the constants. A state has the same offset in each plan that has it. A
constant whose numbers depend on the size belongs to some of the plans only, and the others leave
its bytes unused. All other values follow the region, as each plan placed them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from graphc.byte_sizes import format_bytes
from graphc.errors import OptionError
from graphc.ir.contents import Contents
from graphc.ir.graph import Node, State
from graphc.ir.types import align
from graphc.plans.memory_plan import Buffer, MemoryPlan
from graphc.plans.streams import Streams

Size = Mapping[str, Any]
"""The arguments of the function that builds the network for one size."""

Key = tuple[bool, str, int]
"""A state in all plans: whether it is a constant, its name or the digest of its numbers, and the
number of constants with the same digest before it."""


@dataclass(frozen=True, eq=False, repr=False)
class FamilyPlan:
    """The plans of a network for several sizes, in one arena.

    `plans` has one plan per entry of `sizes`, with the same states at the same offsets. The first
    `state_bytes` bytes of the arena hold the states of all plans. Printing it gives a table.
    """

    sizes: tuple[Size, ...]
    plans: tuple[MemoryPlan, ...]
    state_bytes: int

    @property
    def arena_bytes(self) -> int:
        """The bytes of the arena: those of the largest plan."""
        return max(plan.arena_bytes for plan in self.plans)

    @property
    def largest(self) -> MemoryPlan:
        """The plan with the largest arena."""
        return max(self.plans, key=lambda plan: plan.arena_bytes)

    def as_json(self) -> dict[str, Any]:
        """Return the figures of the table as a JSON object."""
        rows = [
            {
                "size": dict(size),
                "arena_bytes": plan.arena_bytes,
                "live_bytes": plan.live_bytes,
                "bound_bytes": plan.bound_bytes,
                "recomputed_nodes": plan.recomputation.nodes,
                "extra_flops_fraction": plan.recomputation.extra_flops_fraction,
                "extra_time_fraction": plan.recomputation.extra_time_fraction,
            }
            for size, plan in zip(self.sizes, self.plans, strict=True)
        ]
        return {"arena_bytes": self.arena_bytes, "state_bytes": self.state_bytes, "sizes": rows}

    def __str__(self) -> str:
        names = [shown(size) for size in self.sizes]
        width = max(len("size"), *map(len, names))
        head = f"{'size':<{width}}  {'arena':>11}  {'recomputed':>14}  {'extra time':>10}"
        rows = [
            f"{name:<{width}}  {format_bytes(plan.arena_bytes):>11}  "
            f"{f'{plan.recomputation.nodes:,} nodes':>14}  "
            f"{plan.recomputation.extra_time_fraction:>+10.1%}"
            for name, plan in zip(names, self.plans, strict=True)
        ]
        last = (
            f"one arena of {format_bytes(self.arena_bytes)} for all sizes; its first "
            f"{format_bytes(self.state_bytes)} are the states"
        )
        return "\n".join([head, *rows, last])


def shown(size: Size) -> str:
    """Return a size as on a command line, such as ``seq_len=128 batch=4``."""
    return " ".join(f"{name}={each}" for name, each in size.items())


def in_one_arena(sizes: Sequence[Size], plans: Sequence[MemoryPlan]) -> FamilyPlan:
    """Return the plans with a common region of states at the start of the arena.

    The region of each plan may only grow, by the constants of other plans. Values above it keep
    their distances, so a valid plan remains valid. Raises `OptionError` if states are on the host.
    """
    sizes_of: dict[Key, int] = {}
    for plan in plans:
        if plan.host_state_bytes:
            raise OptionError(
                "plans of several sizes do not support states in host memory; omit host_states"
            )
        for key, buffer in _states(plan):
            sizes_of[key] = max(sizes_of.get(key, 0), align(buffer.bytes, plan.alignment))
    offsets, end = {}, 0
    for key in sorted(sizes_of):
        offsets[key] = end
        end += sizes_of[key]
    return FamilyPlan(
        tuple(sizes), tuple(_with_states_at(plan, offsets, end) for plan in plans), end
    )


def _states(plan: MemoryPlan) -> Iterator[tuple[Key, Buffer]]:
    """Yield the key and the buffer of each state."""
    seen = Counter[str]()
    for state in plan.graph.states:
        yield _key(state, seen), plan.buffers[plan.placements[state].buffer]


def _key(state: State, seen: Counter[str]) -> Key:
    if not isinstance(state.initial, Contents):
        return False, state.name, 0
    digest = state.initial.digest
    seen[digest] += 1
    return True, digest, seen[digest]


def _with_states_at(plan: MemoryPlan, offsets: Mapping[Key, int], end: int) -> MemoryPlan:
    """Return the plan with its states at these offsets, and all other buffers from `end` on."""
    grown = end - plan.state_bytes
    place = {buffer.index: offsets[key] for key, buffer in _states(plan)}

    def moved(buffer: Buffer) -> Buffer:
        return replace(buffer, offset=place.get(buffer.index, buffer.offset + grown))

    workspaces: dict[Node, Buffer] = {n: moved(buffer) for n, buffer in plan.workspaces.items()}
    return replace(
        plan,
        buffers=tuple(map(moved, plan.buffers)),
        workspaces=workspaces,
        slots=tuple(replace(slot, buffer=moved(slot.buffer)) for slot in plan.slots),
        arena_bytes=plan.arena_bytes + grown,
        strategy_bytes={name: size + grown for name, size in plan.strategy_bytes.items()},
        streams=None if plan.streams is None else _grown(plan.streams, grown),
    )


def _grown(streams: Streams, grown: int) -> Streams:
    choices = (replace(each, arena_bytes=each.arena_bytes + grown) for each in streams.choices)
    return replace(streams, choices=tuple(choices))
