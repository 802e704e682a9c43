"""Frames of norms: a folded shape with the axes of statistics and of parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """The folding of x for a norm: a folded shape, statistic axes, parameter axes."""

    shape: tuple[int, ...]
    statistic_axes: tuple[int, ...]
    parameter_axes: tuple[int, ...]

    def kept(self, axes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the folded shape with extent 1 on all axes but these."""
        return tuple(n if i in axes else 1 for i, n in enumerate(self.shape))

    @property
    def statistic_shape(self) -> tuple[int, ...]:
        axes = set(range(len(self.shape))) - set(self.statistic_axes)
        return self.kept(tuple(sorted(axes)))

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        return self.kept(self.parameter_axes)

    @property
    def summed_axes(self) -> tuple[int, ...]:
        """The axes over which the gradients of parameters sum."""
        return tuple(i for i in range(len(self.shape)) if i not in self.parameter_axes)

    @property
    def has_one_parameter(self) -> bool:
        """True if elements share a parameter exactly if they share a statistic."""
        return self.statistic_axes == self.summed_axes

    @property
    def count(self) -> int:
        """The elements of one statistic."""
        return math.prod(self.shape[axis] for axis in self.statistic_axes)

    def suits(self, shape: tuple[int, ...]) -> bool:
        """Return whether this is the frame of a norm over an x of that shape."""
        known = []
        if len(shape) > 0:
            known.append(rows_frame(shape))
        if len(shape) > 1:
            known.append(channels_frame(shape))
            if len(self.shape) == 4 and self.shape[1] > 0 and shape[1] % self.shape[1] == 0:
                known.append(groups_frame(shape, self.shape[1]))
        return self in known


def rows_frame(shape: tuple[int, ...]) -> Frame:
    """Return the frame with statistics over the last axis, and a parameter per element of it."""
    return Frame((math.prod(shape[:-1]), shape[-1]), (1,), (1,))


def groups_frame(shape: tuple[int, ...], groups: int) -> Frame:
    """Return the frame with statistics over channel groups and positions.

    It has a parameter per channel.
    """
    folded = (shape[0], groups, shape[1] // groups, math.prod(shape[2:]))
    return Frame(folded, (2, 3), (1, 2))


def channels_frame(shape: tuple[int, ...]) -> Frame:
    """Return the frame with statistics over all axes but the second, the channels.

    It has a parameter per channel.
    """
    return Frame(shape, tuple(i for i in range(len(shape)) if i != 1), (1,))
