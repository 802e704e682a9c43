"""The peak of a step as torch.compile with `aot_eager` partitions it, and as graphc plans it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from graphc.errors import BudgetError, GraphcError, TorchError
from graphc.torch.budget.audit import PARTITIONERS, Partition
from graphc.torch.budget.check.graphs import Replay
from graphc.torch.budget.check.replay import replay
from graphc.torch.budget.goal import Goal, checked, to_replay
from graphc.torch.budget.plan.planned import Planned
from graphc.torch.budget.step import PlannedStep
from graphc.torch.budget.trace.backend import Rest
from graphc.torch.budget.trace.held import Held
from graphc.torch.budget.trace.joint import Joint
from graphc.torch.budget.trace.settings import Autocast, Loss
from graphc.torch.budget.trace.step import StepOptions
from graphc.torch.budget.trace.without_data import on_profile
from graphc.torch.fit.eager import EagerPeak, scalar_of
from graphc.torch.fit.gpu_rules import gpu_functions
from graphc.torch.fit.recorder import ACTIVATIONS, GRADIENTS, KINDS, STATES
from graphc.torch.fit.step import (
    ALLOCATOR,
    Prediction,
    Request,
    call_of,
    reserved_bytes,
    with_options,
)

UNLIMITED = 1 << 62
"""A budget in bytes that every plan fits."""

MOST_PLANS = 4
"""The number of plans that are tried, since the allocator needs bytes beside those of a plan."""

RESIDENT = ("parameters", "buffers", "inputs", STATES)
"""Kinds of bytes that exist before a step, besides the workspaces that libraries keep."""

Entry = tuple[str, int, int]
"""A kind, a key and bytes, which are negative for a release."""


@dataclass(frozen=True)
class PlannedPeaks:
    """Peaks in bytes, states of the optimizer included, and the step of the plan.

    `aot_eager_bytes` is that of torch's partition by minimum cut, which also recomputes what
    checkpoints mark; None if torch cannot trace it. `planned_bytes` is the peak of the forward and
    backward pass. `prediction` has the optimizer's update too, and the rounding of the allocator.
    `extra_time` is a fraction of a step without recomputation. `least` has the bytes and the time
    of the plan with the fewest bytes, if no plan within those of eager torch was found. `compiled`
    has the peaks of kernels, if they were asked for.
    """

    aot_eager_bytes: int | None
    planned_bytes: int
    extra_time: float
    prediction: Prediction
    least: tuple[int, float] | None = None
    compiled: CompiledPeaks | None = None


@dataclass(frozen=True)
class CompiledPeaks:
    """Peaks in bytes of a step that inductor compiles, states of the optimizer included.

    `torch_bytes` is that of torch.compile alone. `planned_bytes` and `extra_time` are those of the
    fastest plan found within `torch_bytes` and the memory, or of that with the fewest bytes. Time
    is a fraction of a step without recomputation.
    """

    torch_bytes: int
    planned_bytes: int
    extra_time: float


class _OfKernels(Goal):
    """A plan within given bytes and those of torch's own partition of the same joint graph, both
    after fusion."""

    peaks: CompiledPeaks

    def planned(self, joint: Joint, held: Held, sources: Any, rest: Rest, *more: Any) -> Planned:
        """Return the plan."""

        def within(budget: int) -> Planned:
            goal = Goal(budget, None, compile=True)
            return goal.planned(joint, held, sources, rest, *more)

        plain = made = within(UNLIMITED)
        try:
            forward, backward = Partition(PARTITIONERS["min-cut"]).graphs(joint, rest)
        except Exception as error:
            raise TorchError(f"torch's partitioner fails on this step: {error}") from error
        of_torch = replace(plain, forward=forward, backward=backward).lowered(more[-1], runs=False)
        limit = min(self.budget or UNLIMITED, of_torch.peak_bytes)
        if plain.peak_bytes > limit:
            try:
                made = within(limit)
            except BudgetError as error:
                with suppress(BudgetError):
                    made = within(error.least_bytes)
        extra = made.report.extra_time
        self.peaks = CompiledPeaks(of_torch.peak_bytes, made.peak_bytes, extra)
        return made


def compiled_peaks(request: Request, plain: Prediction) -> CompiledPeaks:
    """Return the peaks of a request's step as inductor compiles it.

    Its kernels are those for a CPU, which fuses nearly the same ops as for a GPU. Raises
    `TorchError` for a module that cannot be compiled.
    """
    goal = _OfKernels(request.memory.usable_bytes, None, compile=True)
    _plan(with_options(request, checkpoint="none"), plain, goal)
    return goal.peaks


class _WithMinCut(Goal):
    """A plan for any bytes, and the peak of torch's own partition of the same joint graph."""

    def __init__(self) -> None:
        super().__init__(UNLIMITED, None)
        self.min_cut_bytes: int | None = None

    def planned(self, joint: Joint, held: Held, sources: Any, rest: Rest, *more: Any) -> Planned:
        """Return the plan."""
        made = super().planned(joint, held, sources, rest, *more)
        with suppress(Exception):  # torch's partitioner may fail where a plan does not
            forward, backward = Partition(PARTITIONERS["min-cut"]).graphs(joint, rest)
            given = to_replay(made.torch_steps, forward.graph, backward.graph)
            self.min_cut_bytes = replay(replace(given, is_foreign=True)).peak.bytes
        return made


