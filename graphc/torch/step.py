"""A module of torch whose step is planned: what `graphc.torch.plan` gives."""

from __future__ import annotations

import copy
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from traceback import clear_frames
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from graphc.errors import (
    GraphcError,
    OptionError,
    TorchError,
    level_of_caller,
    quoted,
    truth,
)
from graphc.torch.backend import Part, backend, is_run_again, with_first_derivatives
from graphc.torch.example import Given, gone, weakly
from graphc.torch.held import held_by, reserve_bytes
from graphc.torch.in_place import not_overwriting
from graphc.torch.joint import Joint
from graphc.torch.measure import memory_ranges
from graphc.torch.planned import Goal, Planned, plan_for
from graphc.torch.refusals import as_graphc_error, is_of_compiling, refuse_tensors
from graphc.torch.report import Report
from graphc.torch.runner import Boxed, runner
from graphc.torch.sources import sources_of
from graphc.torch.tracing import (
    CALLED_BESIDE,
    apart,
    last_guard,
    refuse_stance,
    refuse_untraced,
    traced_as_here,
)
from graphc.torch.trade_off import Frontier

if TYPE_CHECKING:
    from graphc.torch.verify import Verified

WatchOfPart = Callable[[str, str], AbstractContextManager[object]]
"""What a node runs in, by its graph, ``forward`` or ``backward``, and its name."""

OFTEN = 4
"""So many plans for one shape, made by calls, are worth a warning."""

NO_ARGUMENTS: Given = ((), {})


class _PlannedOnlyError(Exception):
    """Raised in place of the first node: the plan is made, and nothing has run."""


class Ran(NamedTuple):
    """A step that was watched: its plan, and the memory of all that its forward graph is given."""

    plan: Planned
    given: list[range]


class _Call(threading.local):
    """What belongs to the call of a step in which a thread is; others may call the same step."""

    given = NO_ARGUMENTS
    fault: Exception | None = None
    """What was raised where torch.compile called the step, which tells it in its own way."""
    has_planned = False
    plans_only = False
    watch: WatchOfPart | None = None
    ran: Ran | None = None


