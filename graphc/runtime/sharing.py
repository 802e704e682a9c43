"""Sharing of states: a program uses states in the arena of another program, their owner.

Nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphc.errors import OptionError
from graphc.ir.graph import State
from graphc.ir.types import contiguous_strides
from graphc.plans.memory_plan import MemoryPlan
from graphc.runtime.ranks.held import Held

COPY = "program.states.update({name: owner.states[name] for name in program.states})"


def lent_buffers(
    plan: MemoryPlan,
    owner: MemoryPlan,
    held: Mapping[str, Held],
    buffer_of: Callable[[State], Any],
) -> dict[int, Any]:
    """Map the indices of a plan's state buffers to the owner's buffers.

    `buffer_of` returns a buffer of the owner, and `held` has the states of the owner by name.
    Raises `OptionError` if a state is missing or has another type or layout, and if a step updates
    one.
    """
    if plan.device.kind != owner.device.kind:
        raise OptionError(
            f"states belong to a program on {owner.device.name}, but the plan is for "
            f"{plan.device.name}; plan for the same device, or copy them: {COPY}"
        )
    replaced = (state for node in plan.graph.effects for state in node.replaced.values())
    if (state := next((s for s in replaced if isinstance(s, State)), None)) is not None:
        raise OptionError(
            f"a step updates {plan.graph.names[state]}, but only a program that does not change "
            f"its states can use those of another; omit states= and copy them: {COPY}"
        )
    found = {}
    for state in plan.graph.states:
        if state.role != "constant":
            theirs = _same(plan, state, owner, held)
            found[plan.placements[state].buffer] = buffer_of(theirs)
    return found


def _same(plan: MemoryPlan, state: State, owner: MemoryPlan, held: Mapping[str, Held]) -> State:
    """Return the owner's state with the same name; raise `OptionError` if it cannot be shared."""
    if state.name not in held:
        raise OptionError(
            f"the other program has no state {state.name!r}; give both networks the same scopes "
            f"and names, or omit states= and copy them: {COPY}"
        )
    theirs = held[state.name]
    if theirs.type != state.type:
        raise OptionError(
            f"{state.name!r} is {state.type}, but {theirs.type} in the other program; build both "
            "networks with the same sizes and precision"
        )
    if theirs.first is not None:
        raise OptionError(
            f"{state.name!r} is sharded over ranks, so this rank has only a part; omit "
            f"states= and copy them: {COPY}"
        )
    if state.on_host or theirs.state.on_host:
        raise OptionError(
            f"{state.name!r} is in host memory and cannot be shared; plan without host_states, or "
            f"omit states= and copy them: {COPY}"
        )
    if owner.alignment % plan.alignment or _layout(plan, state) != _layout(owner, theirs.state):
        raise OptionError(
            f"{state.name!r} has another layout or alignment in the other program; omit "
            f"states= and copy them: {COPY}"
        )
    return theirs.state


def _layout(plan: MemoryPlan, state: State) -> tuple[int, tuple[int, ...]]:
    placement = plan.placements[state]
    return placement.offset, placement.strides or contiguous_strides(state.type)
