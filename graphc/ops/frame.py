"""Frames of norms: the axes over which statistics are computed, and the axes of parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """The shape to which a norm reshapes (folds) x, with the axes of statistics and parameters.

    Statistics reduce the axes `statistic_axes`. Scale and bias vary along the axes
    `parameter_axes`.
    """

    shape: tuple[int, ...]
    statistic_axes: tuple[int, ...]
    parameter_axes: tuple[int, ...]

    def kept(self, axes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the folded shape with extent 1 on all axes except `axes`."""
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
        """True if statistics and parameters vary along the same axes, as in batch norm."""
        return self.statistic_axes == self.summed_axes

    @property
    def count(self) -> int:
        """The number of elements that one statistic reduces."""
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
    """Return the frame of a norm with statistics over the last axis, and parameters along it."""
    return Frame((math.prod(shape[:-1]), shape[-1]), (1,), (1,))


def groups_frame(shape: tuple[int, ...], groups: int) -> Frame:
    """Return the frame of a norm with statistics over channel groups and positions.

    Scale and bias have one element per channel.
    """
    folded = (shape[0], groups, shape[1] // groups, math.prod(shape[2:]))
    return Frame(folded, (2, 3), (1, 2))


def channels_frame(shape: tuple[int, ...]) -> Frame:
    """Return the frame of a norm with statistics over all axes except the channels, the second.

    Scale and bias have one element per channel.
    """
    return Frame(shape, tuple(i for i in range(len(shape)) if i != 1), (1,))