def planned_peaks(asked: Request, plain: Prediction, eager_bytes: int) -> PlannedPeaks:
    """Return the peaks of a request's step under torch.compile's graph.

    `plain` is the prediction of the request without recomputation by torch. The plan is
    the fastest of those that fit the memory, and that need at most `eager_bytes` if one does; if
    none fits, of the tried ones that with the fewest bytes. Raises `TorchError` for a module that
    cannot be planned.
    """
    request, capacity = with_options(asked, checkpoint="none"), asked.memory.usable_bytes
    plan, compiled_bytes = _without_recomputation(request, plain)
    if asked.options.checkpoint == "blocks":
        compiled_bytes = None
        with suppress(GraphcError):
            _, compiled_bytes = _without_recomputation(asked, plain)
    planner = plan.report.planner
    tried, needed = list[PlannedPeaks](), list[int]()
    budget, least = min(capacity, eager_bytes), None
    if planner.within(budget) is None:
        budget = capacity
    if (planner.within(budget) or planner.least).peak_bytes > eager_bytes:
        least = planner.least.peak_bytes, planner.least.extra_cost / planner.seconds
    for _ in range(MOST_PLANS):
        within = planner.within(budget)
        schedule = within or planner.least
        *_, replayed = checked(plan.torch_steps, schedule)
        entries = _step_of(request, plain.eager, replayed)
        tried.append(
            PlannedPeaks(
                compiled_bytes,
                schedule.peak_bytes,
                schedule.extra_cost / planner.seconds,
                replace(
                    plain,
                    by_kind_bytes=_by_kind(request, entries),
                    seconds=plain.seconds * (1 + schedule.extra_cost / planner.seconds),
                ),
                least,
            )
        )
        needed.append(tried[-1].prediction.needed_bytes)
        excess = needed[-1] - capacity
        if excess <= 0 or within is None or (len(needed) > 1 and needed[-1] >= needed[-2]):
            break
        budget = max(1, schedule.peak_bytes - excess)
    return tried[needed.index(min(needed))]


def _without_recomputation(request: Request, found: Prediction) -> tuple[Planned, int | None]:
    """Return the plan without recomputation, whose planner finds those within fewer bytes, and the
    peak of torch's partition."""
    goal = _WithMinCut()
    return _plan(request, found, goal), goal.min_cut_bytes


def _plan(request: Request, found: Prediction, goal: Goal) -> Planned:
    """Return the plan of a request's step for a goal; it has no code."""
    profile, call = on_profile(request.device.name, call_of(request))
    module, loss_fn, args, kwargs = call
    options = StepOptions(
        Loss.of(scalar_of, False),
        found.state_bytes,
        request.options.accumulate > 1,
        Autocast.of(request.autocast, module, True),
        profile,
        bool(goal.compile),
    )
    step = PlannedStep(module, loss_fn, goal, options)
    with gpu_functions() if request.device.kind == "cuda" else nullcontext():
        step.plan(args, kwargs, is_compiled=False)
    return step.plans[-1]


def _step_of(request: Request, eager: EagerPeak, replay: Replay) -> list[Entry]:
    """Return the allocations of a step of a plan, from what exists before it to the update."""
    is_accumulating = request.options.accumulate > 1
    before = _before(eager, (*RESIDENT, GRADIENTS) if is_accumulating else RESIDENT)
    entries = list(_of_plan(replay))
    if is_accumulating:  # what is new is added to the gradients of earlier micro-batches, and freed
        entries += _freed(entries)
    return [*before, *entries, *_update(eager)]


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
    is_gradient = [life.is_held and life.first > plan.boundary for life in plan.lives]
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
