"""Frames: over which axes of a folded shape a norm's statistics run, and its parameters lie."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """How a norm looks at x: a folded shape, statistic axes, parameter axes."""

    shape: tuple[int, ...]
    statistic_axes: tuple[int, ...]
    parameter_axes: tuple[int, ...]

    def kept(self, axes: tuple[int, ...]) -> tuple[int, ...]:
        """The folded shape with extent 1 on all axes but these."""
        return tuple(n if i in axes else 1 for i, n in enumerate(self.shape))

    @property
    def statistic_shape(self) -> tuple[int, ...]:
        axes = set(range(len(self.shape))) - set(self.statistic_axes)
        return self.kept(tuple(sorted(axes)))

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        return self.kept(self.parameter_axes)

    @property
    def count(self) -> int:
        """Elements of one statistic."""
        return math.prod(self.shape[axis] for axis in self.statistic_axes)
