"""A module of torch whose step is planned: what `graphc.torch.plan` gives."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from graphc.errors import OptionError, TorchError, quoted, truth
from graphc.ir.types import parse_bytes
from graphc.planning.sequence_planner import SequencePlan
from graphc.torch.backend import Part, backend, is_run_again, with_first_derivatives
from graphc.torch.costs import measure
from graphc.torch.emit import emit
from graphc.torch.held import Held, held_by, reserve_bytes
from graphc.torch.in_place import not_overwriting
from graphc.torch.joint import Joint
from graphc.torch.lives import Replay
from graphc.torch.planner import BudgetPlanner
from graphc.torch.refusals import as_graphc_error, refuse_subclasses
from graphc.torch.replay import Plan, Weight, check
from graphc.torch.report import Report, does_not_fit
from graphc.torch.runner import Boxed, runner
from graphc.torch.sources import names_of_sources
from graphc.torch.steps import TorchSteps
from graphc.torch.trade_off import Frontier
from graphc.torch.view import Shown

if TYPE_CHECKING:
    from graphc.torch.verify import Verified

WatchOfPart = Callable[[str, str], AbstractContextManager[object]]
"""What a node runs in, by its graph, ``forward`` or ``backward``, and its name."""

TRACING = {"recompile_limit": 256, "allow_rnn": True, "optimize_ddp": False}
"""What Dynamo is told: how many shapes it keeps, that it traces nn.LSTM, one graph under DDP."""


class _PlannedOnlyError(Exception):
    """Raised in place of the first node: the plan is made, and nothing has run."""


class Goal:
    """What a plan is asked for: bytes, or a part of a step's time, or neither."""

    def __init__(self, budget: int | str | None, max_extra_time: float | None) -> None:
        if budget is not None and max_extra_time is not None:
            raise OptionError("give a budget or max_extra_time, not both")
        if max_extra_time is not None and not (
            isinstance(max_extra_time, int | float)
            and not isinstance(max_extra_time, bool)
            and max_extra_time >= 0
        ):
            raise OptionError(f"max_extra_time is a number from 0 up, got {max_extra_time!r}")
        self.budget = None if budget is None else parse_bytes("budget", budget)
        self.max_extra_time = max_extra_time


def traced_as_here() -> AbstractContextManager[object]:
    """Settings of torch.compile under which steps are traced."""
    patched: AbstractContextManager[object] = torch._dynamo.config.patch(TRACING)
    return patched


@dataclass(frozen=True)
class Planned:
    """The plan of one shape: its sequence, the graphs that carry it out, and what lives when."""

    report: Report
    torch_steps: TorchSteps
    plan: SequencePlan
    forward: fx.GraphModule
    backward: fx.GraphModule
    replay: Replay


