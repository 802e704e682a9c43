"""The phases of packing, cheapest first. Each ends where nothing lower is wanted or can exist.

1. Best fit in the order of time, which needs no compiled code.
2. Lowest place first (`fill_valleys`) in orders by size, duration, area, birth and crowd.
3. Squeaky wheel: what ends above the target goes further to the front, and all is placed anew.
   Joslin and Clements (1999); TVM's memory planner and XLA's repacker improve in this way.
4. Best and first fit (`place_in_order`) in the same orders.
5. What fits together exactly is joined, and the fewer pieces are packed by all of these methods.
   Problems too large for phase 4 are joined before phase 2, and only if they are nearly full. If
   they have few lifetimes, what lives equally long is stacked (`stacked.py`), before and after.
6. Exact search, restarted with disturbed orders and limits by the sequence of Luby et al. (1993),
   every other time for a height between the best and the bound, in turn with pieces of other
   guesses; for problems too large for it, more rounds of the squeaky wheel.

Phases 1, 2 and 4 place each buffer once, in O(n log n), about O(n log n) and O(n²); 3 repeats 2; 5
is about linear, and 6 is exponential, each with a limit. A packing is only ever replaced by a lower
one. The bound is the most that is live at one time, which most training steps reach in phase 1 or
2; an exhausted search raises it, since it proves that a capacity is not enough.

Where something is pinned, the squeaky wheel places by best fit, there is no lowest place first, and
nothing is joined or stacked.

Effort is counted in units of work, about a nanosecond each, never in seconds: the same effort gives
the same packing on every machine, and more effort none that is higher.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np

from graphc.packing.exact import ExactSearch, Outcome
from graphc.packing.in_time import pack_in_time
from graphc.packing.joined import Joined
from graphc.packing.orders import basic_orders, disturbed_orders, ranks
from graphc.packing.problem import Integers, PackingProblem
from graphc.packing.stacked import stacked
from graphc.progress import report
from graphc.random_numbers import random_numbers

ORDER_LIMIT = 8192
"""Most buffers that are placed in quadratic work."""

SEARCH_LIMIT = 2048
"""Most buffers that are searched exactly."""

SQUEAKS = 40
"""Rounds of the squeaky wheel from one order."""

VISIT = 16
"""Units of work for one node that `fill_valleys` visits."""

CALL = 20_000
"""Units of work for what stands around a kernel."""

REPORTED = 5 * 10**8
"""Units of work between two reports, which is a second or two."""

FULL = 0.95
"""The part of the bound that is live on average where a large problem is joined: there, what is
born fills what dies."""

PIECE_WORK = (10**8, 10**5)
"""Units of work with the pieces of one guess: so many, and so many more a buffer."""

STACKED_WORK = 10**9
"""Units of work with stacks before anything else: a second, as what they gain comes early."""

PARTS = (4, 16)
"""A search for less goes a fourth or a sixteenth of the way to the bound, in turn: for half of it
hardly any succeeds, and shorter steps gain less."""


class Packer:
    """Packs one problem and keeps the best that it has found.

    `offsets` and `height` are the best packing; `bound` is what is proven that none is below. All
    are in the problem's units, of `unit` bytes.
    """

    def __init__(self, problem: PackingProblem, unit: int = 1, may_join: bool = True) -> None:
        self.problem, self.unit = problem, unit
        self.bound = problem.bound
        self.work = self._reported = 0
        self._pinned = bool(problem.is_pinned.any())
        self._may_join = may_join and not self._pinned
        self.target = self.wanted = self.bound
        self.steps = self._steps()
        self._begin()

    def improve(self, target: int, effort: int, wanted: int, goal: int = 0) -> bool:
        """Work until the height is `target` or `goal`, proven least, or `effort` is used up.

        What is looked for is the target, whatever the goal, and while the height is above it, what
        is `wanted`. Another call goes on where the last one ended; there is nothing left to try
        where it returns False.
        """
        self.target, self.wanted = target, wanted
        while True:
            least = max(target, self.bound)
            if self.height <= max(least, goal) or self.work >= effort:
                return True
            if self.work - self._reported >= REPORTED:
                self._reported = self.work
                report(
                    f"packing {len(self.problem):,} buffers: {self.height * self.unit:,} bytes, at "
                    f"least {least * self.unit:,}, {self.work / effort:.0%} of the effort"
                )
            if next(self.steps, None) is None:
                return False

    def _begin(self) -> None:
        """Make a first packing at little work."""
        if self._pinned:
            self.offsets, self.height = self._in_order(self.problem.by_birth, True)
        else:
            self.offsets, self.height = pack_in_time(self.problem)

    def _steps(self) -> Iterator[bool]:
        yield True
        is_large = len(self.problem) > ORDER_LIMIT
        may_stack = is_large and not self._pinned
        found = stacked(self.problem, SEARCH_LIMIT) if may_stack else None
        if found is not None:
            stacks = Packer(found.problem, self.unit)
            yield from self._instead(stacks, found.offsets, STACKED_WORK)
        if is_large and self.problem.live.mean() >= FULL * self.bound:
            yield from self._join(0)
        if found is not None:
            # Where so many live together, lowest place first is quadratic in the buffers.
            yield from self._instead(stacks, found.offsets)
            return
        # The skyline of `fill_valleys` starts flat, so it knows no pins.
        if not self._pinned:
            for order in basic_orders(self.problem):
                self.keep(*self._in_valleys(order))
                yield True
            yield from self._squeak(SQUEAKS)
        if not is_large:
            for order in basic_orders(self.problem):
                for tightest in (True, False):
                    self.keep(*self._in_order(order, tightest))
                    yield True
            yield from self._join(0)
        may_search = len(self.problem) <= SEARCH_LIMIT
        yield from self._search() if may_search else self._squeak(None)

    def _join(self, seed: int) -> Iterator[bool]:
        """Join what fits together, and pack the pieces instead."""
        if not self._may_join:
            return
        joined = Joined(self.problem, seed)
        for work in joined.work():
            self.work += work
            yield True
        # Of what is not cut from one rectangle little fits, and most of that by chance.
        if len(joined.problem) > len(self.problem) / 2:
            self._may_join = False
            return
        limit = PIECE_WORK[0] + PIECE_WORK[1] * len(self.problem)
        pieces = Packer(joined.problem, self.unit, may_join=False)
        yield from self._instead(pieces, joined.offsets, limit)

    def _instead(
        self, inner: Packer, offsets: Callable[[Integers], Integers], limit: float = math.inf
    ) -> Iterator[bool]:
        """Pack what the buffers are parts of, which have these offsets then, to so much work."""
        done = inner.work
        for _ in inner.steps:
            self.work, done = self.work + inner.work - done, inner.work
            inner.target, inner.wanted = self.target, self.wanted
            if inner.height < self.height:
                self.keep(offsets(inner.offsets), inner.height)
            yield True
            # That the pieces fit no lower proves nothing of the buffers.
            if inner.height <= max(self.target, inner.bound) or inner.work >= limit:
                return

    def _squeak(self, rounds: int | None) -> Iterator[bool]:
        """What ends too high goes to the front by a random part of the way."""
        # Each round would be quadratic.
        if self._pinned and len(self.problem) > ORDER_LIMIT:
            return
        orders = disturbed_orders(self.problem)
        done = 0
        while rounds is None or done < rounds:
            # A fresh order after so many rounds: blame may go round in circles.
            place = ranks(next(orders)).astype(np.float64)
            for _ in range(SQUEAKS):
                done += 1
                order = np.argsort(place, kind="stable")
                found = self._in_order(order, True) if self._pinned else self._in_valleys(order)
                self.keep(*found)
                yield True
                # By up to 0.3 of all places, most of them by less: what is to blame is a guess.
                blamed = np.flatnonzero(found[0] + self.problem.size > self.target)
                jump = (1 + random_numbers(len(blamed), done)) / 2
                place[blamed] -= 0.3 * len(place) * jump * jump

    def _search(self) -> Iterator[bool]:
        """Restarted searches for the target and for less than the best, other ways in between."""
        exact, squeaks = ExactSearch(self.problem), self._squeak(None)
        # A seed that leaves too many pieces ends them all.
        seeds = itertools.takewhile(lambda _: self._may_join, itertools.count(1))
        joins = itertools.chain.from_iterable(map(self._join, seeds))
        ways = itertools.cycle((joins, squeaks))
        for number, order in enumerate(disturbed_orders(self.problem)):
            # Each kind has Luby's sequence for itself, not every other limit of a common one.
            turn, asks_for_less = divmod(number, 2)
            if asks_for_less:
                yield from itertools.islice(next(ways), SQUEAKS)
            # The bound may have risen since, by a search that ended without a packing.
            least = max(self.target, self.bound)
            capacity = self._less(least, turn) if asks_for_less else least
            found = exact.search(order, capacity, turn)
            self.work += CALL + found.work
            if found.outcome is Outcome.FOUND:
                self.keep(found.offsets, int((found.offsets + self.problem.size).max()))
            elif found.outcome is Outcome.NONE_EXISTS:
                # The whole tree was searched: no packing ends at or below this capacity.
                self.bound = max(self.bound, capacity + 1)
            yield True

    def _less(self, least: int, turn: int) -> int:
        """A height below the best: what the caller wants, else a part of the way to the least."""
        if least < self.wanted < self.height:
            return self.wanted
        return self.height - max(1, (self.height - least) // PARTS[turn % len(PARTS)])

    def keep(self, offsets: Integers, height: int) -> None:
        """Take a packing if it is lower."""
        if height < self.height:
            self.offsets, self.height = offsets, height

    def _in_valleys(self, order: Integers) -> tuple[Integers, int]:
        from graphc.packing.valleys import fill_valleys

        problem = self.problem
        offsets = np.zeros(len(order), np.int64)
        height, visits = fill_valleys(
            problem.first,
            problem.last,
            problem.size,
            ranks(order),
            problem.by_birth,
            problem.births,
            offsets,
        )
        self.work += CALL + VISIT * visits
        return offsets, int(height)

    def _in_order(self, order: Integers, tightest: bool) -> tuple[Integers, int]:
        from graphc.packing.in_order import place_in_order

        problem = self.problem
        offsets = problem.offset.copy()
        # Pinned ones first, since they cannot give way; a stable sort keeps the order of the
        # others.
        order = order[np.argsort(~problem.is_pinned[order], kind="stable")]
        height = place_in_order(
            problem.first,
            problem.last,
            problem.size,
            order,
            problem.is_pinned,
            tightest,
            offsets,
        )
        self.work += CALL + len(order) ** 2
        return offsets, int(height)
