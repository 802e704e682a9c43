"""Planned sizes as rows of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from graphc.byte_sizes import format_bytes


@dataclass(frozen=True)
class PlannedSize:
    """The plan of one size: its peak, its extra time as a fraction of a step, and its report.

    `planning_seconds` is the time that planning took, and is no part of comparisons.
    """

    size: str
    peak_bytes: int
    extra_time: float
    planning_seconds: float = field(compare=False)
    report: Any = field(repr=False, compare=False)

    @property
    def json(self) -> dict[str, Any]:
        """The fields without the report, as a JSON object."""
        return {
            "size": self.size,
            "peak_bytes": self.peak_bytes,
            "extra_time_fraction": self.extra_time,
            "planning_seconds": self.planning_seconds,
        }


def sizes_table(rows: Sequence[PlannedSize]) -> list[str]:
    """Return the lines of a table of sizes; none without sizes."""
    if not rows:
        return []
    width = max(len("size"), *(len(each.size) for each in rows))
    head = f"{'size':<{width}}  {'planned peak':>12}  {'extra time':>10}  {'planning':>10}"
    return [
        head,
        *(
            f"{each.size:<{width}}  {format_bytes(each.peak_bytes):>12}  "
            f"{each.extra_time:>+10.1%}  {f'{each.planning_seconds:.2f} s':>10}"
            for each in rows
        ),
    ]
