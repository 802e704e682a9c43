"""What remains of a problem when pieces that fit together are one.

`graphc.packing.fits` puts together what fits. Where that ends, pieces that live equally long are
piled on a guess, the longest lives first, since short ones agree by chance. When nothing is left to
guess, the guesses that led to nothing are taken apart, and all begins anew with other guesses.
Where that makes the pieces no fewer, small pieces are taken apart, too, as some fitted by chance: a
solution is ruined in part and built up again (Schrimpf et al., 2000). The fewest pieces are kept.

Of a million buffers cut from one rectangle a few hundred pieces remain, or a few thousand, as their
sizes and times tell. They are packed like any buffers, and each part then lies at its place within
its piece. For other problems the pieces are nothing but a proposal: a packing of them is one of the
buffers, higher or lower.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np

from graphc.packing.problem import Integers, PackingProblem
from graphc.random_numbers import random_numbers

GUESSED = 0.1
"""Of all pairs that could be piled, the part that is at one time."""

RUINED = (0.0, 0.0, 0.3, 1.0)
"""Of the small pieces, the part that is taken apart without a guess in them: in turn, the longer
there have not been fewer pieces."""

SMALL = 5
"""Most buffers of a small piece."""

PATIENCE = 50
"""Times that all may begin anew without fewer pieces than ever before."""

LIMIT = (4 * 10**7, 6_000)
"""Most comparisons: so many, and so many more a buffer."""

SLICE = 2 * 10**7
"""Comparisons between two looks at the effort."""

ROUND = 50
"""Comparisons that a round of guesses is worth, a piece."""

COMPARISON = 2
"""Units of work of one comparison."""


class Joined:
    """Pieces of a problem without pins: a problem of their own, and where the buffers lie in them.

    Another seed leads to other guesses.
    """

    problem: PackingProblem

    def __init__(self, problem: PackingProblem, seed: int) -> None:
        from graphc.packing.pieces import pieces_of

        self._buffers, self._seed = len(problem), seed
        self._pieces = pieces_of(problem, seed)
        self._keep(np.arange(len(problem)))

    def work(self) -> Iterator[int]:
        """Look for fewer pieces; gives the units of work since it last did, often."""
        limit = LIMIT[0] + LIMIT[1] * self._buffers
        fruitless = number = done = 0
        while True:
            done += yield from self._settle(limit - done)
            number += 1
            whole = np.flatnonzero(self._pieces.is_whole)
            done += ROUND * len(whole)
            yield COMPARISON * ROUND * len(whole)
            if self._guess(whole, number) and done < limit:
                continue
            fruitless += 1
            if len(whole) < len(self.problem):
                self._keep(whole)
                fruitless = 0
            # More than half are left at the first end: little fits. After a ruin that is rare.
            is_hopeless = len(whole) > self._buffers / 2
            if done >= limit or len(whole) == 1 or fruitless > PATIENCE or is_hopeless:
                return
            self._ruin(whole, number, RUINED[fruitless * len(RUINED) // (PATIENCE + 1)])

    def offsets(self, of_pieces: Integers) -> Integers:
        """Offsets of the buffers from those of the pieces."""
        from graphc.packing.pieces import spread

        found = np.zeros(len(self._first), np.int64)
        found[self._whole] = of_pieces
        spread(self._first, self._size, self._parts, found, self._whole)
        return found[: self._buffers]

    def _settle(self, limit: int) -> Generator[int, None, int]:
        """Put together all that fits; gives units of work, returns comparisons."""
        from graphc.packing.fits import settle
        from graphc.packing.pieces import QUEUED, WORK

        counters, done = self._pieces.counters, 0
        while True:
            counters[WORK] = 0
            settle(self._pieces, SLICE)
            done += int(counters[WORK])
            yield COMPARISON * int(counters[WORK])
            if counters[QUEUED] == 0 or done >= limit:
                return done

    def _guess(self, whole: Integers, number: int) -> bool:
        """Pile some of the pieces that live equally long; False where there are none."""
        from graphc.packing.pieces import pile_up

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

    def _ruin(self, whole: Integers, number: int, part: float) -> None:
        """Take apart what was guessed, and a part of the small pieces."""
        from graphc.packing.pieces import take_apart

        pieces = self._pieces
        made = whole[whole >= self._buffers]
        chance = (1 + random_numbers(len(made), self._number(number))) / 2
        is_ruined = (chance < part) & (pieces.buffers[made] <= SMALL)
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
