"""A torch module whose training step runs under a memory plan; returned by `graphc.torch.plan`."""

from __future__ import annotations

import copy
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from traceback import clear_frames
from types import MethodType
from typing import Any

import torch
from torch import fx, nn

from graphc.errors import GraphcError, TorchError
from graphc.torch.budget.check.returned import Returned
from graphc.torch.budget.goal import Goal
from graphc.torch.budget.host.host_memory import HostMemory
from graphc.torch.budget.options import Assume, Given
from graphc.torch.budget.plan.in_place import not_overwriting
from graphc.torch.budget.plan.libraries import library_workspaces
from graphc.torch.budget.plan.planned import Lower, Planned
from graphc.torch.budget.report.report import Report
from graphc.torch.budget.report.verified import Verified
from graphc.torch.budget.report.verify import verified
from graphc.torch.budget.sizes.ahead import Sizes
from graphc.torch.budget.trace.assumptions import SUBMODULE, Assumptions
from graphc.torch.budget.trace.backend import (
    Compiled,
    Graphs,
    Part,
    Rest,
    backend,
    is_run_again,
    warn_of_compile,
)
from graphc.torch.budget.trace.example import gone, results_in, weakly
from graphc.torch.budget.trace.held import held_by
from graphc.torch.budget.trace.joint import Joint
from graphc.torch.budget.trace.measure import memory_ranges
from graphc.torch.budget.trace.of_transformers import Settled, settle
from graphc.torch.budget.trace.refusals import as_graphc_error, is_of_compiling, refuse_tensors
from graphc.torch.budget.trace.replans import Replans, warn_of_replan, warn_of_sizes
from graphc.torch.budget.trace.runner import Boxed, runner
from graphc.torch.budget.trace.settings import Frozen
from graphc.torch.budget.trace.sources import sources_of
from graphc.torch.budget.trace.step import Ran, Step, StepOptions, WatchOfPart
from graphc.torch.budget.trace.tracing import (
    CALLED_BESIDE,
    apart,
    note_returned,
    refuse_stance,
    refuse_untraced,
)
from graphc.torch.budget.trace.transparent import SHARED
from graphc.torch.budget.trace.without_data import refuse_without_data

NO_ARGUMENTS: Given = ((), {})


class _PlannedOnlyError(Exception):
    """Raised instead of running the first node, when a call only plans."""


class _Call(threading.local):
    """State of one thread's call of a step; several threads may call the same step."""

    given = NO_ARGUMENTS
    fault: Exception | None = None
    """The exception raised inside a callback of torch.compile, which wraps it in its own error."""
    failures = 0
    """The number of guards that had failed before the call."""
    guard = ""
    """The guard that failed if the call plans planned shapes again."""
    is_other_size = False
    """True if the call is the first with other sizes than those of the first plan."""
    plans_only = False
    is_compiled = True
    """False if a call that only plans generates no code."""
    watch: WatchOfPart | None = None
    ran: Ran | None = None


@dataclass
class _State:
    """State of a step since it was made or copied, besides its plans."""

    call: _Call = field(default_factory=_Call)
    replans: Replans = field(default_factory=Replans)
    frozen: Frozen = field(default_factory=Frozen)
    host: HostMemory = field(default_factory=HostMemory)
    example: Callable[[], Given] = gone
    compiled: Compiled = field(init=False)
    """Runs calls of planned sizes."""
    beside: Compiled = field(init=False)
    """Runs other calls. torch has a cache for each: a planned size must not meet their traces."""


