"""Plans whose kernels a compiler fuses.

Kernels take fewer bytes than the schedule that they implement where they are fused, and more where
fusion delays a use. So each schedule is lowered to kernels, without code, and the capacity of the
planner is corrected by the difference. It is nearly the same for all schedules of a module, except
for the smallest ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from graphc.byte_sizes import exact_bytes
from graphc.errors import BudgetError
from graphc.planner.goals import between, undominated
from graphc.planner.recompute.solver import Schedule
from graphc.torch.budget.plan.planned import Planned
from graphc.torch.budget.plan.planner import TorchPlanner

TRIALS = 5
"""Maximum number of schedules that are lowered for one plan; each takes a tenth of the first
call."""

CLOSE = 0.01
"""Fraction of a budget that may stay unused where more bytes may save time."""

POINTS = 8
"""Number of schedules on a trade-off curve, including both ends."""

Made = Callable[[Schedule], Planned]
"""Returns the plan of a schedule, with the peak of its kernels."""


def compiled_within(
    planner: TorchPlanner, budget: int, adapted: Schedule | None, made: Made, name: str
) -> Planned:
    """Return the fastest plan found whose kernels take at most `budget` bytes.

    `adapted` is the schedule of an earlier plan, if it is tried first. Raises `BudgetError` if no
    plan fits; `name` describes the limit.
    """
    best: Planned | None = None
    fewest = sys.maxsize
    for plan in _tried(planner, budget, adapted, made):
        fewest = min(fewest, plan.peak_bytes)
        is_better = best is None or plan.report.extra_time < best.report.extra_time
        if plan.peak_bytes <= budget and is_better:
            best = plan
    if best is not None:
        return best
    raise BudgetError(
        f"no compiled step within {name}{exact_bytes(budget)} was found; the smallest one needs "
        f"{exact_bytes(fewest, up=True)}. Raise the budget, reduce the batch, or plan without "
        "compile",
        fewest,
        planner.problem.fixed_bytes,
    )


def _tried(
    planner: TorchPlanner, budget: int, adapted: Schedule | None, made: Made
) -> Iterator[Planned]:
    """Yield plans of different schedules, until one uses the budget, or no more are found."""
    schedule, seen, tight = adapted or planner.within(budget), set[tuple[int, ...]](), 1.0
    for _ in range(TRIALS):
        if schedule is None:
            schedule = planner.least
        while tuple(schedule.sequence) in seen and tight < 1.2:
            tight += 0.05  # the smallest schedules may not have the smallest kernels
            schedule = planner.within(int(planner.least.peak_bytes * tight)) or planner.least
        if tuple(schedule.sequence) in seen:
            return
        seen.add(tuple(schedule.sequence))
        plan = made(schedule)
        yield plan
        room = budget - plan.peak_bytes
        if 0 <= room <= CLOSE * budget or (room > 0 and schedule is planner.fastest):
            return
        if room > 0 and tight > 1.0:
            return
        schedule = planner.within(schedule.peak_bytes + room)


def compiled_curve(planner: TorchPlanner, made: Made) -> list[Planned]:
    """Return the Pareto-optimal plans found, from the most bytes to the fewest."""
    most, least = planner.fastest.peak_bytes, planner.least.peak_bytes
    schedules = [planner.fastest, planner.least]
    schedules += filter(None, (planner.within(b) for b in between(least, most, POINTS)))
    distinct = {tuple(each.sequence): each for each in schedules}
    plans = map(made, distinct.values())
    return undominated(plans, lambda each: (each.peak_bytes, each.report.extra_time))[::-1]
