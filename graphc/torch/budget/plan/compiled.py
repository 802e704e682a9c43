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

TRIALS = 4
"""Maximum number of corrected capacities; to lower a schedule takes a tenth of the first call."""

SMALLEST = (1.0, 1.05, 1.1, 1.15)
"""Capacities that are tried at last, over that of the smallest schedule: its kernels may not be the
smallest."""

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
    """Yield plans of different schedules, until one uses the budget, or no more are found.

    If none of a corrected capacity fits, the smallest ones follow; these do not depend on the
    budget, so that the fewest bytes that an error names are found again.
    """
    schedule: Schedule | None = adapted or planner.within(budget) or planner.least
    seen = set[tuple[int, ...]]()
    has_fitted = False
    for _ in range(TRIALS):
        if schedule is None or tuple(schedule.sequence) in seen:
            break
        seen.add(tuple(schedule.sequence))
        plan = made(schedule)
        yield plan
        room = budget - plan.peak_bytes
        has_fitted |= room >= 0
        if 0 <= room <= CLOSE * budget or (room > 0 and schedule is planner.fastest):
            return
        schedule = planner.within(schedule.peak_bytes + room)
    least = planner.least
    smallest = (planner.within(int(factor * least.peak_bytes)) for factor in SMALLEST)
    for schedule in () if has_fitted else (least, *smallest):
        if schedule is not None and tuple(schedule.sequence) not in seen:
            seen.add(tuple(schedule.sequence))
            yield made(schedule)


def compiled_curve(planner: TorchPlanner, made: Made) -> list[Planned]:
    """Return the Pareto-optimal plans found, from the most bytes to the fewest."""
    most, least = planner.fastest.peak_bytes, planner.least.peak_bytes
    schedules = [planner.fastest, planner.least]
    schedules += filter(None, (planner.within(b) for b in between(least, most, POINTS)))
    distinct = {tuple(each.sequence): each for each in schedules}
    plans = map(made, distinct.values())
    return undominated(plans, lambda each: (each.peak_bytes, each.report.extra_time))[::-1]