class PlannedStep(Step):
    """A wrapper that is called like the module; `report` describes the most recent plan.

    Its class, attributes and state are those of the module, so trainers and wrappers such as
    DistributedDataParallel take it for the module.
    """

    goal: Goal
    plans: list[Planned]
    """Plans in the order in which they were made."""
    planned_sizes: Sizes | None
    """The sizes planned ahead, or None."""
    assumptions: Assumptions
    settled: tuple[Settled, ...]
    """Settings that were changed before the first plan."""
    _state: _State

    def __init__(
        self,
        module: nn.Module,
        loss_fn: Callable[..., Any] | None,
        goal: Goal,
        options: StepOptions,
        assume: Assume = "replan",
        sizes: Sizes | None = None,
    ) -> None:
        super().__init__(module, loss_fn, options)
        # Children of the module may have these names, so nn.Module must not see them.
        assumptions = Assumptions(assume, sizes is not None)
        self.__dict__.update(goal=goal, planned_sizes=sizes, assumptions=assumptions)
        self._begin()

    def _begin(self) -> None:
        """Reset the plans and compile the step anew."""
        self.__dict__.update(plans=[], settled=(), _state=_State())
        self._state.compiled, self._state.beside = Compiled(self._compile), Compiled(self._compile)

    def _compile(self, dynamic: bool | None) -> Callable[..., Any]:
        """Return the step compiled by torch."""
        traced, found = apart(PlannedStep._traced), weakref.ref(self)
        self._state.replans.codes.append(traced.__code__)
        partition = _noting(found, _partition)
        if self.step_options.is_compiled:
            from graphc.torch.budget.trace.inductor import inductor_backend

            made = inductor_backend(
                partition,
                _noting(found, _workspaces),
                _noting(found, _begin_compiled),
                self.goal.compile,
            )
            dynamic = False
        else:
            made = backend(partition, _noting(found, _run_of), self.goal.writes_inputs)
        return torch.compile(  # type: ignore[no-any-return]
            MethodType(traced, self), backend=made, fullgraph=True, dynamic=dynamic
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> PlannedStep:
        """Return a step with copies of the module and loss; it plans anew when called."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        kept = {name: each for name, each in vars(self).items() if name not in _BEGUN}
        copied.__dict__.update(copy.deepcopy(kept, memo))
        copied._share()
        copied._begin()
        return copied

    def __reduce_ex__(self, _: Any) -> Any:
        raise TorchError(
            "a planned step cannot be pickled or copied with copy.copy, because its plans "
            "contain compiled functions; save step.state_dict() and plan again, or use "
            "copy.deepcopy"
        )

    def _replicate_for_data_parallel(self) -> Any:
        raise TorchError(
            "torch.nn.DataParallel runs replicas of a module, but a plan supports the parameters "
            "of one module only; wrap the step in DistributedDataParallel"
        )

    @partial(torch.compiler.disable, reason=CALLED_BESIDE)
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the module, or the loss; its backward pass follows the plan."""
        refuse_stance()
        warn_of_compile()
        state, call, fault = self._state, self._state.call, None
        if not call.plans_only:
            refuse_without_data(self.step_options.device)
        (args, kwargs), compiled = self._fitted((args, kwargs))
        call.given, call.fault, call.guard, call.is_other_size = (args, kwargs), None, "", False
        began = time.perf_counter()
        call.failures = state.replans.failures
        if not self.plans and torch.is_grad_enabled():
            self.settled += settle(self.module, args, kwargs)
            state.frozen = Frozen(self.named_parameters())
        if torch.is_grad_enabled():
            state.frozen.refuse_thawed()
        try:
            found = self.assumptions.call(self, compiled, (args, kwargs))
        except _PlannedOnlyError:
            raise
        except Exception as error:
            fault = self._explained(error)
        finally:
            call.given, call.fault = NO_ARGUMENTS, None
        if fault is not None:
            try:
                raise fault
            finally:
                del fault  # breaks the cycle through this frame, which refers to the arguments
        if call.guard:
            warn_of_replan(call.guard, self.planned_sizes is not None)
        elif call.is_other_size:
            warn_of_sizes(time.perf_counter() - began, self.step_options.is_compiled)
        return found

    def _explained(self, error: Exception) -> Exception:
        """Return the exception to raise for an error of the step, a graph or torch.compile."""
        call = self._state.call
        fault = call.fault
        if fault is None and not is_of_compiling(error):
            return error
        if fault is not None and not isinstance(fault, GraphcError):
            return fault
        clear_frames(error.__traceback__)  # torch's errors form cycles that refer to arguments
        if fault is not None:
            return fault.with_traceback(None)
        submodule = getattr(error, SUBMODULE, "")
        return as_graphc_error(error, self.module, self.loss_fn, call.given, submodule)

    @property
    def report(self) -> Report:
        """The report of the most recent plan; with sizes, of the one with the largest peak."""
        if not self.plans:
            raise TorchError("nothing is planned yet; a copied step is planned at its first call")
        latest: Report = self.plans[-1].report
        return latest if self.planned_sizes is None else self.planned_sizes.report(latest)

    def _fitted(self, given: Given) -> tuple[Given, Compiled]:
        """Return the arguments to run instead of these, padded if planned, and what runs them."""
        state, fitted = self._state, given
        if self.planned_sizes is not None and torch.is_grad_enabled():
            found = self.planned_sizes.fitted(self, given)
            if found is None:
                return given, state.beside
            fitted = found
        return fitted, state.compiled

    def plan(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], is_compiled: bool = True
    ) -> None:
        """Plan the shapes of these arguments without running the step.

        Unless `is_compiled`, the plan has a report only, and no code.
        """
        if torch.is_inference_mode_enabled():
            raise TorchError(
                "torch.inference_mode disables gradients, so there is no step to plan; plan "
                "outside of it"
            )
        given = tuple(args), dict(kwargs)
        self.remember_call(given)
        if self.planned_sizes is not None and self.planned_sizes.plan(self, given):
            return
        with torch.enable_grad():
            (args, kwargs), _ = self._fitted(given)
        self.assumptions.renew(self, (args, kwargs))
        self._state.call.plans_only, self._state.call.is_compiled = True, is_compiled
        try:
            with torch.enable_grad():
                self(*args, **kwargs)
        except _PlannedOnlyError:
            pass
        finally:
            self._state.call.plans_only, self._state.call.is_compiled = False, True
        if not self.plans:
            raise TorchError(
                "no parameter or argument of the module requires gradients, so there is no step "
                "to plan"
            )

    def verify(self, *args: Any, **kwargs: Any) -> Verified:
        """Run one step of the plan and one with ``backend="aot_eager"``, and compare them.

        The result also names tensors in which ``aot_eager`` itself differs from eager torch, and
        tensors in which two of its runs differ.

        Without arguments, it uses those of the last `plan` or `verify`. Parameters, buffers,
        attributes of the modules, ``.grad`` and the random state are restored afterwards.
        Raises `OptionError` if these arguments no longer exist, and `TorchError` if the measured
        peak differs from the planned one by more than 1 % and 1 MiB, without the remainders that
        torch's allocator for GPUs adds to blocks. It may be lower where a plan is an upper bound.
        """
        refuse_without_data(self.step_options.device)
        given = (args, kwargs) if args or kwargs else self._state.example()
        with torch.enable_grad():
            found = verified(self, self.assumptions, self._fitted(given)[0])
        self.remember_call(given)
        return found

    def remember_call(self, given: Given) -> None:
        """Keep weak references to the arguments of the last plan, since no budget counts them."""
        self._state.example = weakly(given)

    @contextmanager
    def watched(self, watch: WatchOfPart) -> Iterator[None]:
        """Run each node of this thread's steps in the context that `watch` returns for it."""
        call = self._state.call
        call.watch = watch
        try:
            # Otherwise a backward pass on a GPU runs in another thread, which does not watch.
            with torch.autograd.set_multithreading_enabled(False):
                yield
        finally:
            call.watch = None

    @property
    def ran(self) -> Ran:
        """The last step that this thread watched."""
        ran = self._state.call.ran
        if ran is None:
            raise TorchError("no planned step has run, because no value required gradients")
        return ran

    def _traced(self, branches: str, /, *args: Any, **kwargs: Any) -> Any:
        """Return what `unplanned` returns; Dynamo guards on `branches`, since it is compared."""
        refuse_untraced()
        assert branches != "unknown"
        found = self.call_unplanned(args, kwargs)
        note_returned(found)
        return found


