"""Independent checker of plans that share one arena, for steps of any of them in any order.

`check_plan` proves that a step of one plan corrupts none of its values. Between steps, only states
are live. So the plans may alternate if each state has the same bytes, layout and meaning in all
plans that have it, and no plan writes to the states of another one.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import Any

from graphc.errors import PlanError
from graphc.ir.contents import Contents
from graphc.ir.names import FLOAT8_STATES
from graphc.plans.check.check_plan import check_plan
from graphc.plans.memory_plan import MemoryPlan

CURE = "create the family again"


def check_family(plans: Sequence[MemoryPlan], arena_bytes: int) -> None:
    """Raise `PlanError` unless steps of these plans may alternate in one arena.

    Each plan must be valid and fit into `arena_bytes`. All must have the same device, the same
    states at the same offsets with the same strides, and write to no constant of another plan.
    """
    for number, plan in enumerate(plans):
        check_plan(plan)
        if any(state.on_host for state in plan.graph.states):
            raise PlanError(f"plan {number} has states in host memory; {CURE} without them")
        if plan.arena_bytes > arena_bytes:
            raise PlanError(
                f"plan {number} needs {plan.arena_bytes} bytes, but the arena of the family has "
                f"{arena_bytes}; {CURE}"
            )
    first = plans[0]
    for number, plan in enumerate(plans):
        if (plan.device, plan.alignment) != (first.device, first.alignment):
            raise PlanError(
                f"plan {number} is for {plan.device.name} with alignment {plan.alignment}, but "
                f"plan 0 for {first.device.name} with alignment {first.alignment}; {CURE}"
            )
        _check_states(plan, first, number)
    constants = _constants(plans)
    for number, plan in enumerate(plans):
        _check_writes(plan, constants, number)


def _check_states(plan: MemoryPlan, first: MemoryPlan, number: int) -> None:
    """Compare the states of a plan that steps may change with those of the first plan."""
    own, expected = _places(plan), _places(first)
    for name in sorted(own.keys() ^ expected.keys()):
        has, lacks = (number, 0) if name in own else (0, number)
        cure = (
            EIGHT_BITS if name.startswith(FLOAT8_STATES) else "build the same layers for all sizes"
        )
        raise PlanError(
            f"plan {has} has a state {name!r}, but plan {lacks} does not; {cure}", [name]
        )
    for name, found in own.items():
        for what, given, right in zip(WHAT, found, expected[name], strict=True):
            if given != right:
                raise PlanError(
                    f"the state {name!r} has the {what} {given} in plan {number}, but {right} in "
                    "plan 0; shapes, initial values and layouts of states must not depend on the "
                    "size",
                    [name],
                )


EIGHT_BITS = (
    "8-bit operands need rows that are a multiple of 16 in every size: choose such sizes (for the "
    "last batch of an epoch, drop_last=True), or precision='bf16'"
)

WHAT = ("type", "role", "initial value", "offset", "strides")


def _places(plan: MemoryPlan) -> dict[str, tuple[Any, ...]]:
    """Map each state that steps may change to the properties that all plans must share."""
    states = (state for state in plan.graph.states if not isinstance(state.initial, Contents))
    return {
        state.name: (
            state.type, state.role, state.initial, plan.address(state),
            plan.placements[state].strides,
        )
        for state in states
    }  # fmt: skip


Span = tuple[int, int, str]
"""The bytes `[first, last)` of a constant, and the digest of its numbers."""


def _constants(plans: Sequence[MemoryPlan]) -> list[Span]:
    """Return the bytes of the constants of all plans, sorted; raise `PlanError` if they overlap."""
    found = set()
    for plan in plans:
        for state in plan.graph.states:
            if isinstance(state.initial, Contents):
                buffer = plan.buffers[plan.placements[state].buffer]
                last = buffer.offset + buffer.bytes
                strides = plan.placements[state].strides
                found.add((buffer.offset, last, f"{state.initial.digest}{strides or ''}"))
    spans = sorted(found)
    for one, other in itertools.pairwise(spans):
        if other[0] < one[1]:
            raise PlanError(f"two constants of the family share byte {other[0]}; {CURE}")
    return spans


def _check_writes(plan: MemoryPlan, spans: Sequence[Span], number: int) -> None:
    """Raise `PlanError` if a buffer of the plan, other than the constants, overlaps `spans`."""
    own = {
        plan.placements[state].buffer
        for state in plan.graph.states
        if isinstance(state.initial, Contents)
    }
    for buffer in (*plan.buffers, *plan.workspaces.values()):
        if buffer.index in own or not buffer.bytes:
            continue
        after = bisect.bisect_left(spans, (buffer.offset + buffer.bytes,))
        if after and spans[after - 1][1] > buffer.offset:
            values = plan.residents.get(buffer.index, ())
            name = plan.graph.names[values[0]] if values else f"buffer {buffer.index}"
            raise PlanError(
                f"{name} of plan {number} would overwrite a constant of another plan; {CURE}",
                [name],
            )
