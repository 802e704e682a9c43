"""Pieces that fit together exactly, like those of a jigsaw puzzle, become larger pieces.

In time and bytes a buffer is a rectangle. Where an arena is full at every time, what is born at a
time fills just what dies then, so equal sizes there are hardly chance. Three shapes are put
together, and each is a rectangle again:

- *In time*: one dies when another of the same size is born, and hands its bytes on.
- *A pile*: two live equally long. As short lives often do, they must also be as large together as
  one or two others that end, or begin, where they begin, or end.
- *A wheel* of five, which no straight cut through a rectangle makes::

      | d d d c c |        a and e end when b begins, and are as large as b;
      | d d d b b |        c and e begin when d ends, and are as large as d;
      | d d e b b |        a and d begin together, b and c end together.
      | a a a b b |        (Here e lives shortly, where a, b, c and d surround it.)

All is kept by time: two lists a time, of the pieces that are born and that die then. A time is
looked at again when one of its pieces has changed. Lists that are long are compared in full only
with their newest entries, so that a time with many pieces is not looked at in quadratic work for
each change.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphc.packing.compiled import compiled
from graphc.packing.problem import Flags, Integers, PackingProblem

NEWEST = 48
"""So many entries of a long list are compared with all others."""

LONGEST = 4096
"""Entries of a list that are looked at at all."""

PARTS = 5
"""Most parts of a piece; NONE stands where there are fewer."""

NONE = -1

BORN, DYING = 0, 1
"""The two lists of each time."""

QUEUE_START, QUEUED, FREE, RANDOM, WORK = range(5)
"""Counters: the ring of times to look at, the numbers not in use, the last random number, and the
comparisons made."""


class Pieces(NamedTuple):
    """All pieces by number: first the buffers, then what is put together of them.

    `first`, `last`, `size`, `buffers` (of how many it is made), `is_whole` (no part of another),
    `is_guess` and `failures` have an entry a piece, `parts` has rows of PARTS. `head[list, time]`,
    `following[list, piece]` and `before` are the lists; `queue` and `is_queued` the times to look
    at; `free` the numbers not in use; `near` has room for four lists.
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
    """The buffers of a problem, nothing put together, and every time to be looked at."""
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
    """Put a piece in front of a list: it is the newest."""
    after = pieces.head[which, time]
    pieces.following[which, piece], pieces.before[which, piece] = after, NONE
    if after != NONE:
        pieces.before[which, after] = piece
    pieces.head[which, time] = piece


