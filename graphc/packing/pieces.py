"""Pieces: buffers and rectangles joined from them, in linked lists by time.

Each time has two lists: the pieces born then, and the pieces that die then. A time is queued again
when one of its pieces changes. `graphc.packing.fits` decides which pieces are joined.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphc.jit import compiled
from graphc.packing.problem import Flags, Integers, PackingProblem

LONGEST = 4096
"""The maximum number of entries of a list that are examined."""

PARTS = 5
"""The maximum number of parts of a piece; missing parts are NONE."""

NONE = -1

BORN, DYING = 0, 1
"""The two lists of each time."""

QUEUE_START, QUEUED, FREE, RANDOM, WORK = range(5)
"""Indices of the counters: start and length of the ring of queued times, number of free piece
numbers, last random number, and comparisons made."""


class Pieces(NamedTuple):
    """All pieces by number: first the buffers, then the joined pieces.

    `first`, `last`, `size`, `buffers` (the number of buffers in it), `is_whole` (not part of
    another piece), `is_guess` and `failures` have one entry per piece; `parts` has rows of PARTS.
    `head[list, time]`, `following[list, piece]` and `before` are the linked lists. `queue` and
    `is_queued` are the times to examine; `free` contains unused piece numbers; `near` is scratch
    space for four lists.
    """

    first: Integers
    last: Integers
    size: Integers
    buffers: Integers
    parts: Integers
    is_whole: Flags
    is_guess: Flags
    failures: Integers
    head: Integers
    following: Integers
    before: Integers
    queue: Integers
    is_queued: Flags
    free: Integers
    near: Integers
    counters: Integers


def pieces_of(problem: PackingProblem, seed: int) -> Pieces:
    """Return the buffers of a problem as pieces, with nothing joined and all times queued."""
    count, times = len(problem), problem.sections + 1
    room = 2 * count + 1
    columns = np.zeros((3, room), np.int64)
    columns[:, :count] = problem.first, problem.last, problem.size
    is_whole = np.zeros(room, np.bool_)
    is_whole[:count] = True
    head = np.full((2, times), NONE, np.int64)
    following = np.full((2, room), NONE, np.int64)
    before = np.full((2, room), NONE, np.int64)
    for which, key in ((BORN, problem.first), (DYING, problem.last)):
        order = np.argsort(key, kind="stable")
        together = np.diff(key[order]) == 0
        following[which, order[:-1][together]] = order[1:][together]
        before[which, order[1:][together]] = order[:-1][together]
        starts = np.concatenate((np.ones(min(count, 1), np.bool_), ~together))
        head[which, key[order][starts]] = order[starts]
    counters = np.zeros(5, np.int64)
    counters[QUEUED], counters[FREE], counters[RANDOM] = times, room - count, seed
    return Pieces(
        first=columns[0],
        last=columns[1],
        size=columns[2],
        buffers=np.ones(room, np.int64),
        parts=np.full((room, PARTS), NONE, np.int64),
        is_whole=is_whole,
        is_guess=np.zeros(room, np.bool_),
        failures=np.zeros(room, np.int64),
        head=head,
        following=following,
        before=before,
        queue=np.arange(times),
        is_queued=np.ones(times, np.bool_),
        free=np.arange(room - 1, count - 1, -1),
        near=np.zeros((4, LONGEST), np.int64),
        counters=counters,
    )


@compiled
def _put(pieces: Pieces, which: int, time: int, piece: int) -> None:
    """Insert a piece at the front of a list: it is the newest."""
    after = pieces.head[which, time]
    pieces.following[which, piece], pieces.before[which, piece] = after, NONE
    if after != NONE:
        pieces.before[which, after] = piece
    pieces.head[which, time] = piece


@compiled
def _take(pieces: Pieces, which: int, time: int, piece: int) -> None:
    """Remove a piece from a list."""
    before, after = pieces.before[which, piece], pieces.following[which, piece]
    if before == NONE:
        pieces.head[which, time] = after
    else:
        pieces.following[which, before] = after
    if after != NONE:
        pieces.before[which, after] = before


@compiled
def _look_again(pieces: Pieces, time: int) -> None:
    if pieces.is_queued[time]:
        return
    counters = pieces.counters
    place = (counters[QUEUE_START] + counters[QUEUED]) % len(pieces.queue)
    pieces.queue[place] = time
    pieces.is_queued[time] = True
    counters[QUEUED] += 1


@compiled
def _show(pieces: Pieces, piece: int) -> None:
    pieces.is_whole[piece] = True
    _put(pieces, BORN, pieces.first[piece], piece)
    _put(pieces, DYING, pieces.last[piece], piece)


@compiled
def _hide(pieces: Pieces, piece: int) -> None:
    pieces.is_whole[piece] = False
    _take(pieces, BORN, pieces.first[piece], piece)
    _take(pieces, DYING, pieces.last[piece], piece)


@compiled
def put_together(
    pieces: Pieces, a: int, b: int, c: int, d: int, e: int, size: int, is_guess: bool
) -> None:
    """Join two pieces, or five, into one, in the order of `parts`.

    Its live range begins with that of `a` (in a wheel `d` begins with it) and ends with that of
    `b`.
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
            _hide(pieces, part)
            _look_again(pieces, pieces.first[part])
            _look_again(pieces, pieces.last[part])
    _show(pieces, new)


@compiled
def take_apart(pieces: Pieces, chosen: Integers) -> None:
    """Split pieces, and guesses that surface, and queue all their times again."""
    waiting = np.empty(len(pieces.first), np.int64)
    count = len(chosen)
    waiting[:count] = chosen
    while count > 0:
        count -= 1
        piece = waiting[count]
        _hide(pieces, piece)
        pieces.free[pieces.counters[FREE]] = piece
        pieces.counters[FREE] += 1
        for part in pieces.parts[piece]:
            if part == NONE:
                continue
            _show(pieces, part)
            pieces.failures[part] += 1
            _look_again(pieces, pieces.first[part])
            _look_again(pieces, pieces.last[part])
            if pieces.is_guess[part]:
                waiting[count] = part
                count += 1


@compiled
def pile_up(pieces: Pieces, one: Integers, other: Integers) -> None:
    """Pile up pairs of pieces with equal live ranges as guesses; skip pieces that are no longer
    whole."""
    for place in range(len(one)):
        a, b = one[place], other[place]
        if pieces.is_whole[a] and pieces.is_whole[b]:
            size = pieces.size[a] + pieces.size[b]
            put_together(pieces, a, b, NONE, NONE, NONE, size, True)


@compiled
def list_of(pieces: Pieces, which: int, time: int, found: Integers) -> int:
    """Write a list to `found`, newest first, and return its length, at most `LONGEST`."""
    count, piece = 0, pieces.head[which, time]
    while piece != NONE and count < LONGEST:
        found[count] = piece
        count += 1
        piece = pieces.following[which, piece]
    return count


@compiled
def spread(
    first: Integers, size: Integers, parts: Integers, offsets: Integers, whole: Integers
) -> None:
    """Derive the offsets of the parts of each whole piece from its own."""
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
