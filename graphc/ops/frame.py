"""Frames: over which axes of a folded shape a norm's statistics run, and its parameters lie."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from graphc.ops.cpu.numpy_expression import TILE_ELEMENTS


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

    def tile(self, across: bool) -> tuple[int | None, tuple[int, ...]]:
        """The axis to cut and a tile's shape; `across` cuts any axis, else none of a statistic."""
        axes = [i for i in range(len(self.shape)) if across or i not in self.statistic_axes]
        cut = max(axes, key=lambda i: (self.shape[i], -i), default=None)
        if cut is None:
            return None, self.shape
        rest = math.prod(self.shape) // self.shape[cut]
        size = min(self.shape[cut], max(1, TILE_ELEMENTS // rest))
        return cut, tuple(size if i == cut else n for i, n in enumerate(self.shape))

    def parts(self, across: bool) -> Iterator[tuple[slice, ...]]:
        """Index of each tile."""
        cut, shape = self.tile(across)
        if cut is None:
            yield ()
            return
        for start in range(0, self.shape[cut], shape[cut]):
            yield (*(slice(None),) * cut, slice(start, min(start + shape[cut], self.shape[cut])))
