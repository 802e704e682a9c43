"""Reports of plans: the peak, live bytes by module, recomputed nodes, and lower bounds."""

from __future__ import annotations

import os
import webbrowser
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import fx

from graphc.byte_sizes import exact_bytes, format_bytes, size_lines
from graphc.errors import BudgetError, OptionError
from graphc.files import write_atomically
from graphc.planner.copies.events import events_of
from graphc.planner.recompute.solver import Schedule
from graphc.torch.budget.plan.copies import OffloadSchedule, absences, levels
from graphc.torch.budget.plan.planner import TorchPlanner, unkept
from graphc.torch.budget.plan.steps import TorchSteps
from graphc.torch.budget.plan.trade_off import Frontier, Point
from graphc.torch.budget.report.host_copies import HostCopies
from graphc.torch.budget.report.sizes import PlannedSize, sizes_table
from graphc.torch.budget.report.view import Shown, plan_page
from graphc.torch.budget.trace.branches import EXPECT, Branch
from graphc.torch.budget.trace.eager import EAGER, EAGER_BACKWARD, name_of_section
from graphc.torch.budget.trace.held import Held
from graphc.torch.budget.trace.names import module_path
from graphc.torch.budget.trace.of_transformers import Settled
from graphc.torch.budget.trace.refusals import called_op

SHOWN = 6
"""Maximum number of rows of a printed table."""


@dataclass(frozen=True)
class Live:
    """Live bytes of one module's results at the peak."""

    module: str
    bytes: int


@dataclass(frozen=True)
class Repeated:
    """Recomputation of one module's nodes: the number of executions added, and their seconds."""

    module: str
    times: int
    seconds: float