class PlannedStep(nn.Module):  # type: ignore[misc]
    """Called like the module; its `report` is that of the shape that was planned last.

    It is a module, so that DistributedDataParallel and the like can stand around it.
    """

    def __init__(
        self,
        module: nn.Module,
        goal: Goal,
        loss_fn: Callable[..., Any] | None,
        reserve: int,
        accumulate: bool,
    ) -> None:
        super().__init__()
        self.module, self.goal, self.loss_fn = module, goal, loss_fn
        self.reserve, self.accumulate = reserve, accumulate
        self._begin()

    def _begin(self) -> None:
        """Nothing is planned yet."""
        self.plans: list[Planned] = []
        """Those of the shapes that have come, in their order."""
        self._call = _Call()
        self._times: Counter[tuple[torch.Size, ...]] = Counter()
        self._example: Callable[[], Given] = gone
        found = weakref.ref(self)
        self._compiled = torch.compile(
            MethodType(apart(PlannedStep._traced), self),
            backend=backend(_noting(found, _partition), _noting(found, _run_of)),
            fullgraph=True,
            dynamic=False,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> PlannedStep:
        """A step of copies of the module and its loss, which is planned anew when it is called."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        kept = {name: each for name, each in vars(self).items() if name not in _BEGUN}
        copied.__dict__.update(copy.deepcopy(kept, memo))
        copied._begin()
        return copied

    def __reduce_ex__(self, _: Any) -> Any:
        raise TorchError(
            "a planned step is not pickled, nor copied by copy.copy: its plans are functions of "
            "this process; save step.module.state_dict() and plan again, or use copy.deepcopy"
        )

    def _replicate_for_data_parallel(self) -> Any:
        raise TorchError(
            "torch.nn.DataParallel runs copies that share a module's attributes, and a plan is for "
            "the parameters of one module; put DistributedDataParallel around the step"
        )

    @partial(torch.compiler.disable, reason=CALLED_BESIDE)
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns, or the loss; its backward pass keeps to the plan."""
        refuse_stance()
        call, told = self._call, None
        call.given, call.fault, call.has_planned = (args, kwargs), None, False
        try:
            with traced_as_here():
                found = with_first_derivatives(self._compiled, args, kwargs)
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
                del told  # else it would hold itself, and the arguments, by this frame
        if call.has_planned:
            self._warn_of_plans(args, kwargs)
        return found

    def _told(self, error: Exception) -> Exception:
        """What is to be raised for what was raised by the step, a graph, or torch.compile."""
        fault = self._call.fault
        if fault is None and not is_of_compiling(error):
            return error
        if fault is not None and not isinstance(fault, GraphcError):
            return fault
        clear_frames(error.__traceback__)  # torch's errors hold themselves, and the arguments
        if fault is not None:
            return fault.with_traceback(None)
        told = as_graphc_error(error, self.module, self.loss_fn, self._call.given)
        told.__cause__ = error
        return told

    def _warn_of_plans(self, args: Any, kwargs: Any) -> None:
        """Say once which guard fails, where calls of one shape are planned again and again."""
        leaves = tree_leaves((args, kwargs))
        shapes = tuple(each.shape for each in leaves if isinstance(each, torch.Tensor))
        self._times[shapes] += 1
        if self._times[shapes] == OFTEN:
            warnings.warn(
                f"this step has been planned {OFTEN} times more for the same shapes, at last since "
                f"no longer {last_guard()}; a plan holds for the Python values that the module "
                "reads, so keep what changes from call to call in a tensor, such as a buffer, or "
                "outside the module",
                stacklevel=level_of_caller(),
            )

    @property
    def report(self) -> Report:
        """What the plan of the shape that was planned last takes, and why."""
        if not self.plans:
            raise TorchError("nothing is planned yet; a copy of a step is, when it is called")
        return self.plans[-1].report

    def plan(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Plan the shapes of these arguments; nothing is run."""
        if torch.is_inference_mode_enabled():
            raise TorchError(
                "nothing can be differentiated under torch.inference_mode, so there is no step to "
                "plan; plan outside of it"
            )
        # A step holds no arguments: its budget would not know of them.
        self._example = weakly((tuple(args), dict(kwargs)))
        self._call.plans_only = True
        try:
            with torch.enable_grad():
                self(*args, **kwargs)
        except _PlannedOnlyError:
            pass
        finally:
            self._call.plans_only = False
        if not self.plans:
            raise TorchError("nothing of the module is differentiated, so there is no step to plan")

    def verify(self, *args: Any, **kwargs: Any) -> Verified:
        """Run a step of the plan and one of ``backend="aot_eager"``, and compare them.

        Without arguments, those are taken that it was planned or verified with last. Parameters,
        buffers, attributes of the modules, ``.grad`` and the random state are afterwards as before.
        Raises `OptionError` where there are no arguments any more.
        """
        from graphc.torch.verify import verified

        return verified(self, (args, kwargs) if args or kwargs else self._example())

    @contextmanager
    def watched(self, watch: WatchOfPart) -> Iterator[None]:
        """Steps in which each node runs in what `watch` gives for its graph and name."""
        self._call.watch = watch
        try:
            # Else a backward pass on a GPU runs in a thread of its own, which would not watch.
            with torch.autograd.set_multithreading_enabled(False):
                yield
        finally:
            self._call.watch = None

    @property
    def ran(self) -> Ran:
        """The step that this thread watched last."""
        if self._call.ran is None:
            raise TorchError("no step of a plan has run: nothing of it needed gradients")
        return self._call.ran

    def unplanned(self, *args: Any, **kwargs: Any) -> Any:
        """What a call returns, without a plan."""
        if self.loss_fn is None:
            return self.module(*args, **kwargs)
        return self.loss_fn(self.module(*args[:-1], **kwargs), args[-1])

    def _traced(self, *args: Any, **kwargs: Any) -> Any:
        refuse_untraced()
        return self.unplanned(*args, **kwargs)


_BEGUN = frozenset(("plans", "_call", "_times", "_example", "_compiled"))
"""Attributes of a step that are not those of its copy."""


def _noting(found: weakref.ref[PlannedStep], called: Callable[..., Any]) -> Callable[..., Any]:
    """What torch.compile calls for a step, which it does not keep; the step notes what it raises.

    A loss may be differentiated, and its backward graph be made a function, when the step is gone.
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
    found: weakref.ref[PlannedStep], module: fx.GraphModule, forward_outputs: int, names: list[str]
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward and the backward graph of a new plan of the step."""
    step = found()
    assert step is not None, "torch.compile is called by the step"
    given = step._call.given
    refuse_tensors(step, given)
    joint = Joint(module, forward_outputs, _results_in(given))
    sources = sources_of(joint, step, given, names)
    held = held_by(step, given, sources.values(), step.reserve, step.accumulate)
    plan = plan_for(step.goal, joint, held, sources)
    step.plans.append(plan)
    step._call.has_planned = True
    return plan.forward, plan.backward


def _results_in(given: Any) -> list[torch.Tensor]:
    """The arguments that autograd has made of other tensors."""
    return [x for x in tree_leaves(given) if isinstance(x, torch.Tensor) and not x.is_leaf]


def _run_of(found: weakref.ref[PlannedStep], module: fx.GraphModule, part: Part) -> Boxed:
    """The function that a graph of a step is; nodes are watched while `watched` says so."""
    plain, made_for = runner(module), found()
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
        return runner(module, partial(step._call.watch, part))(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def planned(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    budget: int | str | None,
    max_extra_time: float | None,
    loss_fn: Callable[..., Any] | None,
    reserve: torch.optim.Optimizer | int | str | None,
    accumulate: bool,
) -> PlannedStep:
    """What `graphc.torch.plan` gives."""
    refuse_module(module)
    if loss_fn is not None and not callable(loss_fn):
        raise OptionError(f"loss_fn is a function of output and target, got {quoted(loss_fn)}")
    if loss_fn is not None and not args:
        raise OptionError("with loss_fn, the last of args is its target, got no args")
    accumulate, kept = truth("accumulate", accumulate), reserve_bytes(reserve)
    step = PlannedStep(module, Goal(budget, max_extra_time), loss_fn, kept, accumulate)
    step.plan(args, kwargs)
    return step


def refuse_module(module: object) -> None:
    """Raise `OptionError` for what is no module that can be planned."""
    if not isinstance(module, nn.Module):
        raise OptionError(f"module is a torch.nn.Module, got {type(module).__name__}")
    if isinstance(module, torch.jit.ScriptModule):
        raise OptionError(
            f"module is a {type(module).__name__}, which torch.compile does not trace; give the "
            "module that it was made of"
        )
    for path, each in module.named_modules():
        if isinstance(each, PlannedStep):
            place = f"{path!r} of the module" if path else "module"
            raise OptionError(f"{place} is planned already; give the module that it was planned of")


def frontier(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    loss_fn: Callable[..., Any] | None,
    reserve: torch.optim.Optimizer | int | str | None,
    accumulate: bool,
) -> Frontier:
    """What `graphc.torch.frontier` gives."""
    step = planned(module, args, kwargs, None, None, loss_fn, reserve, accumulate)
    return step.report.frontier