_BEGUN = frozenset((*SHARED, "forward", "plans", "settled", "_state"))
"""Attributes that a copy of a step does not share."""


def _noting(found: weakref.ref[PlannedStep], called: Callable[..., Any]) -> Callable[..., Any]:
    """Return a callback for torch.compile that records its exceptions in the step.

    It refers to the step weakly. A loss may be differentiated, and its backward graph compiled,
    after the step is deleted.
    """

    def noting(*args: Any) -> Any:
        try:
            return called(found, *args)
        except Exception as error:
            step = found()
            if step is not None:
                step._state.call.fault = error
            raise

    return noting


def _partition(
    found: weakref.ref[PlannedStep],
    module: fx.GraphModule,
    forward_outputs: int,
    names: list[str],
    returned: Returned | None,
    rest: Rest,
) -> Graphs:
    """Return the forward and backward graph of a new plan, and add the plan to the step."""
    step = found()
    assert step is not None, "torch.compile is called by the step"
    state, sizes, options = step._state, step.planned_sizes, step.step_options
    call, replans = state.call, state.replans
    refuse_tensors(step, call.given)
    joint = Joint(module, forward_outputs, results_in(call.given), returned)
    sources = sources_of(joint, step, call.given, names)
    kept = library_workspaces(joint, options.device)
    held = held_by(step, call.given, sources.values(), options.reserve, options.accumulate, kept)
    if sizes is not None:
        held = replace(held, unpadded=sizes.most_copied(call.given))
    lower: Lower | None = None
    if options.is_compiled:
        from graphc.torch.budget.trace.inductor import compiled_peaks

        lower = compiled_peaks
    plan = step.goal.planned(joint, held, sources, rest, step.plans, options.device, lower)
    if isinstance(plan.report, Report):
        plan = replace(plan, report=replace(plan.report, settled=step.settled))
    step.plans.append(plan)
    state.host.reserve(plan.host_bytes)
    call.guard = replans.failed_guard(step, call.given, call.failures)
    if sizes is None and not (call.plans_only and len(step.plans) > 1):
        call.is_other_size = replans.is_first_other_size(call.given)
    if not call.is_compiled:
        raise _PlannedOnlyError
    return plan.forward, plan.backward