@dataclass(frozen=True)
class Constant:
    """A tensor that is resident before the step and is not a parameter, buffer or argument."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Assumed:
    """The value that a plan assumes where control flow depends on data, and checks in each step."""

    place: str
    value: bool | int | float
    times: int


@dataclass(frozen=True)
class Eager:
    """A function that runs in eager mode, with the peak bytes that its calls add."""

    function: str
    peak_bytes: int


@dataclass(frozen=True)
class Report:
    """Predicted figures of a plan, known before its first step.

    `peak_bytes` is the peak of a whole step, and `plain_bytes` the peak without recomputation.
    `bound_bytes` is a lower bound on the peak of every plan. `extra_time` is a fraction of
    `seconds`, the time of a step without recomputation, and includes waits for copies. `bound_time`
    is a lower bound on the extra time of every plan within the peak; if the plan has copies, also
    of plans with copies. The bounds, `least_bytes` and the frontier are computed when
    they are first read.
    """

    peak_bytes: int
    plain_bytes: int
    seconds: float
    extra_time: float
    held: Held
    constants: tuple[Constant, ...]
    at_peak: str
    live: tuple[Live, ...]
    repeated: tuple[Repeated, ...]
    estimated: tuple[str, ...]
    """Nodes that cannot run alone, so their costs are estimated and include no workspace."""
    assumed: tuple[Assumed, ...]
    eager: tuple[Eager, ...]
    """Functions that run in eager mode, because torch cannot trace them."""
    shown: Shown = field(repr=False, compare=False)
    planner: TorchPlanner = field(repr=False, compare=False)
    settled: tuple[Settled, ...] = ()
    """Settings of the module that planning has changed, so that a trainer does not."""
    sizes: tuple[PlannedSize, ...] = ()
    """The plans of all sizes planned ahead, in ascending order of size."""
    copies: HostCopies | None = None
    """The copies to host memory, or None without any."""
    curve: tuple[Point, ...] = ()
    """The trade-off of compiled steps, if it was asked for; that before fusion is the planner's."""

    @classmethod
    def of(
        cls, torch_steps: TorchSteps, planner: TorchPlanner, plan: Schedule, shown: Shown
    ) -> Report:
        """Return the report of one plan."""
        seconds = planner.seconds or 1.0
        node, live = at_peak(torch_steps, plan)
        return cls(
            peak_bytes=plan.peak_bytes,
            plain_bytes=planner.no_recompute.peak_bytes,
            seconds=planner.seconds,
            extra_time=plan.extra_cost / seconds,
            held=shown.held,
            constants=tuple(_constants(shown)),
            at_peak=node,
            live=tuple(live),
            repeated=tuple(_repeated(torch_steps, plan.sequence)),
            estimated=tuple(
                _described(node) for node, each in torch_steps.measured.items() if each.is_estimated
            ),
            assumed=tuple(_assumed(torch_steps)),
            eager=tuple(_eager(torch_steps)),
            shown=shown,
            planner=planner,
            copies=HostCopies.of(plan),
        )

    @property
    def least_bytes(self) -> int:
        """The peak of the smallest plan found."""
        return self.planner.least.peak_bytes

    @property
    def bound_bytes(self) -> int:
        """A lower bound on the peak of every plan."""
        return self.planner.bound_bytes

    @cached_property
    def bound_time(self) -> float:
        """A lower bound on the extra time of every plan within the peak."""
        link = None if self.copies is None else self.copies.link
        return self.planner.bound_cost(self.peak_bytes, link) / (self.seconds or 1.0)

    @property
    def frontier(self) -> Frontier:
        """The trade-off of peak bytes and extra time."""
        if self.curve:
            return Frontier(self.curve, self.planner.bound_bytes)
        seconds = self.seconds or 1.0
        found = self.planner.frontier
        points = tuple(Point(each.peak_bytes, each.extra_cost / seconds) for each in found)
        return Frontier(points, self.planner.bound_bytes)

    @property
    def json(self) -> dict[str, Any]:
        """The report as a JSON object.

        {"peak_bytes": int,              peak of a whole step
         "plain_bytes": int,             peak without recomputation
         "least_bytes": int,             peak of the smallest plan found
         "bound_bytes": int,             lower bound on the peak of every plan
         "step_seconds": float,          sum of node times of a step without recomputation
         "extra_time_fraction": float,   time of recomputation, and of waits for copies, as a
                                         fraction of `step_seconds`
         "extra_time_bound": float,      lower bound on it for every plan within this peak
         "held_bytes": {kind: int},      resident before the step: parameters, buffers, inputs,
                                         gradients of earlier steps, reserve, constants,
                                         library workspaces
         "constants": [{"name": str, "bytes": int}],  plain attributes of modules and other
                                         tensors of the program, largest first
         "peak_node": str,
         "bytes_by_module": [{"module": str, "bytes": int}],   produced in the step, at the peak
         "repeated": [{"module": str, "times": int, "seconds": float}],
         "estimated": [str],             nodes that cannot run alone, so were not measured
         "costs": str,                   measured, or estimated for a device profile
         "settled": [{"name": str, "value": bool | str}],  settings that planning has changed
         "assumed": [{"place": str, "value": bool | number, "times": int}],   values that control
                                         flow depends on, checked in each step
         "eager": [{"function": str, "peak_bytes": int}],   functions that torch cannot trace, run
                                         in eager mode in forward and backward pass
         "sizes": [{"size": str, "peak_bytes": int, "extra_time_fraction": float,
                    "planning_seconds": float}],   plans for sizes, made before the first step
         "copies": null | {"host_bytes": int, "tensors": int, "bytes_to_host": int,
                    "bytes_to_device": int, "copy_seconds": float, "stall_seconds": float},
         "frontier": {"bound_bytes": int,
                      "points": [{"peak_bytes": int, "extra_time_fraction": float}]}}
        """
        return {
            "peak_bytes": self.peak_bytes,
            "plain_bytes": self.plain_bytes,
            "least_bytes": self.least_bytes,
            "bound_bytes": self.bound_bytes,
            "step_seconds": self.seconds,
            "extra_time_fraction": self.extra_time,
            "extra_time_bound": self.bound_time,
            "held_bytes": asdict(self.held),
            "constants": [asdict(each) for each in self.constants],
            "peak_node": self.at_peak,
            "bytes_by_module": [asdict(each) for each in self.live],
            "repeated": [asdict(each) for each in self.repeated],
            "estimated": list(self.estimated),
            "costs": self.shown.costs,
            "settled": [asdict(each) for each in self.settled],
            "assumed": [asdict(each) for each in self.assumed],
            "eager": [asdict(each) for each in self.eager],
            "sizes": [each.json for each in self.sizes],
            "copies": None if self.copies is None else self.copies.json,
            "frontier": self.frontier.json,
        }

    def view(self, path: str | os.PathLike[str] | None = None) -> str:
        """Write an HTML page of the plan and return its path.

        Without a path, write ``plan.html`` and open it in a browser.
        """
        written = os.fspath(path) if path is not None else "plan.html"
        text = plan_page(self.shown, self._summary())
        write_atomically(written, text.encode("utf-8"), OptionError)
        if path is None:
            webbrowser.open(Path(written).resolve().as_uri())
        return written

    def _summary(self) -> list[tuple[str, str]]:
        held = ", ".join(
            f"{kind.replace('_', ' ')} {format_bytes(size)}"
            for kind, size in asdict(self.held).items()
            if size
        )
        extra = f"{self.extra_time:.1%} of a step, lower bound {self.bound_time:.1%}"
        return [
            ("planned peak", f"{exact_bytes(self.peak_bytes)}, at {self.at_peak}"),
            ("without a plan", exact_bytes(self.plain_bytes)),
            ("smallest found", exact_bytes(self.least_bytes)),
            ("lower bound", exact_bytes(self.bound_bytes)),
            ("extra time", extra),
            *(() if self.copies is None else self.copies.rows),
            ("held", held),
            ("costs", self.shown.costs),
        ]

    def __str__(self) -> str:
        lines = [f"{label:<14} {figure}" for label, figure in self._summary()]
        lines += table("constants", [(e.name, format_bytes(e.bytes)) for e in self.constants])
        lines += table("at the peak", [(e.module, format_bytes(e.bytes)) for e in self.live])
        repeats = [(e.module, f"{e.times} times, {e.seconds * 1e3:.2f} ms") for e in self.repeated]
        lines += table("repeated", repeats)
        assumed = [(e.place, f"{e.value}, {e.times} times") for e in self.assumed]
        lines += table("assumed", assumed)
        eager = [(e.function, f"at most {format_bytes(e.peak_bytes)}") for e in self.eager]
        lines += table("run in eager mode", eager)
        rows = [(name, "estimated as a copy, without workspace") for name in self.estimated]
        lines += table("not measured", rows)
        settings = [(each.name, f"set to {each.value!r}") for each in self.settled]
        lines += table("settled", settings)
        return "\n".join([*lines, *sizes_table(self.sizes)])


