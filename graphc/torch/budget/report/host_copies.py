"""Figures of a plan's copies to host memory, by the model of the link."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from graphc.byte_sizes import exact_bytes, format_bytes
from graphc.planner.host_link import HostLink
from graphc.planner.recompute.solver import Schedule
from graphc.torch.budget.plan.copies import OffloadSchedule


@dataclass(frozen=True)
class HostCopies:
    """Copies of a plan to host memory and back.

    `host_bytes` is the host memory of a call. `copy_seconds` is the sum of the times of all copies,
    which run beside computation, and `stall_seconds` the time for which computation waits for them.
    """

    host_bytes: int
    tensors: int
    """The number of tensors that are copied to the host."""
    bytes_to_host: int
    bytes_to_device: int
    copy_seconds: float
    stall_seconds: float
    link: HostLink

    @classmethod
    def of(cls, plan: Schedule) -> HostCopies | None:
        """Return the figures of a plan, or None if it copies nothing."""
        if not isinstance(plan, OffloadSchedule):
            return None
        made = plan.copies
        return cls(
            made.host_bytes,
            len(made.offsets),
            made.bytes_to_host,
            made.bytes_to_device,
            made.copy_seconds,
            made.stalls,
            made.link,
        )

    @property
    def json(self) -> dict[str, Any]:
        """The figures as a JSON object, without the link."""
        return {key: value for key, value in asdict(self).items() if key != "link"}

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Labels and figures of a printed report."""
        plural = "" if self.tensors == 1 else "s"
        copied = (
            f"{self.tensors} tensor{plural}, {format_bytes(self.bytes_to_host)} to the host and "
            f"{format_bytes(self.bytes_to_device)} back, {self.copy_seconds * 1e3:.2f} ms; "
            f"computation waits for {self.stall_seconds * 1e3:.2f} ms"
        )
        return [("host memory", exact_bytes(self.host_bytes)), ("copies", copied)]
