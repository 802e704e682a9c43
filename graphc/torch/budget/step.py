"""A torch module whose training step runs under a memory plan; returned by `graphc.torch.plan`."""

from __future__ import annotations

import copy
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache, partial
from traceback import clear_frames
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx, nn

from graphc.devices.device import Device
from graphc.errors import GraphcError, TorchError
from graphc.torch.budget.around_compile import warn_of_compile
from graphc.torch.budget.assumptions import Assume, Assumptions
from graphc.torch.budget.autocast import Autocast, context_of
from graphc.torch.budget.backend import Graphs, Part, Rest, backend, is_run_again
from graphc.torch.budget.compiled import Compiled
from graphc.torch.budget.example import Given, gone, results_in, weakly
from graphc.torch.budget.held import held_by
from graphc.torch.budget.in_place import not_overwriting
from graphc.torch.budget.joint import Joint
from graphc.torch.budget.libraries import library_workspaces
from graphc.torch.budget.losses import Loss
from graphc.torch.budget.measure import memory_ranges
from graphc.torch.budget.offload.host_memory import HostMemory
from graphc.torch.budget.planned import Goal, Planned
from graphc.torch.budget.refusals import as_graphc_error, is_of_compiling, refuse_tensors
from graphc.torch.budget.replans import Replans, warn_of_replan, warn_of_sizes
from graphc.torch.budget.report import Report
from graphc.torch.budget.returned import Returned
from graphc.torch.budget.runner import Boxed, runner
from graphc.torch.budget.settled import Frozen, Settled, settle
from graphc.torch.budget.sizes.ahead import Sizes
from graphc.torch.budget.sources import sources_of
from graphc.torch.budget.tracing import (
    CALLED_BESIDE,
    apart,
    note_returned,
    refuse_stance,
    refuse_untraced,
)
from graphc.torch.budget.transparent import SHARED, Transparent
from graphc.torch.budget.without_data import refuse_without_data

if TYPE_CHECKING:
    from graphc.torch.budget.verified import Verified

WatchOfPart = Callable[[str, str], AbstractContextManager[object]]
"""Returns a context for a node, given its graph (``forward`` or ``backward``) and its name."""

NO_ARGUMENTS: Given = ((), {})


class _PlannedOnlyError(Exception):
    """Raised instead of running the first node, when a call only plans."""


class Ran(NamedTuple):
    """A watched step: its plan, and the memory ranges of the forward graph's inputs."""

    plan: Planned
    given: list[range]


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
    failed_in = ""
    """The path of the submodule in which the last trace has failed."""
    plans_only = False
    watch: WatchOfPart | None = None
    ran: Ran | None = None


