"""Joins pieces that fit together exactly, like those of a jigsaw puzzle.

A buffer is a rectangle in time and bytes. If an arena is full at every time, the buffers born at a
time fill exactly the bytes of those that die then. Equal sizes are then hardly a coincidence. Three
shapes are joined, each into a larger rectangle:

- *In time*: one piece dies when another of the same size is born, and passes its bytes on.
- *A pile*: two pieces have equal live ranges. Short live ranges often coincide. So their total
  size must also equal that of one or two pieces that die where both are born, or are born where
  both die.
- *A wheel* of five, which no straight cut divides::

      | d d d c c |        a and e end when b begins; their sizes add up to that of b;
      | d d d b b |        c and e begin when d ends; their sizes add up to that of d;
      | d d e b b |        a and d begin together, b and c end together.
      | a a a b b |        (e has a short live range, surrounded by a, b, c and d.)

Long lists are compared in full only with their newest entries. Otherwise a time with many pieces
would take quadratic work for each change.
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
"""The number of entries of a long list that are compared with all others."""


@compiled
def _is_tried(pieces: Pieces, one: int, other: int) -> bool:
    """Return True if a fit is accepted: the more often its pieces were split, the less likely."""
    failures = pieces.failures[one] + pieces.failures[other]
    if failures == 0:
        return True
    counters = pieces.counters
    # The example generator of the C standard: 31 bits, so that products stay below 2**63.
    counters[RANDOM] = (counters[RANDOM] * 1103515245 + 12345) & 0x7FFFFFFF
    return bool((counters[RANDOM] >> 8) % (failures + 1) == 0)


@compiled
def _in_time(pieces: Pieces, dying: Integers, deaths: int, born: Integers, births: int) -> None:
    for i in range(deaths):
        a = dying[i]
        # For two long lists, compare only pairs that include one of the newest entries.
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
    """Return 1 or 2 if so many of the others sum to the wanted size, else 0."""
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
    """Pile up entries of a list with the same other `end`, if the other list contains their sum."""
    for i in range(min(count, NEWEST)):
        a = mine[i]
        pieces.counters[WORK] += count
        for j in range(i + 1, count):
            b = mine[j]
            if end[a] != end[b] or not pieces.is_whole[a] or not pieces.is_whole[b]:
                continue
            size = pieces.size[a] + pieces.size[b]
            terms = _terms(pieces, size, others, other_count)
            # Among many sizes, a size is often the sum of some two others by chance.
            if terms == 1 or (terms == 2 and _is_tried(pieces, a, b)):
                put_together(pieces, a, b, NONE, NONE, NONE, size, terms == 2)


@compiled
def _wheels(pieces: Pieces, dying: Integers, deaths: int, born: Integers, births: int) -> None:
    """Search for wheels around the pieces that are born or die at a time."""
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
    """Search for a wheel with piece `e` in the middle, among the lists of the time of its birth."""
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
    """Search for the two missing pieces at the time the middle dies; return True if found."""
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
    """Join pieces that fit until the queue of times is empty or `limit` work is done."""
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
