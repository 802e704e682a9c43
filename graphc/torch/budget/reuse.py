"""Reuse of schedules for new sizes: a plan of the same steps is a candidate for the next one.

A new batch size or sequence length usually changes the sizes and times of steps, but not which
steps read which values. The sequence of an earlier plan is then valid for the new sizes, and its
peak and time are computed anew. It replaces the solver if it serves the goal as well as it did
before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from graphc.planner.problem import Problem
from graphc.planner.recompute.solver import Schedule
from graphc.torch.budget.planner import TorchPlanner

NEAREST = 2
"""Number of earlier plans tried: those with the most similar peaks without recomputation."""

BYTES_SLACK, TIME_SLACK = 1.02, 1.15
"""Factors by which relative bytes and times may exceed those of the earlier plan.

Measured times of small ops vary by about a tenth.
"""


class Candidate(NamedTuple):
    """A schedule and the planner of its sizes."""

    planner: TorchPlanner
    plan: Schedule

    @property
    def bytes_ratio(self) -> float:
        """The bytes beside the resident ones, relative to those without recomputation."""
        fixed, whole = self.planner.problem.fixed_bytes, self.planner.no_recompute.peak_bytes
        return (self.plan.peak_bytes - fixed) / max(whole - fixed, 1)

    @property
    def time_ratio(self) -> float:
        """The recomputation time, relative to a step without recomputation."""
        return self.plan.extra_cost / (self.planner.seconds or 1.0)


def reused(
    planner: TorchPlanner,
    budget: int | None,
    max_extra_time: float | None,
    earlier: Iterable[Candidate],
) -> Schedule | None:
    """Return an earlier plan's schedule for the sizes of `planner`, or None if it is worse.

    It must keep to the budget of bytes, if there is one, and to `max_extra_time`, a fraction.
    Without a budget it must save as many bytes as before, relative to the step. `earlier` should
    be plans of the solver for the same goal, so that successive reuse loses no more than once.
    """
    if budget is not None and planner.no_recompute.peak_bytes <= budget:
        return None  # the solver returns at once
    for each in _nearest(planner, earlier):
        sequence = each.plan.sequence
        found = planner.of(sequence) if budget is None else planner.fitted(sequence, budget)
        if found is None:
            continue
        now = Candidate(planner, found)
        most = TIME_SLACK * each.time_ratio if max_extra_time is None else max_extra_time
        saves = budget is not None or now.bytes_ratio <= BYTES_SLACK * each.bytes_ratio
        if saves and now.time_ratio <= most:
            return found
    return None


def _nearest(planner: TorchPlanner, earlier: Iterable[Candidate]) -> list[Candidate]:
    size, structure = planner.no_recompute.peak_bytes, _structure(planner.problem)
    same = (each for each in earlier if _structure(each.planner.problem) == structure)
    return sorted(same, key=lambda e: abs(e.planner.no_recompute.peak_bytes - size))[:NEAREST]


def _structure(problem: Problem) -> tuple[object, ...]:
    """Return the fields of a problem that determine which sequences are valid."""
    return (
        problem.inputs,
        problem.outputs,
        problem.overwrites,
        problem.once,
        problem.live_out,
        problem.runs,
    )
