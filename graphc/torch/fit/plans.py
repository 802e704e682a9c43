"""The peak of a step as `aot_eager` runs it, and as graphc plans it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from graphc.errors import BudgetError
from graphc.torch.budget.lives import Replay
from graphc.torch.budget.make_step import planned
from graphc.torch.budget.step import PlannedStep
from graphc.torch.fit.eager import EagerPeak, scalar_of
from graphc.torch.fit.recorder import ACTIVATIONS, GRADIENTS, KINDS, STATES
from graphc.torch.fit.step import ALLOCATOR, Prediction, Request, call_of, reserved_bytes

MOST_PLANS = 4
"""The number of plans that are tried, since the allocator needs bytes beside those of a plan."""

RESIDENT = ("parameters", "buffers", "inputs", STATES)
"""Kinds of bytes that exist before a step, besides the workspaces that libraries keep."""

Entry = tuple[str, int, int]
"""A kind, a key and bytes, which are negative for a release."""


@dataclass(frozen=True)
class PlannedPeaks:
    """Peaks in bytes, states of the optimizer included, and the step of the plan.

    `planned_bytes` is the peak of the forward and backward pass. `prediction` has the optimizer's
    update too, and the rounding of the allocator. `extra_time` is a fraction of a step.
    """

    aot_eager_bytes: int
    planned_bytes: int
    extra_time: float
    prediction: Prediction


def planned_peaks(request: Request, plain: Prediction) -> PlannedPeaks:
    """Return the peaks of a request's step under torch.compile's graph.

    `plain` is the prediction of the request, which must have no recomputation by torch. The plan is
    the fastest of those that fit the memory; if none fits, of the tried ones that with the fewest
    bytes. Raises `TorchError` for a module that cannot be planned.
    """
    capacity = request.memory.usable_bytes
    budget, tried, needed = capacity, list[PlannedPeaks](), list[int]()
    for _ in range(MOST_PLANS):
        try:
            step, is_least = _planned(request, plain, budget), False
        except BudgetError as error:
            step, is_least = _planned(request, plain, error.least_bytes), True
        tried.append(_peaks_of(request, plain, step))
        needed.append(tried[-1].prediction.needed_bytes)
        excess = needed[-1] - capacity
        if excess <= 0 or is_least or (len(needed) > 1 and needed[-1] >= needed[-2]):
            break
        budget = max(1, tried[-1].planned_bytes - excess)
    return tried[needed.index(min(needed))]


def _peaks_of(request: Request, found: Prediction, step: PlannedStep) -> PlannedPeaks:
    report = step.report
    is_accumulating = request.options.accumulate > 1
    before = _before(found.eager, (*RESIDENT, GRADIENTS) if is_accumulating else RESIDENT)
    planned = list(_of_plan(step.plans[-1].replay))
    if is_accumulating:  # what is new is added to the gradients of earlier micro-batches, and freed
        planned += _freed(planned)
    entries = [*before, *planned, *_update(found.eager)]
    prediction = replace(
        found,
        by_kind_bytes=_by_kind(request, entries),
        seconds=found.seconds * (1 + report.extra_time),
    )
    return PlannedPeaks(report.plain_bytes, report.peak_bytes, report.extra_time, prediction)


def _planned(request: Request, found: Prediction, budget_bytes: int) -> PlannedStep:
    module, loss_fn, args, kwargs = call_of(request)
    return planned(
        module,
        args,
        kwargs,
        budget=budget_bytes,
        loss_fn=loss_fn,
        loss=scalar_of,
        return_outputs=False,
        reserve=found.state_bytes,
        accumulate=request.options.accumulate > 1,
        autocast=request.autocast,
        device=request.device.name,
    )


def _by_kind(request: Request, entries: Sequence[Entry]) -> dict[str, int]:
    """Return the bytes at the peak of a step, and on a GPU the rounding of the allocator."""
    live = list(accumulate(size for _, _, size in entries))
    at = max(range(len(live)), key=live.__getitem__)
    by_kind: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
    for kind, _, size in entries[: at + 1]:
        by_kind[kind] += size
    if request.device.kind == "cuda":
        keys: dict[tuple[str, int], int] = {}
        trace = [(keys.setdefault((kind, key), len(keys)), size) for kind, key, size in entries]
        by_kind[ALLOCATOR] = reserved_bytes(request, trace) - live[at]
    return dict(by_kind)


def _before(eager: EagerPeak, resident: Collection[str]) -> Iterator[Entry]:
    """Yield what exists before each step but the first: resident kinds, and kept workspaces."""
    recorder = eager.recorder
    for key, size in eager.trace[: eager.second]:
        kind = recorder.kinds[key]
        if size > 0 and (kind in resident or key in recorder.workspaces):
            yield kind, key, size


def _of_plan(plan: Replay) -> Iterator[Entry]:
    """Yield the allocations and releases of the forward and the backward pass.

    What the step returns stays: the loss, and the gradients of the parameters.
    """
    begun: dict[int, list[int]] = {}
    ended: dict[int, list[int]] = {}
    for number, life in enumerate(plan.lives):
        begun.setdefault(life.first, []).append(number)
        if not life.is_held:
            ended.setdefault(life.last, []).append(number)
    is_gradient = [life.is_held and life.first > plan.turn for life in plan.lives]
    kinds = [GRADIENTS if each else ACTIVATIONS for each in is_gradient]
    for now, moment in enumerate(plan.moments):
        for number in ended.get(now, ()):
            yield kinds[number], -1 - number, -plan.lives[number].bytes
        for number in begun.get(now, ()):
            yield kinds[number], -1 - number, plan.lives[number].bytes
        if moment.workspace:
            yield "workspace", -1 - len(plan.lives) - now, moment.workspace
            yield "workspace", -1 - len(plan.lives) - now, -moment.workspace
    for number in ended.get(len(plan.moments), ()):
        yield kinds[number], -1 - number, -plan.lives[number].bytes


def _freed(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Yield releases of the gradients that are live after the entries."""
    held: Counter[int] = Counter()
    for kind, key, size in entries:
        if kind == GRADIENTS:
            held[key] += size
    return ((GRADIENTS, key, -size) for key, size in held.items() if size)


def _update(eager: EagerPeak) -> Iterator[Entry]:
    """Yield the allocations of the optimizer's update, and their releases."""
    recorder, made = eager.recorder, set[int]()
    for (key, size), op in zip(eager.trace[eager.second :], eager.ops, strict=True):
        if size > 0 and recorder.ops[op].phase == "update":
            made.add(key)
        if key in made:
            yield recorder.kinds[key % len(recorder.kinds)], key, size