@compiled
def _take(pieces: Pieces, which: int, time: int, piece: int) -> None:
    """Take a piece out of a list."""
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
def _put_together(
    pieces: Pieces, a: int, b: int, c: int, d: int, e: int, size: int, is_guess: bool
) -> None:
    """Make one piece of two, or of five, in the order in which `parts` has them.

    Its life begins with `a` (or, of five, with `d`, which begins with it) and ends with `b`.
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
    """Take pieces apart, and guesses that show then, and look at all their times again."""
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
    """Pile pieces that live equally long, on a guess; those that are no longer whole are left."""
    for place in range(len(one)):
        a, b = one[place], other[place]
        if pieces.is_whole[a] and pieces.is_whole[b]:
            size = pieces.size[a] + pieces.size[b]
            _put_together(pieces, a, b, NONE, NONE, NONE, size, True)


@compiled
def _list(pieces: Pieces, which: int, time: int, found: Integers) -> int:
    """Write a list, the newest first, and return its length."""
    count, piece = 0, pieces.head[which, time]
    while piece != NONE and count < LONGEST:
        found[count] = piece
        count += 1
        piece = pieces.following[which, piece]
    return count


@compiled
def _is_tried(pieces: Pieces, one: int, other: int) -> bool:
    """Whether a fit is taken: what was taken apart before is, the oftener, the less likely."""
    failures = pieces.failures[one] + pieces.failures[other]
    if failures == 0:
        return True
    counters = pieces.counters
    # The generator of the C standard's example: 31 bits, so that products stay below 2**63.
    counters[RANDOM] = (counters[RANDOM] * 1103515245 + 12345) & 0x7FFFFFFF
    return bool((counters[RANDOM] >> 8) % (failures + 1) == 0)


@compiled
def _in_time(pieces: Pieces, dying: Integers, deaths: int, born: Integers, births: int) -> None:
    for i in range(deaths):
        a = dying[i]
        # Of two long lists, only pairs with one of the newest.
        for j in range(births if i < NEWEST else min(births, NEWEST)):
            b = born[j]
            if pieces.size[a] == pieces.size[b] and pieces.is_whole[b]:
                if not _is_tried(pieces, a, b):
                    continue
                _put_together(pieces, a, b, NONE, NONE, NONE, pieces.size[a], False)
                break
        pieces.counters[WORK] += births


@compiled
def _terms(pieces: Pieces, wanted: int, others: Integers, count: int) -> int:
    """Of how many of the others, one or two, a size is the sum; 0 if of neither."""
    size = pieces.size
    pieces.counters[WORK] += count
    for i in range(count):
        if size[others[i]] == wanted and pieces.is_whole[others[i]]:
            return 1
    for i in range(min(count, NEWEST)):
        rest = wanted - size[others[i]]
        if rest <= 0 or not pieces.is_whole[others[i]]:
            continue
        pieces.counters[WORK] += NEWEST
        for j in range(i + 1, min(count, NEWEST)):
            if size[others[j]] == rest and pieces.is_whole[others[j]]:
                return 2
    return 0


@compiled
def _piles(
    pieces: Pieces, end: Integers, mine: Integers, count: int, others: Integers, other_count: int
) -> None:
    """Pile those of one list whose other `end` is the same too, if the other list has the sum."""
    for i in range(min(count, NEWEST)):
        a = mine[i]
        pieces.counters[WORK] += count
        for j in range(i + 1, count):
            b = mine[j]
            if end[a] != end[b] or not pieces.is_whole[a] or not pieces.is_whole[b]:
                continue
            size = pieces.size[a] + pieces.size[b]
            terms = _terms(pieces, size, others, other_count)
            # With many sizes, one is the sum of some two others by chance.
            if terms == 1 or (terms == 2 and _is_tried(pieces, a, b)):
                _put_together(pieces, a, b, NONE, NONE, NONE, size, terms == 2)


@compiled
def _wheels(pieces: Pieces, dying: Integers, deaths: int, born: Integers, births: int) -> None:
    """Look for wheels around what is born at a time, or dies then."""
    other_dying, other_born = pieces.near[2], pieces.near[3]
    for i in range(min(births, NEWEST)):
        _wheel_around(pieces, born[i], dying, deaths, born, births)
    for i in range(min(deaths, NEWEST)):
        e = dying[i]
        other_deaths = _list(pieces, DYING, pieces.first[e], other_dying)
        other_births = _list(pieces, BORN, pieces.first[e], other_born)
        _wheel_around(pieces, e, other_dying, other_deaths, other_born, other_births)


@compiled
def _wheel_around(
    pieces: Pieces, e: int, dying: Integers, deaths: int, born: Integers, births: int
) -> None:
    """Look for the wheel in whose middle a piece is, among what dies and is born with it."""
    size, is_whole = pieces.size, pieces.is_whole
    if not is_whole[e]:
        return
    deaths, births = min(deaths, NEWEST), min(births, NEWEST)
    pieces.counters[WORK] += deaths
    for j in range(deaths):
        d = dying[j]
        rest = size[d] - size[e]
        if rest <= 0 or not is_whole[d]:
            continue
        pieces.counters[WORK] += births
        for k in range(births):
            c = born[k]
            if size[c] != rest or c == e or not is_whole[c]:
                continue
            if _close_wheel(pieces, c, d, e):
                return


@compiled
def _close_wheel(pieces: Pieces, c: int, d: int, e: int) -> bool:
    """Look for the two pieces that a wheel lacks, where its middle ends; whether it is closed."""
    first, last, size = pieces.first, pieces.last, pieces.size
    if last[c] <= last[e]:
        return False
    a = pieces.head[DYING, last[e]]
    for _ in range(NEWEST):
        if a == NONE:
            return False
        if a != e and first[a] == first[d]:
            b = pieces.head[BORN, last[e]]
            for _ in range(NEWEST):
                if b == NONE:
                    break
                pieces.counters[WORK] += 1
                if last[b] == last[c] and size[b] == size[a] + size[e]:
                    _put_together(pieces, a, b, c, d, e, size[a] + size[d], False)
                    return True
                b = pieces.following[BORN, b]
        a = pieces.following[DYING, a]
    return False


@compiled
def settle(pieces: Pieces, limit: int) -> None:
    """Put together what fits until every time has been looked at, or `limit` work is done."""
    counters = pieces.counters
    dying, born = pieces.near[0], pieces.near[1]
    while counters[QUEUED] > 0 and counters[WORK] < limit:
        time = pieces.queue[counters[QUEUE_START]]
        counters[QUEUE_START] = (counters[QUEUE_START] + 1) % len(pieces.queue)
        counters[QUEUED] -= 1
        pieces.is_queued[time] = False
        deaths = _list(pieces, DYING, time, dying)
        births = _list(pieces, BORN, time, born)
        counters[WORK] += deaths + births
        _in_time(pieces, dying, deaths, born, births)
        _piles(pieces, pieces.last, born, births, dying, deaths)
        _piles(pieces, pieces.first, dying, deaths, born, births)
        _wheels(pieces, dying, deaths, born, births)


@compiled
def spread(
    first: Integers, size: Integers, parts: Integers, offsets: Integers, whole: Integers
) -> None:
    """Give the parts of each whole piece their offsets, from its own."""
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
