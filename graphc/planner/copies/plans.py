"""Plans of one schedule: values to copy to the host, positions of their copies, and the seconds.

A schedule with recomputation alone is a sequence of steps. `Copying.planned` chooses gaps that
bring it within a budget (gaps.py), places their copies (placement.py) and measures the seconds by
the clocks of events.py. `replaced` recomputes more instead of a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphc.planner.copies.beside_copies import evicted_beside
from graphc.planner.copies.events import Event, seconds_of
from graphc.planner.copies.gaps import Gap, chosen, gaps_of
from graphc.planner.copies.placement import Copy, events_with, placed
from graphc.planner.host_link import HostLink
from graphc.planner.problem import Problem

PRECISION = 1e-9


@dataclass(frozen=True, slots=True)
class OffloadPlan:
    """A schedule with copies to the host, its seconds, and those of its steps alone."""

    events: list[Event]
    seconds: float
    run_seconds: float
    copies: tuple[Copy, ...] = ()

    @property
    def stalls(self) -> float:
        """The seconds during which computation waits for copies."""
        return max(0.0, self.seconds - self.run_seconds)

    def is_faster(self, other: OffloadPlan | None) -> bool:
        """Return True if this plan is faster than another one by more than rounding."""
        return other is None or self.seconds < other.seconds * (1 - PRECISION)


@dataclass(frozen=True, slots=True)
class Base:
    """A schedule with recomputation alone, its live bytes by position, and its gaps."""

    sequence: Sequence[int]
    levels: np.ndarray
    gaps: list[Gap]


class Copying:
    """Plans for the steps of a problem. `resident` values are never copied."""

    def __init__(self, steps: Problem, link: HostLink, resident: frozenset[int]) -> None:
        self.steps, self.link, self.resident = steps, link, resident

    def base(self, sequence: Sequence[int]) -> Base:
        """Return a schedule with its live bytes and gaps."""
        gaps = gaps_of(self.steps, sequence, self.resident)
        return Base(sequence, self.levels(sequence), gaps)

    def levels(self, sequence: Iterable[int]) -> np.ndarray:
        """Return the live bytes by position of a schedule, with those that are always live."""
        return self.steps.levels(list(sequence)) + self.steps.fixed_bytes

    def measured(self, sequence: Sequence[int], copies: Sequence[Copy] = ()) -> OffloadPlan:
        """Return the plan of a schedule with copies."""
        events = events_with(sequence, copies)
        seconds = seconds_of(self.steps, self.link, events)
        return OffloadPlan(events, seconds, self.steps.cost_of(sequence), tuple(copies))

    def planned(
        self, base: Base, budget: int, banned: frozenset[Gap] = frozenset()
    ) -> OffloadPlan | None:
        """Return a plan for a schedule within `budget` bytes, in which the `banned` gaps stay on
        the device; None if copies do not suffice."""
        gaps = [gap for gap in base.gaps if gap not in banned]
        size, excess = self.steps.bytes, base.levels - budget
        found, is_enough = chosen(gaps, size, excess, self.link.host_bytes)
        if not is_enough:
            return None
        spare = -excess
        for gap in found:
            spare[gap.start + 1 : gap.stop] += size[gap.value]
        best: OffloadPlan | None = None
        for small_first in (False, True):
            copies = placed(self.steps, self.link, base.sequence, found, spare, small_first)
            plan = self.measured(base.sequence, copies)
            best = plan if plan.is_faster(best) else best
            if not plan.stalls:
                break
        return best

    def replaced(
        self, base: Base, plan: OffloadPlan, copy: Copy, budget: int
    ) -> tuple[Base, OffloadPlan] | None:
        """Return the faster plan that recomputes more instead of one of a plan's copies: with other
        copies only of the same values, or with any."""
        seen: set[int] = set()
        rest: list[Copy] = []
        for other in sorted(plan.copies, key=lambda each: each.gap):
            if other is not copy:
                rest.append(replace(other, leaves=other.gap.value not in seen))
                seen.add(other.gap.value)
        plans = ((each, self.planned(each, budget)) for each in self._evicted(base, rest, budget))
        found = [(each, made) for each, made in plans if made is not None]
        return min(found, key=lambda each: each[1].seconds, default=None)

    def _evicted(self, base: Base, copies: Sequence[Copy], budget: int) -> Iterator[Base]:
        """Yield the schedule that eviction brings within the budget beside copies, if any: with the
        gaps of the copied values, and with all gaps."""
        found = evicted_beside(self.steps, base.sequence, copies, budget)
        if found is not None:
            copied = {copy.gap.value for copy in copies}
            again = self.base(found)
            yield replace(again, gaps=[gap for gap in again.gaps if gap.value in copied])
            yield again