class PlannedStep(Transparent):
    """A wrapper that is called like the module; `report` describes the most recent plan.

    Its class, attributes and state are those of the module, so trainers and wrappers such as
    DistributedDataParallel take it for the module.
    """

    plans: list[Planned]
    """Plans in the order in which they were made."""
    settled: tuple[Settled, ...]
    """Settings that were changed before the first plan."""
    _host: HostMemory
    _frozen: Frozen
    _call: _Call
    _example: Callable[[], Given]

    def __init__(
        self,
        module: nn.Module,
        goal: Goal,
        loss_fn: Callable[..., Any] | None,
        reserve: int,
        accumulate: bool,
        loss: Loss,
        autocast: Autocast | None,
        assume: Assume,
        device: Device | None,
        sizes: Sizes | None = None,
    ) -> None:
        super().__init__(module, loss_fn)
        # Children of the module may have these names, so nn.Module must not see them.
        self.__dict__.update(goal=goal, reserve=reserve, accumulate=accumulate)
        self.__dict__.update(_loss=loss, autocast=autocast, assumptions=Assumptions(assume))
        # The profile of a step that cannot run, or None, and the sizes planned ahead, or None.
        self.__dict__.update(_device=device, _sizes=sizes)
        self._begin()

    def _begin(self) -> None:
        """Reset the plans and compile the step anew."""
        self.__dict__.update(plans=[], settled=(), _call=_Call(), _example=gone)
        self.__dict__.update(_replans=Replans(), _frozen=Frozen(), _host=HostMemory())
        # torch has a cache for each: a planned size must not meet the traces of unplanned calls.
        self.__dict__.update(_compiled=Compiled(self._compile), _beside=Compiled(self._compile))

    def _compile(self, dynamic: bool | None) -> Callable[..., Any]:
        """Return the step compiled by torch."""
        traced, found = apart(PlannedStep._traced), weakref.ref(self)
        self._replans.codes.append(traced.__code__)
        return torch.compile(  # type: ignore[no-any-return]
            MethodType(traced, self),
            backend=backend(
                _noting(found, _partition), _noting(found, _run_of), self.goal.writes_inputs
            ),
            fullgraph=True,
            dynamic=dynamic,
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
        if not self._call.plans_only:
            refuse_without_data(self._device)
        (args, kwargs), compiled = self._fitted((args, kwargs))
        call, told = self._call, None
        call.given, call.fault, call.guard, call.is_other_size = (args, kwargs), None, "", False
        began = time.perf_counter()
        call.failures = self._replans.failures
        if not self.plans and torch.is_grad_enabled():
            self.settled += settle(self.module, args, kwargs)
            self._frozen = Frozen(self.named_parameters())
        if torch.is_grad_enabled():
            self._frozen.refuse_thawed()
        try:
            found = self.assumptions.call(self, compiled, (args, kwargs))
        except _PlannedOnlyError:
            raise
        except Exception as error:
            told = self._told(error)
        finally:
            call.given, call.fault = NO_ARGUMENTS, None
        if told is not None:
            try:
                raise told
            finally:
                del told  # breaks the cycle through this frame, which refers to the arguments
        if call.guard:
            warn_of_replan(call.guard, self._sizes is not None)
        elif call.is_other_size:
            warn_of_sizes(time.perf_counter() - began)
        return found

    def _told(self, error: Exception) -> Exception:
        """Return the exception to raise for an error of the step, a graph or torch.compile."""
        fault = self._call.fault
        if fault is None and not is_of_compiling(error):
            return error
        if fault is not None and not isinstance(fault, GraphcError):
            return fault
        clear_frames(error.__traceback__)  # torch's errors form cycles that refer to arguments
        if fault is not None:
            return fault.with_traceback(None)
        call = self._call
        return as_graphc_error(error, self.module, self.loss_fn, call.given, call.failed_in)

    @property
    def report(self) -> Report:
        """The report of the most recent plan; with sizes, of the one with the largest peak."""
        if not self.plans:
            raise TorchError("nothing is planned yet; a copied step is planned at its first call")
        latest: Report = self.plans[-1].report
        return latest if self._sizes is None else self._sizes.report(latest)

    def _fitted(self, given: Given) -> tuple[Given, Compiled]:
        """Return the arguments to run instead of these, padded if planned, and what runs them."""
        is_planned = self._sizes is not None and torch.is_grad_enabled()
        fitted = self._sizes.fitted(self, given) if is_planned else given
        return (given, self._beside) if fitted is None else (fitted, self._compiled)

    def plan(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Plan the shapes of these arguments without running the step."""
        if torch.is_inference_mode_enabled():
            raise TorchError(
                "torch.inference_mode disables gradients, so there is no step to plan; plan "
                "outside of it"
            )
        given = tuple(args), dict(kwargs)
        # The step keeps only weak references: the budget does not count stored arguments.
        self._example = weakly(given)
        if self._sizes is not None and self._sizes.plan(self, given):
            return
        with torch.enable_grad():
            (args, kwargs), _ = self._fitted(given)
        self.assumptions.renew(self, (args, kwargs))
        self._call.plans_only = True
        try:
            with torch.enable_grad():
                self(*args, **kwargs)
        except _PlannedOnlyError:
            pass
        finally:
            self._call.plans_only = False
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
        torch's allocator for GPUs adds to blocks.
        """
        from graphc.torch.budget.verify import verified

        refuse_without_data(self._device)
        given = (args, kwargs) if args or kwargs else self._example()
        with torch.enable_grad():
            found = verified(self, self._fitted(given)[0])
        self._example = weakly(given)
        return found

    @contextmanager
    def watched(self, watch: WatchOfPart) -> Iterator[None]:
        """Run each node of this thread's steps in the context that `watch` returns for it."""
        self._call.watch = watch
        try:
            # Otherwise a backward pass on a GPU runs in another thread, which does not watch.
            with torch.autograd.set_multithreading_enabled(False):
                yield
        finally:
            self._call.watch = None

    @property
    def ran(self) -> Ran:
        """The last step that this thread watched."""
        if self._call.ran is None:
            raise TorchError("no planned step has run, because no value required gradients")
        return self._call.ran

    def unplanned(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of a call, computed without a plan."""
        with context_of(self.autocast):
            return self._computed(args, kwargs)

    def _computed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.loss_fn is None:
            return self._loss.applied(self.module(*args, **kwargs))
        return self._loss.applied(self.loss_fn(self.module(*args[:-1], **kwargs), args[-1]))

    def _traced(self, branches: str, /, *args: Any, **kwargs: Any) -> Any:
        """Return what `unplanned` returns; Dynamo guards on `branches`, since it is compared."""
        refuse_untraced()
        assert branches != "unknown"
        found = self._computed(args, kwargs)
        note_returned(found)
        return found


_BEGUN = frozenset(
    (
        *SHARED, "forward", "plans", "settled", "_call", "_replans", "_frozen", "_example",
        "_compiled", "_beside", "_host",
    )
)  # fmt: skip
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
                step._call.fault = error
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
    given = step._call.given
    refuse_tensors(step, given)
    joint = Joint(module, forward_outputs, results_in(given), returned)
    sources = sources_of(joint, step, given, names)
    kept = library_workspaces(joint, step._device)
    held = held_by(step, given, sources.values(), step.reserve, step.accumulate, kept)
    if step._sizes is not None:
        held = replace(held, unpadded=step._sizes.most_copied(given))
    plan = step.goal.planned(joint, held, sources, rest, step.plans, step._device)
    if isinstance(plan.report, Report):
        plan = replace(plan, report=replace(plan.report, settled=step.settled))
    step.plans.append(plan)
    step._host.reserve(plan.host_bytes)
    step._call.guard = step._replans.failed_guard(step, given, step._call.failures)
    if step._sizes is None and not (step._call.plans_only and len(step.plans) > 1):
        step._call.is_other_size = step._replans.is_first_other_size(given)
    return plan.forward, plan.backward


def _run_of(found: weakref.ref[PlannedStep], module: fx.GraphModule, part: Part) -> Boxed:
    """Return the function that runs a graph of a step, and watches nodes during `watched`."""
    made_for = found()
    host = made_for._host if made_for is not None else None
    plain = runner(module, host=host)
    again = cache(lambda: runner(not_overwriting(module)))
    number = len(made_for.plans) - 1 if made_for is not None else 0
    del made_for

    def run(args: list[Any]) -> tuple[Any, ...]:
        step = found()
        if step is not None and step._call.plans_only:
            raise _PlannedOnlyError
        if part == "backward" and is_run_again():
            return again()(args)
        if step is None or step._call.watch is None:
            return plain(args)
        if part == "forward":
            tensors = (each for each in args if isinstance(each, torch.Tensor))
            step._call.ran = Ran(step.plans[number], memory_ranges(tensors))
        return runner(module, partial(step._call.watch, part), host)(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
