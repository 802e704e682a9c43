"""Plans of a joint graph: the goal, the schedule, and the emitted and checked graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from graphc.byte_sizes import exact_bytes, parse_bytes
from graphc.devices.device import Device
from graphc.devices.links import host_link
from graphc.errors import BudgetError, OptionError, did_you_mean, quoted
from graphc.planner.recompute.solver import Schedule
from graphc.torch.budget.check.graphs import NodeBytes, Replay, StepGraphs, kind_of_copy
from graphc.torch.budget.check.replay import check
from graphc.torch.budget.plan.copies import (
    OffloadGoal,
    OffloadSchedule,
    device_of_copies,
    movable,
)
from graphc.torch.budget.plan.costs import measure
from graphc.torch.budget.plan.emit import emit
from graphc.torch.budget.plan.estimates import estimate
from graphc.torch.budget.plan.libraries import memory_of, profile_of
from graphc.torch.budget.plan.planned import Planned
from graphc.torch.budget.plan.planner import Candidate, TorchPlanner, reused
from graphc.torch.budget.plan.steps import Measured, TorchSteps
from graphc.torch.budget.report.report import Report, does_not_fit
from graphc.torch.budget.report.view import Shown
from graphc.torch.budget.trace.backend import Rest
from graphc.torch.budget.trace.held import Held
from graphc.torch.budget.trace.joint import Joint
from graphc.torch.budget.trace.sources import Source

KNEE = "knee"
"""The budget that asks for the knee of the trade-off curve of bytes and time."""


TRIALS = 3
"""Maximum number of plans that are compiled for one call."""


class ExceededError(BudgetError):
    """A compiled step takes more bytes than its budget."""


@dataclass
class Trials:
    """The plans of one call that inductor compiles, until the kernels of one hold the budget."""

    budget: int | None = None
    is_given: bool = True
    """False if the budget is the memory of the device."""
    number: int = 0
    excess: int = 0
    """Bytes that compiled steps took above the budget, in all."""
    fewest: int = sys.maxsize
    """The smallest peak of a compiled step."""
    is_least: bool = False
    """True if the last plan is the smallest one."""

    @property
    def are_over(self) -> bool:
        """True if no other plan is tried."""
        return self.is_least or self.number >= TRIALS

    def chosen(self, planner: TorchPlanner, budget: int) -> Schedule:
        """Return the next plan: one within what is left of the budget, and at last the smallest."""
        found = None if self.number == TRIALS - 1 else planner.within(budget - self.excess)
        self.is_least = found is None
        return found or planner.least

    def check(self, plan: Planned) -> None:
        """Raise `ExceededError` if the compiled step of a plan takes more than the budget."""
        if self.budget is None or plan.peak_bytes <= self.budget:
            return
        self.number += 1
        self.excess += plan.peak_bytes - self.budget
        self.fewest = min(self.fewest, plan.peak_bytes)
        limit = "" if self.is_given else "the memory of the device, "
        raise ExceededError(
            f"no compiled step within {limit}{exact_bytes(self.budget)} was found; the smallest "
            f"one needs {exact_bytes(self.fewest)}. Raise the budget, reduce the batch, or plan "
            "without compile",
            self.fewest,
            plan.torch_steps.steps.fixed_bytes,
        )


class Goal:
    """A budget of bytes, a fraction of a step's time, or the knee of the trade-off curve.

    Without any of them, the budget is the memory of the device.
    """

    writes_inputs = False
    """True if graphs may write into inputs; otherwise torch copies new contents after them."""

    def __init__(
        self,
        budget: int | str | None,
        max_extra_time: float | None,
        host_budget: int | str | None = None,
        compile: bool = False,
    ) -> None:
        if not isinstance(compile, bool):
            raise OptionError(f"compile must be True or False, got {quoted(compile)}")
        if compile and host_budget is not None:
            raise OptionError(
                "compile=True does not support host_budget, since inductor orders copies itself; "
                "leave out one of them"
            )
        if budget is not None and max_extra_time is not None:
            raise OptionError("give either budget or max_extra_time, not both")
        if host_budget is not None and budget in (None, KNEE):
            raise OptionError(
                f"host_budget={host_budget!r} bounds the bytes that a plan for a budget copies to "
                "host memory; give a budget of bytes, too"
            )
        if max_extra_time is not None and not (
            isinstance(max_extra_time, int | float)
            and not isinstance(max_extra_time, bool)
            and max_extra_time >= 0
        ):
            raise OptionError(
                f"max_extra_time must be a number of at least 0, got {max_extra_time!r}"
            )
        self.is_knee = budget == KNEE
        if isinstance(budget, str) and budget != KNEE and did_you_mean(budget, [KNEE]):
            raise OptionError(f"unknown budget {quoted(budget)}; did you mean {KNEE}?")
        self.budget = None if budget in (None, KNEE) else parse_bytes("budget", budget)
        self.max_extra_time, self.compile = max_extra_time, compile
        self.host_budget = None if host_budget is None else parse_bytes("host_budget", host_budget)

    def planned(
        self,
        joint: Joint,
        held: Held,
        sources: Mapping[fx.Node, Source],
        _: Rest,
        earlier: Iterable[Planned] = (),
        device: Device | None = None,
        trials: Trials | None = None,
    ) -> Planned:
        """Return the plan of a joint graph; raises `BudgetError` if no plan fits.

        `earlier` are plans for the same goal. With a `device` profile, costs are estimated for it
        and not measured. `trials` are those of a call that is compiled.
        """
        costs = measure(joint) if device is None else estimate(device, joint)
        # Inductor requires functional graphs, in which no node overwrites an operand.
        torch_steps, planner = prepared(joint, held.bytes, costs, in_place=not self.compile)
        budget = self._budget_on(device, torch_steps)
        copies = self._copies(torch_steps, device)
        if trials is not None:
            trials.budget, trials.is_given = budget, self.budget is not None
        if copies is not None or (trials is not None and trials.number):
            earlier = ()  # they have no positions of copies, or have exceeded the budget
        solved = [Candidate(e.report.planner, e.solved) for e in earlier if e.solved is not None]
        adapted = reused(planner, budget, self.max_extra_time, solved)
        if adapted is None and trials is not None and budget is not None:
            plan = trials.chosen(planner, budget)  # fused kernels may fit where no plan does
        else:
            plan = adapted or self._chosen(planner, budget, torch_steps, copies)
        forward, backward, replay = checked(torch_steps, plan)
        limit = budget if plan.extra_cost else self.budget
        shown = Shown(torch_steps, replay, held, sources, limit, device)
        report = Report.of(torch_steps, planner, plan, shown)
        solved_now = plan if adapted is None else None
        return Planned(report, torch_steps, forward, backward, replay, solved_now)

    def _budget_on(self, device: Device | None, torch_steps: TorchSteps) -> int | None:
        """Return the budget of bytes; without a goal, the memory of the device if it is known."""
        if self.budget is not None or self.max_extra_time is not None or self.is_knee:
            return self.budget
        memory = memory_of(device, device_of_copies(torch_steps.joint))
        return None if memory is None else memory.usable_bytes

    def _chosen(
        self,
        planner: TorchPlanner,
        budget: int | None,
        torch_steps: TorchSteps,
        copies: OffloadGoal | None,
    ) -> Schedule:
        """Return the schedule for the goal; raises `BudgetError` if no schedule fits."""
        if budget is not None:
            return within(planner, budget, torch_steps, copies, self.budget is not None)
        if self.max_extra_time is not None:
            return planner.costing(self.max_extra_time * planner.seconds)
        return planner.knee if self.is_knee else planner.no_recompute

    def _copies(self, torch_steps: TorchSteps, device: Device | None) -> OffloadGoal | None:
        """Return the link to the host and what may be copied; None without host memory."""
        if not self.host_budget:
            return None
        link = host_link(device or profile_of(device_of_copies(torch_steps.joint)))
        return OffloadGoal(replace(link, host_bytes=self.host_budget), movable(torch_steps))


def prepared(
    joint: Joint, fixed_bytes: int, costs: Mapping[fx.Node, Measured], in_place: bool = True
) -> tuple[TorchSteps, TorchPlanner]:
    """Return the steps of a joint graph and their planner."""
    torch_steps = TorchSteps(joint, costs, fixed_bytes, in_place)
    return torch_steps, TorchPlanner(torch_steps.steps, torch_steps.state_of)


def checked(
    torch_steps: TorchSteps, found: Schedule
) -> tuple[fx.GraphModule, fx.GraphModule, Replay]:
    """Return the forward and backward graph of a schedule, and their live ranges.

    Raises `TorchError` if the graphs do not implement the joint graph within the planned peak.
    """
    copies = found.copies if isinstance(found, OffloadSchedule) else None
    forward, backward = emit(torch_steps, found.sequence, copies)
    replayed = check(to_replay(torch_steps, forward.graph, backward.graph), found.peak_bytes)
    return forward, backward, replayed


def to_replay(torch_steps: TorchSteps, forward: fx.Graph, backward: fx.Graph) -> StepGraphs:
    """Return the input of the checker for a plan."""
    joint = torch_steps.joint
    sizes = {
        node: NodeBytes(measured.workspace, measured.result_bytes)
        for node, measured in torch_steps.measured.items()
    }
    traced = set(joint.node_of.values())
    return StepGraphs(
        joint=joint.traced,
        forward_outputs=joint.forward_outputs,
        forward=forward,
        backward=backward,
        leaves=joint.leaves,
        returned=joint.returned,
        node_bytes={t: sizes[node] for t, node in joint.node_of.items() if node in sizes},
        copied_bytes={kind_of_copy(n): each for n, each in sizes.items() if n not in traced},
        fixed_bytes=torch_steps.steps.fixed_bytes,
    )


def within(
    planner: TorchPlanner,
    budget: int,
    torch_steps: TorchSteps,
    copies: OffloadGoal | None = None,
    is_given: bool = True,
) -> Schedule:
    """Return the fastest schedule found within a budget; raises `BudgetError` if none fits.

    If the budget is not given, the error calls it the memory of the device.
    """
    if copies is None:
        found = planner.within(budget)
    else:
        found = planner.with_copies(budget, copies, torch_steps.boundary)
    if found is None:
        raise does_not_fit(torch_steps, planner, budget, is_given)
    return found


def partition_fn(budget: int | str) -> Callable[..., tuple[fx.GraphModule, fx.GraphModule]]:
    """Return a partition function; implements `graphc.torch.partition_fn`."""
    capacity = parse_bytes("budget", budget)

    def partition(
        module: fx.GraphModule, _: Sequence[Any], *, num_fwd_outputs: int, **__: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        joint = Joint(module, num_fwd_outputs)
        fixed = sum(joint.bytes[value] for value in joint.source_values)
        # Other compilers require functional graphs, in which no node overwrites an operand.
        torch_steps, planner = prepared(joint, fixed, measure(joint), in_place=False)
        forward, backward, *_ = checked(torch_steps, within(planner, capacity, torch_steps))
        return forward, backward

    return partition
