"""The plan of one shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import fx

from graphc.byte_sizes import exact_bytes, format_bytes
from graphc.errors import TorchError
from graphc.planner.recompute.solver import Schedule
from graphc.torch.budget.check.graphs import Replay
from graphc.torch.budget.plan.copies import OffloadSchedule
from graphc.torch.budget.plan.costs import known_peaks, workspaces_of
from graphc.torch.budget.plan.steps import TorchSteps

Lower = Callable[[fx.GraphModule, fx.GraphModule, int, Any, Any], tuple[int, int]]
"""Returns the peaks of both graphs as a compiler lowers them; see `inductor.compiled_peaks`."""


@dataclass(frozen=True, repr=False)
class Planned:
    """The plan of one shape: its report, the graphs that run it, and their live ranges.

    The report is a `Report`, or an `Audit` for the graphs of another partitioner.
    """

    report: Any
    torch_steps: TorchSteps
    forward: fx.GraphModule
    backward: fx.GraphModule
    replay: Replay
    solved: Schedule | None = None
    """The schedule, if the solver has found it; None if it is that of an earlier plan."""
    compiled_bytes: int | None = None
    """The peak of the step as inductor has compiled it, or None."""

    def __repr__(self) -> str:
        return (
            f"Planned({format_bytes(self.report.peak_bytes)}, {self.report.extra_time:+.1%} time)"
        )

    @property
    def peak_bytes(self) -> int:
        """The peak of the step."""
        return self.replay.peak.bytes if self.compiled_bytes is None else self.compiled_bytes

    def workspaces(
        self, called: Sequence[tuple[str, fx.Node | None]], runs: bool = True
    ) -> list[int]:
        """Return the workspace bytes of nodes of the graphs, given their names.

        A node is given if its operands may have other strides than in the graphs. With `runs`, it
        runs if these have not been measured.
        """
        planned: dict[str, int] = {}
        for moment in self.replay.moments:
            if moment.node is not None:
                name = moment.node.name
                planned[name] = max(planned.get(name, 0), moment.workspace)
        called = [(name, node if runs else None) for name, node in called]
        other = iter(workspaces_of([node for _, node in called if node is not None]))
        return [planned.get(name, 0) if node is None else next(other) for name, node in called]

    def lowered(self, lower: Lower, runs: bool = True) -> Planned:
        """Return the plan with the peak of its graphs as a compiler lowers them.

        Without `runs`, workspaces are those of a device profile, and the peak is not cached.
        """
        joint, workspaces = self.torch_steps.joint, partial(self.workspaces, runs=runs)
        known = partial(known_peaks, joint) if runs else lambda _, found: found()
        graphs = self.forward, self.backward
        return self.compiled(*lower(*graphs, joint.forward_outputs, workspaces, known))

    def compiled(self, forward: int, backward: int) -> Planned:
        """Return the plan with the peak of its compiled graphs, given the bytes of each.

        Outputs of the forward graph and their gradients are live during the backward graph.
        """
        steps, joint = self.torch_steps.steps, self.torch_steps.joint
        nodes = [*filter(None, joint.outputs[: joint.forward_outputs]), *joint.tangents]
        live = {value for node in nodes for value in joint.values[node]} - joint.source_values
        kept = joint.incoming.kept + sum(steps.bytes[value] for value in live)
        peak = steps.fixed_bytes + max(forward, kept + joint.incoming.workspace + backward)
        return replace(self, compiled_bytes=peak, report=replace(self.report, peak_bytes=peak))

    def check_compiled(self, forward: int, backward: int) -> None:
        """Raise `TorchError` if the compiled graphs have larger peaks than were lowered."""
        peak = self.compiled(forward, backward).peak_bytes
        if peak > self.peak_bytes:
            raise TorchError(
                f"the kernels of inductor need {exact_bytes(peak)}, and "
                f"{exact_bytes(self.peak_bytes)} were computed for them; plan without compile"
            )

    @property
    def host_bytes(self) -> int:
        """The bytes of host memory that a call needs for copies."""
        return self.solved.copies.host_bytes if isinstance(self.solved, OffloadSchedule) else 0
