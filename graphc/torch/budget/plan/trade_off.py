"""Trade-off curve of peak bytes and recomputation time, as numbers, a table and a picture."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

from graphc.byte_sizes import format_bytes
from graphc.errors import OptionError
from graphc.files import write_atomically


@dataclass(frozen=True)
class Point:
    """A plan on the curve: its peak, and recomputation time as a fraction of a step's time."""

    peak_bytes: int
    extra_time: float


class _Drawn(NamedTuple):
    arena_bytes: int
    extra_time_fraction: float


@dataclass(frozen=True)
class Frontier(Sequence[Point]):
    """Plans from the most bytes to the fewest; `bound_bytes` is a lower bound for every plan."""

    points: tuple[Point, ...]
    bound_bytes: int

    @overload
    def __getitem__(self, index: int) -> Point: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Point, ...]: ...

    def __getitem__(self, index: int | slice) -> Point | tuple[Point, ...]:
        return self.points[index]

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points)

    @property
    def json(self) -> dict[str, Any]:
        """The points and the bound as a JSON object."""
        return {
            "bound_bytes": self.bound_bytes,
            "points": [
                {"peak_bytes": point.peak_bytes, "extra_time_fraction": point.extra_time}
                for point in self.points
            ],
        }

    def __str__(self) -> str:
        most = max((point.peak_bytes for point in self.points), default=0) or 1
        rows = [
            f"{format_bytes(point.peak_bytes, up=True):>11}  {point.peak_bytes / most:>7.1%}  "
            f"{point.extra_time:>10.1%}"
            for point in self.points
        ]
        head = f"{'peak':>11}  {'of most':>7}  {'extra time':>10}"
        return "\n".join([head, *rows, f"no plan below {format_bytes(self.bound_bytes)}"])

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Write the trade-off as a PNG; raises `DependencyError` without matplotlib."""
        from graphc.view.picture import frontier_picture

        if not str(path).endswith(".png"):
            raise OptionError(f"the picture must be a file that ends in .png, got {str(path)!r}")
        drawn = [_Drawn(point.peak_bytes, point.extra_time) for point in self.points]
        labels = ("peak of a step", "extra time, %")
        picture = frontier_picture(drawn, {}, self.bound_bytes, "peak against extra time", labels)
        write_atomically(path, [picture], OptionError)