def _workspaces(
    found: weakref.ref[PlannedStep], called: Sequence[tuple[str, fx.Node | None]]
) -> list[int]:
    """Return the workspace bytes of nodes of the last plan; 0 without a plan."""
    step = found()
    return (
        step.plans[-1].workspaces(called) if step is not None and step.plans else [0] * len(called)
    )


def _begin_compiled(
    found: weakref.ref[PlannedStep], peaks: tuple[int, int] | None
) -> Callable[[Sequence[Any]], None]:
    """Note the peaks of the graphs of the last plan; the result is called before each of its steps.

    Raises `TorchError` if they are larger than those that were computed before the compilation.
    """
    made_for = found()
    assert made_for is not None, "torch.compile is called by the step"
    plan = made_for.plans.pop() if peaks is not None else None
    if plan is not None and peaks is not None:
        plan.check_compiled(*peaks)
        made_for.plans.append(plan)
    del made_for

    def begin(args: Sequence[Any]) -> None:
        step = found()
        if step is None:
            return
        call = step._state.call
        if call.plans_only:
            raise _PlannedOnlyError
        if call.watch is not None and plan is not None:
            tensors = (each for each in args if isinstance(each, torch.Tensor))
            call.ran = Ran(plan, memory_ranges(tensors))

    return begin


def _run_of(found: weakref.ref[PlannedStep], module: fx.GraphModule, part: Part) -> Boxed:
    """Return the function that runs a graph of a step, and watches nodes during `watched`."""
    made_for = found()
    host = made_for._state.host if made_for is not None else None
    plain = runner(module, host=host)
    again = cache(lambda: runner(not_overwriting(module)))
    number = len(made_for.plans) - 1 if made_for is not None else 0
    del made_for

    def run(args: list[Any]) -> tuple[Any, ...]:
        step = found()
        call = None if step is None else step._state.call
        if call is not None and call.plans_only:
            raise _PlannedOnlyError
        if part == "backward" and is_run_again():
            return again()(args)
        if step is None or call is None or call.watch is None:
            return plain(args)
        if part == "forward":
            tensors = (each for each in args if isinstance(each, torch.Tensor))
            call.ran = Ran(step.plans[number], memory_ranges(tensors))
        return runner(module, partial(call.watch, part), host)(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
