"""Recomputation beside copies to the host.

If a copy of a plan is left out, some positions are above the budget. There, eviction
(recompute/evict.py) recomputes other values. For it, copies are steps without cost:

    drop    reads the value, so the value is live up to there
    fetch   produces the value again and reads nothing

Both run once. The producer of a value remains the step that computes it, so eviction recomputes a
value by its producer, and fetches nothing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from graphc.planner import problem as scheduling
from graphc.planner.copies.placement import Copy
from graphc.planner.recompute.evict import evict
from graphc.planner.recompute.fill import fill


class _StepsWithCopies(scheduling.Problem):
    """Steps of a problem, followed by those of copies. Producers and last uses are those of the
    first `count` steps."""

    count: int

    @cached_property
    def producer(self) -> tuple[int, ...]:
        producers = [-1] * len(self.bytes)
        for step in range(self.count):
            for value in self.outputs[step]:
                producers[value] = step
        return tuple(producers)

    @cached_property
    def last_use(self) -> tuple[int, ...]:
        reads = [-1] * len(self.bytes)
        for step in range(self.count):
            for value in self.inputs[step]:
                reads[value] = step
        return tuple(reads)


def evicted_beside(
    steps: scheduling.Problem, sequence: Sequence[int], copies: Sequence[Copy], budget: int
) -> list[int] | None:
    """Return a sequence with more recomputation that fits the budget if the values of `copies` are
    on the host from their drops to their fetches; None if eviction fails."""
    inputs: list[tuple[int, ...]] = []
    outputs: list[tuple[int, ...]] = []
    before: dict[int, list[int]] = {}
    ordered = sorted(copies, key=lambda copy: copy.gap.stop)
    for copy in (*copies, *ordered):
        is_drop = len(inputs) < len(copies)
        value = (copy.gap.value,)
        inputs.append(value if is_drop and copy.leaves else ())
        outputs.append(() if is_drop else value)
        before.setdefault(copy.drop if is_drop else copy.fetch, []).append(
            len(steps) + len(inputs) - 1
        )
    count = len(inputs)
    mixed = _StepsWithCopies(
        cost=(*steps.cost, *[0.0] * count),
        workspace=(*steps.workspace, *[0] * count),
        inputs=(*steps.inputs, *inputs),
        outputs=(*steps.outputs, *outputs),
        overwrites=(*steps.overwrites, *[()] * count),
        bytes=steps.bytes,
        once=steps.once.union(range(len(steps), len(steps) + count)),
        live_out=steps.live_out,
        runs=steps.runs,
        fixed_bytes=steps.fixed_bytes,
    )
    object.__setattr__(mixed, "count", len(steps))
    whole: list[int] = []
    for at, step in enumerate(sequence):
        whole += [*before.get(at, ()), step]
    whole += before.get(len(sequence), [])
    found = evict(mixed, whole, budget)
    if found is None:
        return None
    return [step for step in fill(mixed, found, budget) if step < len(steps)]
