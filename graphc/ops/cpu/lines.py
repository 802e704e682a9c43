"""Row reductions along an axis, by tiles: each tile is copied to contiguous memory in the cache."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.ops.cpu.numpy_expression import TILE_ELEMENTS

Array = np.ndarray[Any, np.dtype[Any]]

Tile = tuple[slice, slice]
"""Slices of rows: along the axes before the reduced axis, and along those after it."""


@dataclass(frozen=True, slots=True)
class LineTiles:
    """Tiles of whole rows, which run along one axis of a tensor.

    `before`, `length` and `behind` are the numbers of elements before, along and after that axis.
    """

    before: int
    length: int
    behind: int

    @property
    def lines(self) -> int:
        """The largest number of rows in a tile."""
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
    """Return the tiles of a shape whose rows run along an axis."""
    return LineTiles(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


def lines_of(array: Array, axis: int, tile: Tile) -> Array:
    """Return the rows of `tile` as a view (before, behind, length) of a contiguous array."""
    shape = array.shape
    folded = array.reshape(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
    return folded[tile[0], :, tile[1]].transpose(0, 2, 1)


def workspace_for(lines: Array, workspace: Array) -> Array:
    """Return the start of the scratch `workspace` as (before, behind, length), to hold `lines`.

    `workspace` is (rows, length). Its length may differ from that of `lines`, and is the length of
    the result.
    """
    before, behind, _ = lines.shape
    return workspace[: before * behind].reshape(before, behind, workspace.shape[1])


def count_up(numbers: Array) -> None:
    """Fill a vector with 0, 1, 2, ..."""
    numbers.fill(1)
    np.add.accumulate(numbers, out=numbers)
    np.subtract(numbers, 1, out=numbers)
