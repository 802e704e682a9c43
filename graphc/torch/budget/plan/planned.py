"""The plan of one shape."""

from __future__ import annotations

from dataclasses import dataclass
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

    def __repr__(self) -> str:
        return (
            f"Planned({format_bytes(self.report.peak_bytes)}, {self.report.extra_time:+.1%} time)"
        )

    @property
    def host_bytes(self) -> int:
        """The bytes of host memory that a call needs for copies."""
        return self.solved.copies.host_bytes if isinstance(self.solved, OffloadSchedule) else 0