def _constants(shown: Shown) -> list[Constant]:
    """Return the constants, one per storage with its first name, largest first."""
    found: dict[int, Constant] = {}
    for source in shown.sources.values():
        if source.kind == "constant" and source.bytes:  # tokens of ops with effects have none
            found.setdefault(source.storage, Constant(source.name, source.bytes))
    return sorted(found.values(), key=lambda each: (-each.bytes, each.name))


def _assumed(torch_steps: TorchSteps) -> list[Assumed]:
    nodes = (step.node for step in torch_steps.joint.steps)
    checks = [each.args[-4:] for each in nodes if called_op(each) is EXPECT]
    count = Counter(
        (str(Branch(file, line, number, type(value).__name__)), value)
        for file, line, number, value in checks
    )
    return [Assumed(place, value, times) for (place, value), times in count.items()]


def _eager(torch_steps: TorchSteps) -> list[Eager]:
    most: Counter[str] = Counter()
    for step in torch_steps.joint.steps:
        if step.node.target in (EAGER, EAGER_BACKWARD):
            measured = torch_steps.measured[step.node]
            name = name_of_section(step.node)
            most[name] = max(most[name], measured.workspace + sum(measured.result_bytes))
    return [Eager(name, peak) for name, peak in most.items()]


def table(title: str, rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return a title and the first `SHOWN` rows; nothing without rows."""
    shown = [f"  {name or '(the module itself)'}: {content}" for name, content in rows[:SHOWN]]
    more = [f"  and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
    return [title, *shown, *more] if rows else []


def at_peak(torch_steps: TorchSteps, plan: Schedule) -> tuple[str, list[Live]]:
    """Return the node at the peak of a plan, and the live bytes there by module: values, and the
    workspace of the node."""
    steps, sequence = torch_steps.steps, plan.sequence
    idle = unkept(sequence, torch_steps.state_of)
    events = plan.copies.events if isinstance(plan, OffloadSchedule) else events_of(sequence)
    levels_of_plan = levels(steps, events, idle)
    position = levels_of_plan.index(max(levels_of_plan))
    step = sequence[position]
    live = set(steps.live_out)
    for later in reversed(sequence[position + 1 :]):
        live.difference_update(steps.outputs[later])
        live.update(steps.inputs[later])
    made = {value for each in sequence[: position + 1] for value in steps.outputs[each]}
    live = (live & made) | {*steps.inputs[step], *steps.outputs[step]}
    live -= {value for value, absent in absences(steps, events) if position in absent}
    by_module: Counter[str] = Counter()
    for value in live - idle:
        producer = torch_steps.nodes[steps.producer[value]] if steps.producer[value] >= 0 else None
        by_module[module_path(producer) if producer is not None else ""] += steps.bytes[value]
    node = torch_steps.nodes[step]
    by_module[module_path(node) if node is not None else ""] += steps.workspace[step]
    rows = sorted(by_module.items(), key=lambda row: (-row[1], row[0]))
    return _described(node), [Live(module, size) for module, size in rows if size]


def _described(node: fx.Node | None) -> str:
    if node is None:
        return "the forward/backward boundary"
    path = module_path(node)
    return f"{node.name} of {path}" if path else node.name


def _repeated(torch_steps: TorchSteps, sequence: Sequence[int]) -> list[Repeated]:
    times: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    counts = Counter(sequence)
    for step, count in counts.items():
        node = torch_steps.nodes[step]
        if node is not None and count > 1:
            path = module_path(node)
            times[path] += count - 1
            seconds[path] += (count - 1) * torch_steps.steps.cost[step]  # type: ignore[assignment]
    rows = [Repeated(path, times[path], float(seconds[path])) for path in times]
    return sorted(rows, key=lambda row: (-row.seconds, row.module))


def does_not_fit(
    torch_steps: TorchSteps, planner: TorchPlanner, budget: int, is_given: bool = True
) -> BudgetError:
    """Return an error with the least peak found, its bound, and the modules at that peak.

    A budget that is not given is the memory of the device.
    """
    limit = "" if is_given else "the memory of the device, "
    cure = "Raise the budget, or reduce the batch" if is_given else "Reduce the batch"
    least, plain = planner.least, planner.no_recompute
    price = least.extra_cost / planner.seconds if planner.seconds else 0.0
    node, live = at_peak(torch_steps, least)
    largest = [(each.module or "(the module itself)", each.bytes) for each in live]
    fixed = torch_steps.steps.fixed_bytes
    return BudgetError(
        f"no plan within {limit}{exact_bytes(budget)} was found; the smallest plan found needs "
        f"{exact_bytes(least.peak_bytes, up=True)}, with {price:+.1%} time, one without "
        f"recomputation {format_bytes(plain.peak_bytes, up=True)}, and the lower bound is "
        f"{exact_bytes(planner.bound_bytes)}, of which {format_bytes(fixed)} are allocated before "
        f"the step. {cure}. Other bytes live at its peak, "
        f"{node}, by module:\n{size_lines(largest, SHOWN)}",
        least.peak_bytes,
        planner.bound_bytes,
        node,
        largest[:SHOWN],
    )
