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

Lists that are long are compared in full only with their newest entries, so that a time with many
pieces is not looked at in quadratic work for each change.
"""

from __future__ import annotations

from graphc.jit import compiled
from graphc.packing.pieces import (
    BORN,
    DYING,
    NONE,
    QUEUE_START,
    QUEUED,
    RANDOM,
    WORK,
    Pieces,
    list_of,
    put_together,
)
from graphc.packing.problem import Integers

NEWEST = 48
"""So many entries of a long list are compared with all others."""


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
                put_together(pieces, a, b, NONE, NONE, NONE, pieces.size[a], False)
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
                put_together(pieces, a, b, NONE, NONE, NONE, size, terms == 2)


@compiled
def _wheels(pieces: Pieces, dying: Integers, deaths: int, born: Integers, births: int) -> None:
    """Look for wheels around what is born at a time, or dies then."""
    other_dying, other_born = pieces.near[2], pieces.near[3]
    for i in range(min(births, NEWEST)):
        _wheel_around(pieces, born[i], dying, deaths, born, births)
    for i in range(min(deaths, NEWEST)):
        e = dying[i]
        other_deaths = list_of(pieces, DYING, pieces.first[e], other_dying)
        other_births = list_of(pieces, BORN, pieces.first[e], other_born)
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
                    put_together(pieces, a, b, c, d, e, size[a] + size[d], False)
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
        deaths = list_of(pieces, DYING, time, dying)
        births = list_of(pieces, BORN, time, born)
        counters[WORK] += deaths + births
        _in_time(pieces, dying, deaths, born, births)
        _piles(pieces, pieces.last, born, births, dying, deaths)
        _piles(pieces, pieces.first, dying, deaths, born, births)
        _wheels(pieces, dying, deaths, born, births)
