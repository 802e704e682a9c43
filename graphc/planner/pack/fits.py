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

Pieces are joined in rounds. A round examines the times at which a piece has changed, with lists of
the whole pieces that are born and die there, newest first. Of a long list, only the newest entries
are compared with all others. Otherwise a time with many pieces would take quadratic work for each
change.
"""

from __future__ import annotations

import numpy as np

from graphc.jit import compiled
from graphc.planner.pack.pieces import NONE, ROUND, WORK, Pieces, put_together
from graphc.planner.pack.problem import Integers

NEWEST = 48
"""The number of newest entries of a long list that are compared with all other entries."""


def join_fits(pieces: Pieces, due: Integers) -> int:
    """Join pieces that fit together at the times `due`; return the number of comparisons made."""
    pieces.counters[ROUND] += 1
    pieces.counters[WORK] = 0
    whole = np.flatnonzero(pieces.is_whole)[::-1]
    born = whole[np.argsort(pieces.first[whole], kind="stable")]
    dying = whole[np.argsort(pieces.last[whole], kind="stable")]
    _examine(pieces, due, born, pieces.first[born], dying, pieces.last[dying])
    return int(pieces.counters[WORK])


@compiled
def _at(time: int, sorted_pieces: Integers, times: Integers) -> Integers:
    """Return the entries of `sorted_pieces` at a time; `times` has the time of each entry,
    ascending."""
    begin, end = np.searchsorted(times, time), np.searchsorted(times, time + 1)
    return sorted_pieces[begin:end]


@compiled
def _examine(
    pieces: Pieces,
    due: Integers,
    born: Integers,
    births: Integers,
    dying: Integers,
    deaths: Integers,
) -> None:
    for time in due:
        # Its lists are outdated if a piece of it has changed in this round.
        if pieces.due[time] > pieces.counters[ROUND]:
            continue
        begin, end = _at(time, born, births), _at(time, dying, deaths)
        pieces.counters[WORK] += len(begin) + len(end)
        _in_time(pieces, end, begin)
        _piles(pieces, pieces.last, begin, end)
        _piles(pieces, pieces.first, end, begin)
        # A wheel has its middle among the pieces that are born or die at the time.
        for middle in (begin[:NEWEST], end[:NEWEST]):
            for e in middle:
                first, last = pieces.first[e], pieces.last[e]
                if pieces.is_whole[e]:
                    _wheel_around(
                        pieces,
                        e,
                        _at(first, dying, deaths)[:NEWEST],
                        _at(first, born, births)[:NEWEST],
                        _at(last, dying, deaths)[:NEWEST],
                        _at(last, born, births)[:NEWEST],
                    )


@compiled
def _in_time(pieces: Pieces, dying: Integers, born: Integers) -> None:
    for i in range(len(dying)):
        a = dying[i]
        if not pieces.is_whole[a]:
            continue
        # For two long lists, compare only pairs that include one of the newest entries.
        for b in born if i < NEWEST else born[:NEWEST]:
            if pieces.size[a] == pieces.size[b] and pieces.is_whole[b]:
                put_together(pieces, a, b, NONE, NONE, NONE, pieces.size[a], False)
                break
        pieces.counters[WORK] += len(born)


@compiled
def _terms(pieces: Pieces, wanted: int, others: Integers) -> int:
    """Return the number of pieces in `others`, 1 or 2, whose sizes sum to `wanted`; 0 if there are
    none."""
    size = pieces.size
    pieces.counters[WORK] += len(others)
    for other in others:
        if size[other] == wanted and pieces.is_whole[other]:
            return 1
    newest = others[:NEWEST]
    for i in range(len(newest)):
        rest = wanted - size[newest[i]]
        if rest <= 0 or not pieces.is_whole[newest[i]]:
            continue
        pieces.counters[WORK] += NEWEST
        for other in newest[i + 1 :]:
            if size[other] == rest and pieces.is_whole[other]:
                return 2
    return 0


@compiled
def _piles(pieces: Pieces, end: Integers, mine: Integers, others: Integers) -> None:
    """Pile up pairs in `mine` with equal `end` if one or two of the other pieces have their total
    size."""
    for i in range(min(len(mine), NEWEST)):
        a = mine[i]
        pieces.counters[WORK] += len(mine)
        for b in mine[i + 1 :]:
            if end[a] != end[b] or not pieces.is_whole[a] or not pieces.is_whole[b]:
                continue
            size = pieces.size[a] + pieces.size[b]
            terms = _terms(pieces, size, others)
            if terms > 0:
                # Among many sizes, a size is often the sum of some two others by chance.
                put_together(pieces, a, b, NONE, NONE, NONE, size, terms == 2)


@compiled
def _wheel_around(
    pieces: Pieces, e: int, dying: Integers, born: Integers, dying_later: Integers, later: Integers
) -> None:
    """Join a wheel with piece `e` in the middle. The lists have the pieces that die or are born at
    the birth of `e`, then at the death of `e`."""
    first, last, size, is_whole = pieces.first, pieces.last, pieces.size, pieces.is_whole
    pieces.counters[WORK] += len(dying)
    for d in dying:
        rest = size[d] - size[e]
        if rest <= 0 or not is_whole[d]:
            continue
        pieces.counters[WORK] += len(born)
        for c in born:
            if size[c] != rest or not is_whole[c] or last[c] <= last[e]:
                continue
            for a in dying_later:
                if a == e or not is_whole[a] or first[a] != first[d]:
                    continue
                pieces.counters[WORK] += len(later)
                for b in later:
                    if is_whole[b] and last[b] == last[c] and size[b] == size[a] + size[e]:
                        put_together(pieces, a, b, c, d, e, size[a] + size[d], False)
                        return
