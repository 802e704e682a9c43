"""Reduces a packing problem by joining pieces that fit together, with ruin and recreate.

fits.py joins pieces that fit. When no more fit, pieces with equal live ranges are
piled up as guesses. Long live ranges come first, since short ones coincide by chance. When nothing
is left to guess, the guesses that led to nothing are taken apart, and some small pieces too, since
some of them fitted by chance. Then the process restarts with other guesses. This is ruin and
recreate (Schrimpf et al., 2000). The state with the fewest pieces is kept.

A million buffers cut from one rectangle reduce to a few hundred or a few thousand pieces, depending
on their sizes and times. The pieces are packed like buffers, and each part has a fixed offset
within its piece. For other problems, the pieces are only a heuristic: a packing of them is a valid
packing of the buffers, possibly higher.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from graphc.planner.pack.fits import join_fits
from graphc.planner.pack.pieces import pieces_of, pile_up, spread, take_apart, times_due
from graphc.planner.pack.problem import Integers, PackingProblem
from graphc.random_numbers import random_numbers

GUESSED = 0.1
"""The fraction of all candidate pairs that is piled up at a time."""

RUINED = 0.3
"""The fraction of small pieces without a guess that is taken apart."""

SMALL = 5
"""The maximum number of buffers in a small piece."""

PATIENCE = 50
"""The maximum number of restarts without a new minimum of pieces."""

LIMIT = (4 * 10**7, 6_000)
"""The maximum number of comparisons: a constant, and a number per buffer."""

GUESSING = 50
"""The cost of a round of guesses, in comparisons per piece."""

COMPARISON = 2
"""The units of work per comparison."""


class Joined:
    """The reduction of a problem without pins to pieces. `problem` is the reduced problem,
    `offsets` maps its solution back to buffers. Different seeds lead to different guesses.
    """

    problem: PackingProblem

    def __init__(self, problem: PackingProblem, seed: int) -> None:
        self._buffers, self._seed = len(problem), seed
        self._pieces = pieces_of(problem)
        self._keep(np.arange(len(problem)))

    def work(self) -> Iterator[int]:
        """Search for fewer pieces; yield the units of work since the last yield, at short
        intervals."""
        limit = LIMIT[0] + LIMIT[1] * self._buffers
        fruitless = number = done = 0
        while True:
            while len(due := times_due(self._pieces)) and done < limit:
                work = join_fits(self._pieces, due)
                done += work
                yield COMPARISON * work
            number += 1
            whole = np.flatnonzero(self._pieces.is_whole)
            done += GUESSING * len(whole)
            yield COMPARISON * GUESSING * len(whole)
            if self._guess(whole, number) and done < limit:
                continue
            fruitless += 1
            if len(whole) < len(self.problem):
                self._keep(whole)
                fruitless = 0
            # If more than half as many pieces as buffers remain at the first restart, little fits
            # together. After a ruin that is rare.
            is_hopeless = len(whole) > self._buffers / 2
            if done >= limit or len(whole) == 1 or fruitless > PATIENCE or is_hopeless:
                return
            self._ruin(whole, number)

    def offsets(self, of_pieces: Integers) -> Integers:
        """Return the offsets of the buffers, given the offsets of the pieces."""
        found = np.zeros(len(self._first), np.int64)
        found[self._whole] = of_pieces
        spread(self._first, self._size, self._parts, found, self._whole)
        return found[: self._buffers]

    def _guess(self, whole: Integers, number: int) -> bool:
        """Pile up some pairs of whole pieces with equal live ranges; return False if there are no
        such pairs."""
        pieces = self._pieces
        first, last = pieces.first[whole], pieces.last[whole]
        order = np.lexsort((last, first))
        same = (np.diff(first[order]) == 0) & (np.diff(last[order]) == 0)
        one, other = whole[order[:-1][same]], whole[order[1:][same]]
        if len(one) == 0:
            return False
        failures = pieces.failures[one] + pieces.failures[other]
        noise = 3 + random_numbers(len(one), self._number(number))
        promise = (pieces.last[one] - pieces.first[one]) * noise / (1 + failures)
        chosen = np.argsort(-promise, kind="stable")[: max(1, int(GUESSED * len(one)))]
        pile_up(pieces, one[chosen], other[chosen])
        return True

    def _ruin(self, whole: Integers, number: int) -> None:
        """Take apart all pieces joined by guesses, and a fraction of the other small pieces."""
        pieces = self._pieces
        made = whole[whole >= self._buffers]
        chance = (1 + random_numbers(len(made), self._number(number))) / 2
        is_ruined = (chance < RUINED) & (pieces.buffers[made] <= SMALL)
        take_apart(pieces, made[pieces.is_guess[made] | is_ruined])

    def _number(self, number: int) -> int:
        return self._seed * 1_000_003 + number

    def _keep(self, whole: Integers) -> None:
        pieces = self._pieces
        none = np.zeros(len(whole), np.int64)
        self.problem = PackingProblem.of(
            pieces.first[whole], pieces.last[whole], pieces.size[whole], none.astype(bool), none
        )
        self._whole, self._first = whole, pieces.first.copy()
        self._size, self._parts = pieces.size.copy(), pieces.parts.copy()
