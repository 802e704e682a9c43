"""Pieces: buffers and rectangles joined from them.

A time is due for examination when one of its pieces has changed. `graphc.planner.pack.fits` decides
which pieces are joined.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphc.jit import compiled
from graphc.planner.pack.problem import Flags, Integers, PackingProblem

PARTS = 5
"""The maximum number of parts of a piece; unused entries are NONE."""

NONE = -1

ROUND, FREE, WORK = range(3)
"""Indices of the counters: rounds begun, free piece numbers, and comparisons made."""


class Pieces(NamedTuple):
    """All pieces by number: first the buffers, then the joined pieces.

    `first`, `last`, `size`, `buffers` (the number of buffers in it), `is_whole` (not part of
    another piece), `is_guess` and `failures` have one entry per piece; `parts` has rows of PARTS.
    `due` is the last round in which each time is examined; `free` contains unused piece numbers.
    """

    first: Integers
    last: Integers
    size: Integers
    buffers: Integers
    parts: Integers
    is_whole: Flags
    is_guess: Flags
    failures: Integers
    due: Integers
    free: Integers
    counters: Integers


def pieces_of(problem: PackingProblem) -> Pieces:
    """Return a piece for each buffer of a problem; no pieces are joined, and all times are due."""
    count = len(problem)
    capacity = 2 * count + 1
    columns = np.zeros((3, capacity), np.int64)
    columns[:, :count] = problem.first, problem.last, problem.size
    return Pieces(
        first=columns[0],
        last=columns[1],
        size=columns[2],
        buffers=np.ones(capacity, np.int64),
        parts=np.full((capacity, PARTS), NONE, np.int64),
        is_whole=np.arange(capacity) < count,
        is_guess=np.zeros(capacity, np.bool_),
        failures=np.zeros(capacity, np.int64),
        due=np.ones(problem.sections + 1, np.int64),
        free=np.arange(capacity - 1, count - 1, -1),
        counters=np.array([0, capacity - count, 0]),
    )


def times_due(pieces: Pieces) -> Integers:
    """Return the times that are due for examination in the next round."""
    return np.flatnonzero(pieces.due > pieces.counters[ROUND])


@compiled
def _change(pieces: Pieces, piece: int, is_whole: bool) -> None:
    """Set `is_whole` of a piece; mark its birth and its death as due in the next round."""
    pieces.is_whole[piece] = is_whole
    pieces.due[pieces.first[piece]] = pieces.counters[ROUND] + 1
    pieces.due[pieces.last[piece]] = pieces.counters[ROUND] + 1


@compiled
def put_together(
    pieces: Pieces, a: int, b: int, c: int, d: int, e: int, size: int, is_guess: bool
) -> None:
    """Join two or five pieces into a new piece, whose `parts` are these pieces in the order given.
    The live range of the new piece begins with `a` (in a wheel, also with `d`) and ends with `b`.
    """
    counters = pieces.counters
    counters[FREE] -= 1
    new = pieces.free[counters[FREE]]
    pieces.first[new], pieces.last[new], pieces.size[new] = pieces.first[a], pieces.last[b], size
    pieces.is_guess[new], pieces.failures[new] = is_guess, 0
    parts = pieces.parts[new]
    parts[0], parts[1], parts[2], parts[3], parts[4] = a, b, c, d, e
    pieces.buffers[new] = 0
    for part in parts:
        if part != NONE:
            pieces.buffers[new] += pieces.buffers[part]
            _change(pieces, part, False)
    pieces.is_whole[new] = True


@compiled
def take_apart(pieces: Pieces, chosen: Integers) -> None:
    """Split the chosen pieces into their parts, and further any part that was joined by a guess."""
    waiting = np.empty(len(pieces.first), np.int64)
    count = len(chosen)
    waiting[:count] = chosen
    while count > 0:
        count -= 1
        piece = waiting[count]
        pieces.is_whole[piece] = False
        pieces.free[pieces.counters[FREE]] = piece
        pieces.counters[FREE] += 1
        for part in pieces.parts[piece]:
            if part == NONE:
                continue
            _change(pieces, part, True)
            pieces.failures[part] += 1
            if pieces.is_guess[part]:
                waiting[count] = part
                count += 1


@compiled
def pile_up(pieces: Pieces, one: Integers, other: Integers) -> None:
    """Pile up the pairs `one[i]`, `other[i]` of pieces with equal live ranges, as guesses. Pairs
    with a piece that is already part of another piece are skipped."""
    for place in range(len(one)):
        a, b = one[place], other[place]
        if pieces.is_whole[a] and pieces.is_whole[b]:
            size = pieces.size[a] + pieces.size[b]
            put_together(pieces, a, b, NONE, NONE, NONE, size, True)


@compiled
def spread(
    first: Integers, size: Integers, parts: Integers, offsets: Integers, whole: Integers
) -> None:
    """Set the offsets of all parts of each piece in `whole`, at all levels, from the offset of the
    piece."""
    waiting = np.empty(len(first), np.int64)
    count = len(whole)
    waiting[:count] = whole
    while count > 0:
        count -= 1
        piece = waiting[count]
        a, b, c, d, e = parts[piece]
        if a == NONE:
            continue
        bottom = offsets[piece]
        offsets[a] = offsets[b] = bottom
        if c != NONE:
            offsets[d] = offsets[e] = bottom + size[a]
            offsets[c] = bottom + size[b]
        elif first[a] == first[b]:
            offsets[b] = bottom + size[a]
        for part in parts[piece]:
            if part != NONE:
                waiting[count] = part
                count += 1
