"""Plans of a step for several sizes, made before its first call, and the choice for each call."""

from __future__ import annotations

import copy
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from graphc.compiler.bucketing import buckets, interpolated, spread
from graphc.errors import BudgetError, TorchError, level_of_caller
from graphc.torch.budget.options import Given
from graphc.torch.budget.plan.planned import Planned
from graphc.torch.budget.report.report import Report
from graphc.torch.budget.report.sizes import PlannedSize
from graphc.torch.budget.sizes.arguments import Arguments, Input
from graphc.torch.budget.sizes.checked import refuse_changed_loss
from graphc.torch.budget.sizes.options import (
    Described,
    Requested,
    Size,
    UnplannedError,
    description,
    shown,
)
from graphc.torch.budget.trace.sized import UnsizedError
from graphc.torch.budget.trace.step import Step
from graphc.torch.private import maybe_mark_dynamic

POINTS = 4
"""Maximum number of lengths of a histogram that are planned to time a step; others between them
are interpolated."""

ROUNDS = 3
"""Maximum number of rounds in which all sizes are planned, until a round plans nothing.

A trace with symbolic sizes may replace an earlier trace with fixed sizes, without its plans.
"""


class _Plans:
    """The plans of a step by size, while they are made."""

    def __init__(self, step: Step, arguments: Arguments, example: Given) -> None:
        self._step, self._arguments, self._example = step, arguments, example
        self.known: dict[str, tuple[Size, Described, Planned]] = {}
        self._seconds: dict[str, float] = {}

    def make(self, size: Size, varying: Sequence[Input] = ()) -> bool:
        """Plan a size, and return whether this made a new plan; marks inputs as `varying`."""
        step, name = self._step, shown(size)
        given, count = self._arguments.resized(self._example, size), len(step.plans)
        for each in varying:
            tensor = given[0][each.place] if isinstance(each.place, int) else given[1][each.place]
            for dimension in each.axes:
                maybe_mark_dynamic(tensor, dimension)
        started = time.perf_counter()
        try:
            step.plan(*given)
        except BudgetError as error:
            raise BudgetError(
                f"{name}: {error}", error.least_bytes, error.bound_bytes, error.node, error.values
            ) from None
        spent = time.perf_counter() - started
        self._seconds[name] = self._seconds.get(name, 0.0) + spent
        is_new = len(step.plans) > count
        if is_new or name not in self.known:
            self.known[name] = size, description(given), step.plans[-1]
        return is_new

    def seconds_of(self, size: Size) -> float:
        """Return the time of a step of a planned size, by its measured nodes."""
        report = self.known[shown(size)][2].report
        return float(report.seconds * (1 + report.extra_time))

    def rows(self, sizes: Sequence[Size]) -> tuple[PlannedSize, ...]:
        """Return the rows of a report."""
        names = [shown(size) for size in sizes]
        reports = [self.known[name][2].report for name in names]
        return tuple(
            PlannedSize(name, report.peak_bytes, report.extra_time, self._seconds[name], report)
            for name, report in zip(names, reports, strict=True)
        )


class Sizes:
    """The planned sizes of a step; a call is padded to the smallest one that holds it."""

    def __init__(self, requested: Requested) -> None:
        self._requested = requested
        self._arguments: Arguments | None = None
        self._planned: list[tuple[Size, Described]] = []
        self._rows: tuple[PlannedSize, ...] = ()
        self._warned: set[str] = set()
        self._planning = threading.local()
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> Sizes:
        """Return sizes with the same options, without plans."""
        return Sizes(copy.copy(self._requested))

    @property
    def _is_planning(self) -> bool:
        return getattr(self._planning, "now", False)

    def fitted(self, step: Step, given: Given) -> Given | None:
        """Return the arguments to run instead of these, padded to a planned size.

        The first call plans all sizes. For a call that no size holds, returns None if it may be
        planned when it occurs, and raises `TorchError` otherwise.
        """
        if self._is_planning:
            return given
        self.plan(step, given)
        assert self._arguments is not None
        try:
            return self._arguments.fitted(given, self._planned)
        except UnplannedError as error:
            if self._requested.unplanned == "raise":
                raise
            self._warn(given, error)
            return None

    def plan(self, step: Step, example: Given) -> bool:
        """Plan all sizes, and return True; return False if they are planned already.

        The example need not have a planned size.
        """
        if self._planned or self._is_planning:
            return False
        with self._lock:
            if not self._planned:
                self._plan(step, example)
        return True

    def _warn(self, given: Given, error: Exception) -> None:
        """Warn of a call that is not planned ahead, once for the same shapes."""
        shapes = str(description(given))
        if shapes not in self._warned:
            self._warned.add(shapes)
            warnings.warn(
                f"this call is planned now, because {error}", stacklevel=level_of_caller()
            )

    def report(self, latest: Report) -> Report:
        """Return the report of the size with the largest peak, with a table of all sizes."""
        if not self._rows:
            return latest
        largest = max(self._rows, key=lambda row: row.peak_bytes)
        report: Report = largest.report
        return replace(report, sizes=self._rows)

    def most_copied(self, given: Given) -> int:
        """Return the bytes of arguments of which a call may hold copies before padding."""
        known = [described for _, described in self._planned]
        is_planned = self._is_planning or description(given) in known
        return self._arguments.most_copied(given) if self._arguments and is_planned else 0

    def _plan(self, step: Step, example: Given) -> None:
        """Plan all sizes, from the smallest to the largest."""
        self._arguments = Arguments(step.module, step.loss_fn, example, self._requested)
        refuse_changed_loss(step, self._arguments, example, self._requested.candidates)
        self._planning.now = True
        try:
            plans = _Plans(step, self._arguments, example)
            sizes = self._all(plans)
            self._planned = [plans.known[shown(size)][:2] for size in sizes]
            self._rows = plans.rows(sizes)
        finally:
            self._planning.now = False
            step.remember_call(example)  # planning a size has replaced it

    def _all(self, plans: _Plans) -> list[Size]:
        """Return the sizes in ascending order after planning them."""
        sizes = list(self._requested.sizes)
        if self._requested.axis is not None:
            sizes = self._chosen(plans)
        assert self._arguments is not None
        sizes.sort(key=self._arguments.elements)
        self._first(plans, sizes)
        for _ in range(ROUNDS):
            if not sum([plans.make(size) for size in sizes]):
                break
        return sizes

    def _first(self, plans: _Plans, sizes: Sequence[Size]) -> None:
        """Plan the first size, by a trace for all of them if torch can make one."""
        assert self._arguments is not None
        if plans.known:
            return
        if len(sizes) > 1:
            try:
                plans.make(sizes[0], self._arguments.inputs)
            except (TorchError, UnsizedError):
                pass  # sizes that the module reads as numbers: each has a trace of its own
            else:
                return
        plans.make(sizes[0])

    def _chosen(self, plans: _Plans) -> list[Size]:
        """Return the sizes for the histogram with the least expected time of a step."""
        requested, axis = self._requested, self._requested.axis
        assert axis is not None
        points = spread(list(requested.histogram), POINTS)
        sizes: list[Size] = [{axis: point} for point in points]
        self._first(plans, sizes)
        for size in sizes:
            plans.make(size)
        cost = interpolated(points, [plans.seconds_of(size) for size in sizes])
        found = buckets(requested.histogram, requested.most, cost=cost)
        return [{axis: length} for length in found.sizes]
