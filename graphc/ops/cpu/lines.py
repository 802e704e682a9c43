"""Lines along an axis, some at a time: copied into a tile they lie in one piece, in a cache."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.ops.cpu.numpy_expression import TILE_ELEMENTS

Array = np.ndarray[Any, np.dtype[Any]]

Tile = tuple[slice, slice]
"""Which lines: along the axes before that of the lines, and along those behind it."""


@dataclass(frozen=True, slots=True)
class LineTiles:
    """How a shape is cut into tiles of whole lines: axes before, the lines' own, and behind."""

    before: int
    length: int
    behind: int

    @property
    def lines(self) -> int:
        """The most lines of a tile."""
        fit = max(1, TILE_ELEMENTS // self.length)
        return min(fit, self.behind) if fit < self.behind else self._rows(fit) * self.behind

    def _rows(self, fit: int) -> int:
        return min(self.before, fit // self.behind)

    def __iter__(self) -> Iterator[Tile]:
        fit = max(1, TILE_ELEMENTS // self.length)
        if fit < self.behind:
            for row in range(self.before):
                for first in range(0, self.behind, fit):
                    yield slice(row, row + 1), slice(first, min(first + fit, self.behind))
            return
        step = self._rows(fit)
        for first in range(0, self.before, step):
            yield slice(first, min(first + step, self.before)), slice(0, self.behind)


def line_tiles(shape: tuple[int, ...], axis: int) -> LineTiles:
    """The tiles of a shape whose lines run along an axis."""
    return LineTiles(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


def lines_of(array: Array, axis: int, tile: Tile) -> Array:
    """The lines of a tile as a view (before, behind, length) of an array in one piece."""
    shape = array.shape
    folded = array.reshape(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
    return folded[tile[0], :, tile[1]].transpose(0, 2, 1)


def room_for(lines: Array, room: Array) -> Array:
    """The first lines of a room (lines, length) in the shape of `lines`, (before, behind, length).

    The room's lines may have another length.
    """
    before, behind, _ = lines.shape
    return room[: before * behind].reshape(before, behind, room.shape[1])


def count_up(numbers: Array) -> None:
    """Fill a vector with 0, 1, 2, ..."""
    numbers.fill(1)
    np.add.accumulate(numbers, out=numbers)
    np.subtract(numbers, 1, out=numbers)
