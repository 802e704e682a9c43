"""Gather and scatter of rows by tuples of indices, in blocks of `LOOKUPS` lookups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from graphc.ops.cpu.lines import count_up

Array = np.ndarray[Any, np.dtype[Any]]

LOOKUPS = 16384
"""The number of lookups processed at a time."""


class Named(Protocol):
    """The selection of rows by index tuples: the interface of `graphc.ops.scatter.Lookups`."""

    @property
    def numbered(self) -> tuple[int, ...]: ...

    @property
    def rows(self) -> int: ...

    @property
    def each(self) -> int: ...

    @property
    def count(self) -> int: ...


def _rows(found: Named, indices: Array, numbers: Array) -> Iterator[tuple[slice, Array]]:
    """Yield blocks of lookups, and the number of each lookup's row in the flattened batch."""
    tuples = indices.reshape(found.count, len(found.numbered))
    for first in range(0, found.count, LOOKUPS):
        span = slice(first, min(first + LOOKUPS, found.count))
        rows, part = numbers[:, : span.stop - first]
        count_up(rows)
        np.add(rows, first, out=rows)
        np.floor_divide(rows, found.each, out=rows)  # the entry of the batch
        for place, extent in enumerate(found.numbered):
            np.copyto(part, tuples[span, place])
            np.multiply(rows, extent, out=rows)
            np.add(rows, part, out=rows)
            np.right_shift(part, 63, out=part)  # -1 for an index that counts from the end
            np.bitwise_and(part, extent, out=part)
            np.add(rows, part, out=rows)
        yield span, rows


def take_rows(found: Named, x: Array, indices: Array, y: Array, numbers: Array) -> None:
    """Gather the selected rows of x into y."""
    taken = y.reshape(found.count, -1)
    table = x.reshape(-1, taken.shape[1])
    for span, rows in _rows(found, indices, numbers):
        np.take(table, rows, 0, taken[span], "clip")  # "clip" is the mode without a buffer


def combine_rows(
    ufunc: np.ufunc | None, found: Named, indices: Array, updates: Array, y: Array, numbers: Array
) -> None:
    """Combine selected rows of y with updates by `ufunc`, or replace them, in order of lookups."""
    given = updates.reshape(found.count, -1)
    table = y.reshape(-1, given.shape[1])
    for span, rows in _rows(found, indices, numbers):
        if ufunc is None:
            table[rows] = given[span]
            continue
        for column in range(table.shape[1]):  # along one axis `at` is fast, and allocates nothing
            ufunc.at(table[:, column], rows, given[span, column])
