"""The peak of a step as `aot_eager` runs it, and as graphc plans it."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.errors import BudgetError
from graphc.torch.budget.plans import plan
from graphc.torch.fit.step import Prediction, Request, call_of


@dataclass(frozen=True)
class PlannedPeaks:
    """Peaks in bytes, states of the optimizer included, and the plan's extra time, a fraction."""

    aot_eager_bytes: int
    planned_bytes: int
    extra_time: float


def planned_peaks(request: Request, found: Prediction, capacity_bytes: int) -> PlannedPeaks:
    """Return the peaks of a request's forward and backward pass under torch.compile's graph.

    The plan is the fastest within the capacity; if none fits, the one with the fewest bytes.
    Raises `TorchError` for a module that cannot be planned.
    """
    module, loss_fn, args, kwargs = call_of(request)
    given = {"loss_fn": loss_fn, "reserve": found.state_bytes, "kwargs": kwargs}
    try:
        made = plan(module, args, capacity_bytes, device=request.device.name, **given)
    except BudgetError as error:
        made = plan(module, args, error.least_bytes, device=request.device.name, **given)
    report = made.report
    return PlannedPeaks(report.plain_bytes, report.peak_bytes, report.extra_time)
