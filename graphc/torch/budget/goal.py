"""Plans of a joint graph: the goal, the schedule, and the emitted and checked graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from graphc.byte_sizes import parse_bytes
from graphc.devices.device import Device
from graphc.devices.links import host_link
from graphc.errors import OptionError, did_you_mean, quoted
from graphc.planner.goals import knee_of
from graphc.planner.recompute.solver import Schedule
from graphc.torch.budget.check.graphs import NodeBytes, Replay, StepGraphs, kind_of_copy
from graphc.torch.budget.check.replay import check
from graphc.torch.budget.plan.compiled import compiled_curve, compiled_within
from graphc.torch.budget.plan.copies import (
    OffloadGoal,
    OffloadSchedule,
    device_of_copies,
    movable,
)
from graphc.torch.budget.plan.costs import fused, measure
from graphc.torch.budget.plan.emit import emit
from graphc.torch.budget.plan.estimates import estimate
from graphc.torch.budget.plan.libraries import memory_of, profile_of
from graphc.torch.budget.plan.planned import Lower, Planned
from graphc.torch.budget.plan.planner import Candidate, TorchPlanner, reused
from graphc.torch.budget.plan.steps import Measured, TorchSteps
from graphc.torch.budget.plan.trade_off import Point
from graphc.torch.budget.report.report import Report, does_not_fit
from graphc.torch.budget.report.view import Shown
from graphc.torch.budget.trace.backend import Rest
from graphc.torch.budget.trace.held import Held
from graphc.torch.budget.trace.joint import Joint
from graphc.torch.budget.trace.sources import Source

KNEE = "knee"
"""The budget that asks for the knee of the trade-off curve of bytes and time."""


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
        compile: bool | str = False,
    ) -> None:
        if compile and host_budget is not None:
            raise OptionError(
                "compile does not support host_budget, since inductor orders copies itself; "
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
        lower: Lower | None = None,
    ) -> Planned:
        """Return the plan of a joint graph; raises `BudgetError` if no plan fits.

        `earlier` are plans for the same goal. With a `device` profile, costs are estimated for it
        and not measured. `lower` belongs to the compiler of the step, if it is compiled.
        """
        costs = measure(joint) if device is None else estimate(device, joint)
        if lower is not None:
            costs = fused(joint, costs)
        torch_steps, planner = prepared(joint, held.bytes, costs, is_fused=lower is not None)
        budget = self._budget_on(device, torch_steps)
        copies = self._copies(torch_steps, device)
        if copies is not None:
            earlier = ()  # they have no positions of copies
        solved = [Candidate(e.report.planner, e.solved) for e in earlier if e.solved is not None]
        adapted = reused(planner, budget, self.max_extra_time, solved)

        def made(plan: Schedule) -> Planned:
            forward, backward, replay = checked(torch_steps, plan)
            limit = budget if plan.extra_cost else self.budget
            shown = Shown(torch_steps, replay, held, sources, limit, device)
            report = Report.of(torch_steps, planner, plan, shown)
            solved_now = None if plan is adapted else plan
            found = Planned(report, torch_steps, forward, backward, replay, solved_now)
            return found if lower is None else found.lowered(lower, runs=device is None)

        if lower is not None and budget is not None:
            name = "" if self.budget is not None else "the memory of the device, "
            return compiled_within(planner, budget, adapted, made, name)
        if lower is not None and self.is_knee:
            return _knee_of(compiled_curve(planner, made))
        return made(adapted or self._chosen(planner, budget, torch_steps, copies))

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
        return planner.knee if self.is_knee else planner.fastest

    def _copies(self, torch_steps: TorchSteps, device: Device | None) -> OffloadGoal | None:
        """Return the link to the host and what may be copied; None without host memory."""
        if not self.host_budget:
            return None
        link = host_link(device or profile_of(device_of_copies(torch_steps.joint)))
        return OffloadGoal(replace(link, host_bytes=self.host_budget), movable(torch_steps))


def _knee_of(curve: Sequence[Planned]) -> Planned:
    """Return the plan at the knee of a trade-off curve, which its report then has."""
    points = [Point(each.peak_bytes, each.report.extra_time) for each in curve]
    peak = knee_of([(each.peak_bytes, each.extra_time) for each in points], points[0].peak_bytes)
    plan = next(each for each in curve if each.peak_bytes == peak)
    return replace(plan, report=replace(plan.report, curve=tuple(points)))


def prepared(
    joint: Joint, fixed_bytes: int, costs: Mapping[fx.Node, Measured], is_fused: bool = False
) -> tuple[TorchSteps, TorchPlanner]:
    """Return the steps of a joint graph and their planner.

    With `is_fused`, another compiler fuses them. It requires functional graphs, in which no node
    overwrites an operand.
    """
    torch_steps = TorchSteps(joint, costs, fixed_bytes, in_place=not is_fused)
    return torch_steps, TorchPlanner(torch_steps.steps, torch_steps.state_of, is_fused)


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
        torch_steps, planner = prepared(joint, fixed, measure(joint), is_fused=True)
        forward, backward, *_ = checked(torch_steps, within(planner, capacity, torch_steps))
        return forward, backward

    return partition