class PlannedStep(nn.Module):  # type: ignore[misc]
    """Called like the module; its `report` is that of the shape that was planned last.

    It is a module, so that DistributedDataParallel and the like can stand around it.
    """

    def __init__(
        self,
        module: nn.Module,
        goal: Goal,
        loss_fn: Callable[..., Any] | None,
        held: Callable[[nn.Module, Any], Held],
    ) -> None:
        super().__init__()
        self.module, self.goal, self.loss_fn = module, goal, loss_fn
        self.plans: list[Planned] = []
        """Those of the shapes that have come, in their order."""
        self._held = held
        self._given: Any = ()
        self._plans_only = False
        self._watch: WatchOfPart | None = None
        self._ran: Planned | None = None
        self._example: tuple[list[Any], Any] = ([], None)
        self._compiled = torch.compile(
            MethodType(_apart(PlannedStep.unplanned), self),
            backend=backend(_weakly(self._partition), partial(_run_of, weakref.ref(self))),
            fullgraph=True,
            dynamic=False,
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns, or the loss; its backward pass keeps to the plan."""
        self._given = args, kwargs
        try:
            with traced_as_here():
                return with_first_derivatives(self._compiled, args, kwargs)
        except _PlannedOnlyError:
            raise
        except Exception as error:
            told = as_graphc_error(error)
            if told is error:
                raise
            raise told from error
        finally:
            self._given = ()

    @property
    def report(self) -> Report:
        """What the plan of the shape that was planned last takes, and why."""
        return self.plans[-1].report

    def plan(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Plan the shapes of these arguments; nothing is run."""
        leaves, structure = tree_flatten((tuple(args), dict(kwargs)))
        # A step holds no arguments: its budget would not know of them.
        kept = [weakref.ref(x) if isinstance(x, torch.Tensor) else x for x in leaves]
        self._example = (kept, structure)
        self._plans_only = True
        try:
            self(*args, **kwargs)
        except _PlannedOnlyError:
            pass
        finally:
            self._plans_only = False
        if not self.plans:
            raise TorchError("nothing of the module is differentiated, so there is no step to plan")

    def verify(self, *args: Any, **kwargs: Any) -> Verified:
        """Run a step of the plan and one of ``backend="aot_eager"``, and compare them.

        Without arguments, those that the step was planned with are taken. Parameters, buffers,
        ``.grad`` and the random state are afterwards as before. Raises `OptionError` where there
        are no arguments any more.
        """
        from graphc.torch.verify import verified

        return verified(self, (args, kwargs) if args or kwargs else self._example_given())

    @contextmanager
    def watched(self, watch: WatchOfPart) -> Iterator[None]:
        """Steps in which each node runs in what `watch` gives for its graph and name."""
        self._watch = watch
        try:
            yield
        finally:
            self._watch = None

    @property
    def ran(self) -> Planned:
        """The plan of the step that was watched last."""
        if self._ran is None:
            raise TorchError("no step of a plan has run: nothing of it needed gradients")
        return self._ran

    def _example_given(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        leaves = [each() if isinstance(each, weakref.ref) else each for each in self._example[0]]
        if any(
            each is None and isinstance(kept, weakref.ref)
            for each, kept in zip(leaves, self._example[0], strict=True)
        ):
            raise OptionError(
                "the arguments that the step was planned with are gone; give verify() others"
            )
        args, kwargs = tree_unflatten(leaves, self._example[1])
        return args, kwargs

    def unplanned(self, *args: Any, **kwargs: Any) -> Any:
        """What a call returns, without a plan."""
        if self.loss_fn is None:
            return self.module(*args, **kwargs)
        return self.loss_fn(self.module(*args[:-1], **kwargs), args[-1])

    def _partition(
        self, module: fx.GraphModule, _: Sequence[Any], *, num_fwd_outputs: int, **__: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        refuse_subclasses(self, self._given)
        held = self._held(self, self._given)
        torch_steps, planner = prepared(
            module, num_fwd_outputs, held.bytes, _results_in(self._given)
        )
        found = chosen(planner, self.goal, torch_steps)
        forward, backward, replay = checked(torch_steps, found)
        shown = Shown(
            torch_steps,
            replay,
            held,
            names_of_sources(torch_steps.joint, self.module, self._given),
            frozenset(dict([*self.module.named_parameters(), *self.module.named_buffers()])),
            self.goal.budget,
        )
        report = Report.of(torch_steps, planner, found, shown)
        self.plans.append(Planned(report, torch_steps, found, forward, backward, replay))
        return forward, backward


def _run_of(found: weakref.ref[PlannedStep], module: fx.GraphModule, part: Part) -> Boxed:
    """The function that a graph of a step is; nodes are watched while `watched` says so.

    A loss may be differentiated, and its backward graph be made a function, when the step is gone.
    """
    plain, made_for = runner(module), found()
    again = cache(lambda: runner(not_overwriting(module)))
    number = len(made_for.plans) - 1 if made_for is not None else 0
    del made_for

    def run(args: list[Any]) -> tuple[Any, ...]:
        step = found()
        if step is not None and step._plans_only:
            raise _PlannedOnlyError
        if part == "backward" and is_run_again():
            return again()(args)
        if step is None or step._watch is None:
            return plain(args)
        if part == "forward":
            step._ran = step.plans[number]
        return runner(module, partial(step._watch, part))(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _apart(function: Any) -> FunctionType:
    """The function with a code of its own: what torch.compile keeps of it goes with the step."""
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_NUMBERS)}")
    return FunctionType(code, function.__globals__, code.co_name)


_NUMBERS = itertools.count()


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method whose object it does not keep: torch keeps what it compiles with."""
    found = weakref.WeakMethod(method)

    def called(*args: Any, **kwargs: Any) -> Any:
        bound = found()
        assert bound is not None, "torch.compile is called by the step"
        return bound(*args, **kwargs)

    return called


def _results_in(given: Any) -> list[torch.Tensor]:
    """The arguments that autograd has made of other tensors."""
    return [x for x in tree_leaves(given) if isinstance(x, torch.Tensor) and not x.is_leaf]


def prepared(
    module: fx.GraphModule,
    forward_outputs: int,
    fixed_bytes: int,
    results: Iterable[torch.Tensor] = (),
) -> tuple[TorchSteps, BudgetPlanner]:
    """The steps of a joint graph and their planner; `results` are as `Joint` has them."""
    joint = Joint(module, forward_outputs, results)
    torch_steps = TorchSteps(joint, measure(joint), fixed_bytes)
    return torch_steps, BudgetPlanner(torch_steps.steps, torch_steps.state_of)


def checked(
    torch_steps: TorchSteps, found: SequencePlan
) -> tuple[fx.GraphModule, fx.GraphModule, Replay]:
    """The forward and the backward graph of a plan, and what lives when in them.

    Raises `TorchError` where these are not what the plan says.
    """
    forward, backward = emit(torch_steps, found.sequence)
    replayed = check(to_replay(torch_steps, forward.graph, backward.graph), found.peak_bytes)
    return forward, backward, replayed


def to_replay(torch_steps: TorchSteps, forward: fx.Graph, backward: fx.Graph) -> Plan:
    """What the checker is told of a plan."""
    joint = torch_steps.joint
    weights = {
        node: Weight(measured.workspace, measured.result_bytes)
        for node, measured in torch_steps.measured.items()
    }
    fixed = torch_steps.steps.fixed_bytes
    kept, padded = joint.outer_gradients
    turn = Weight(padded, (kept,) if kept else ())
    return Plan(joint.module.graph, joint.forward_outputs, forward, backward, weights, turn, fixed)


def chosen(planner: BudgetPlanner, goal: Goal, torch_steps: TorchSteps) -> SequencePlan:
    """The plan that a goal asks for; raises `BudgetError` where nothing fits."""
    if goal.budget is not None:
        found = planner.within(goal.budget)
        if found is None:
            raise does_not_fit(torch_steps, planner, goal.budget)
        return found
    if goal.max_extra_time is not None:
        return planner.costing(goal.max_extra_time * planner.seconds)
    return planner.knee


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
    if not isinstance(module, nn.Module):
        raise OptionError(f"module is a torch.nn.Module, got {type(module).__name__}")
    if loss_fn is not None and not callable(loss_fn):
        raise OptionError(f"loss_fn is a function of output and target, got {quoted(loss_fn)}")
    if loss_fn is not None and not args:
        raise OptionError("with loss_fn, the last of args is its target, got no args")
    accumulate, kept = truth("accumulate", accumulate), reserve_bytes(reserve)
    step = PlannedStep(
        module,
        Goal(budget, max_extra_time),
        loss_fn,
        lambda whole, given: held_by(whole, given, kept, accumulate),
    )
    step.plan(args, kwargs)
    return step


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


def partition_fn(budget: int | str) -> Callable[..., tuple[fx.GraphModule, fx.GraphModule]]:
    """What `graphc.torch.partition_fn` gives."""
    goal = Goal(budget, None)

    def partition(
        module: fx.GraphModule, _: Sequence[Any], *, num_fwd_outputs: int, **__: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        joint = Joint(module, num_fwd_outputs)
        fixed = sum(joint.bytes[value] for value in joint.source_values)
        # Another compiler wants graphs in which nothing is overwritten.
        torch_steps = TorchSteps(joint, measure(joint), fixed, in_place=False)
        planner = BudgetPlanner(torch_steps.steps, torch_steps.state_of)
        forward, backward, *_ = checked(torch_steps, chosen(planner, goal, torch_steps))
        return forward, backward

    return partition
