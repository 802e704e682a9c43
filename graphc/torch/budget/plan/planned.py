"""The plan of one shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from graphc.byte_sizes import format_bytes
from graphc.planner.recompute.solver import Schedule
from graphc.torch.budget.check.graphs import Replay
from graphc.torch.budget.plan.copies import OffloadSchedule
from graphc.torch.budget.plan.steps import TorchSteps


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

    @property
    def host_bytes(self) -> int:
        """The bytes of host memory that a call needs for copies."""
        return self.solved.copies.host_bytes if isinstance(self.solved, OffloadSchedule) else 0
