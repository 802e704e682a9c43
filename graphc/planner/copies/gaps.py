"""Choice of values to copy to the host, so that a schedule with recomputation fits a budget.

A *gap* of a schedule is the stretch between two successive uses a < b of a value, without a
recomputation in between. While the value is on the host, its bytes are free in the gap. The choice
is greedy: gaps in the order in which their values are produced, as long as one covers a position
whose live bytes exceed the budget. The values produced first can be copied first, so the link is
busy from the start, and in a training step they are needed last. A second pass removes the gaps
that the later ones made unnecessary, in reverse order.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np

from graphc.planner.problem import Problem
from graphc.planner.profile import Integers


@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """A gap of a value: the position that makes it, and its uses before and after the gap."""

    made: int
    start: int
    stop: int
    value: int


def gaps_of(steps: Problem, sequence: Sequence[int], resident: Container[int]) -> list[Gap]:
    """Return the gaps of a schedule, in the order of production. Values without bytes, values
    without a producer and `resident` values have none."""
    made: dict[int, int] = {}
    used: dict[int, int] = {}
    found = []

    def use(value: int, at: int) -> None:
        if value not in made:
            return
        may_go = steps.bytes[value] and value not in resident
        if may_go and at > used[value] + 1:
            found.append(Gap(made[value], used[value], at, value))
        used[value] = at

    for at, step in enumerate(sequence):
        for value in steps.inputs[step]:
            use(value, at)
        for value in steps.outputs[step]:
            made[value] = used[value] = at
    for value in steps.live_out:
        use(value, len(sequence))
    return sorted(found)


def chosen(
    gaps: Sequence[Gap],
    size: Sequence[int],
    excess: Integers,
    host_bytes: int | None,
) -> tuple[list[Gap], bool]:
    """Return gaps that together cover the excess bytes, and whether they do so at every position.
    Their values take at most `host_bytes` on the host at a time."""
    left = excess.copy()
    host = None if host_bytes is None else np.full(len(excess) + 1, host_bytes, np.int64)
    stored_to: dict[int, int] = {}
    taken: list[Gap] = []
    for gap in gaps:
        inside = left[gap.start + 1 : gap.stop]
        if not (inside > 0).any():
            continue
        if host is not None:
            # A value stays on the host from its first gap to its last one.
            stored = host[stored_to.get(gap.value, gap.made) : gap.stop + 1]
            if (stored < size[gap.value]).any():
                continue
            stored -= size[gap.value]
            stored_to[gap.value] = max(stored_to.get(gap.value, 0), gap.stop + 1)
        inside -= size[gap.value]
        taken.append(gap)
    kept = []
    for gap in reversed(taken):
        inside = left[gap.start + 1 : gap.stop]
        if (inside > -size[gap.value]).any():
            kept.append(gap)
        else:
            inside += size[gap.value]
    return kept[::-1], not (left > 0).any()
