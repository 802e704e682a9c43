"""Phases of packing, cheapest first. Packing stops when the height is low enough or minimal.

1. Best fit in order of time, which needs no compiled code.
2. Lowest place first (`fill_valleys`) in orders by size, duration, area, birth and crowd.
3. Squeaky wheel optimization: buffers that end above the target move toward the front of the
   order, and all buffers are placed again. See Joslin and Clements (1999); TVM's memory planner
   and XLA's repacker do the same.
4. Best fit and first fit (`place_in_order`) in the same orders.
5. Pieces that fit together exactly are joined, and the fewer pieces are packed by all of these
   algorithms. Problems too large for phase 4 are joined before phase 2, and only if the arena is
   nearly full. If they have few distinct live ranges, buffers with equal live ranges are packed
   as stacks (`stacked.py`) instead.
6. Exact search, restarted with perturbed orders and limits by the sequence of Luby et al. (1993).
   Every second search is for a height between the best and the bound. Before it, joining with
   new guesses and the squeaky wheel take turns. Problems too large for the search get more
   rounds of the squeaky wheel instead.

Phases 1, 2 and 4 place each buffer once, in O(n log n), about O(n log n) and O(n²). Phase 3 repeats
phase 2. Phase 5 is about linear, and phase 6 is exponential; both have limits. A packing is only
replaced by a lower one. The bound is the peak of live bytes, which most training steps reach in
phase 1 or 2. An exhausted search raises the bound, since it proves that a capacity is not
sufficient.

If a buffer is pinned, the squeaky wheel places by best fit. Lowest place first, joining and
stacking are skipped.

Effort is counted in units of work of about a nanosecond, never in seconds. The same effort gives
the same packing on every machine, and more effort never gives a higher one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np

from graphc.planner.pack.exact import ExactSearch, Outcome
from graphc.planner.pack.in_order import place_in_order
from graphc.planner.pack.in_time import pack_in_time
from graphc.planner.pack.joined import Joined
from graphc.planner.pack.orders import basic_orders, disturbed_orders, ranks
from graphc.planner.pack.problem import Integers, PackingProblem
from graphc.planner.pack.stacked import stacked
from graphc.planner.pack.valleys import fill_valleys
from graphc.progress import report
from graphc.random_numbers import random_numbers

ORDER_LIMIT = 8192
"""The maximum number of buffers that are placed in quadratic time."""

SEARCH_LIMIT = 2048
"""The maximum number of buffers for the exact search."""

SQUEAKS = 40
"""Number of rounds of squeaky wheel optimization that start from one order."""

VISIT = 16
"""Units of work per node that `fill_valleys` visits."""

CALL = 20_000
"""Units of work for the overhead of a call of a compiled loop."""

REPORTED = 5 * 10**8
"""Units of work between two progress reports: one or two seconds."""

FULL = 0.95
"""The minimum average of live bytes, as a fraction of the bound, at which large problems are
joined.

Above it, the buffers born at a time fill the bytes of those that die.
"""

PIECE_WORK = (10**8, 10**5)
"""Units of work for the pieces of one set of guesses: a constant, and a number per buffer."""

PARTS = (4, 16)
"""Divisors of the distance from the height to the bound: searches lower the height by 1/4 or 1/16
of this distance, in turn. Hardly any search for half of the distance succeeds, and shorter steps
gain less.
"""


class Packer:
    """Packs one problem and keeps the best packing found.

    `offsets` and `height` are the best packing; `bound` is a proven lower bound of the height. All
    are in the problem's units, of `unit` bytes each. `order_limit`, `search_limit` and `squeaks`
    replace `ORDER_LIMIT`, `SEARCH_LIMIT` and `SQUEAKS`.
    """

    def __init__(
        self,
        problem: PackingProblem,
        unit: int = 1,
        may_join: bool = True,
        *,
        order_limit: int | None = None,
        search_limit: int | None = None,
        squeaks: int | None = None,
    ) -> None:
        self.problem, self.unit = problem, unit
        self.order_limit = ORDER_LIMIT if order_limit is None else order_limit
        self.search_limit = SEARCH_LIMIT if search_limit is None else search_limit
        self.squeaks = SQUEAKS if squeaks is None else squeaks
        self.bound = problem.proven
        self.work = self._reported = 0
        self._pinned = bool(problem.is_pinned.any())
        self._may_join = may_join and not self._pinned
        self.target = self.wanted = problem.bound
        self.steps = self._steps()
        self._begin()

    def improve(self, target: int, effort: int, wanted: int, goal: int = 0) -> bool:
        """Work until the height is `target` or `goal`, or proven minimal, or `effort` is used up.

        Exact searches try the target and, while the height is above `wanted`, also `wanted`; `goal`
        does not change them. A further call continues where the last one ended. Returns False if no
        method is left to try.
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
        """Find a first packing by one placement of all buffers in order of time."""
        if self._pinned:
            self.offsets, self.height = self._in_order(self.problem.by_birth, True)
        else:
            self.offsets, self.height = pack_in_time(self.problem)

    def _steps(self) -> Iterator[bool]:
        yield True
        is_large = len(self.problem) > self.order_limit
        stacks = stacked(self.problem, self.search_limit) if is_large and not self._pinned else None
        if stacks is not None:
            # With so many buffers live at once, lowest place first would take quadratic time.
            yield from self._instead(self._packer_of(stacks[0]), stacks[1])
            return
        if is_large and self.problem.live.mean() >= FULL * self.bound:
            yield from self._join(0)
        # The skyline of `fill_valleys` starts flat, so it does not support pins.
        if not self._pinned:
            for order in basic_orders(self.problem):
                self.keep(*self._in_valleys(order))
                yield True
            yield from self._squeak(self.squeaks)
        if not is_large:
            for order in basic_orders(self.problem):
                for tightest in (True, False):
                    self.keep(*self._in_order(order, tightest))
                    yield True
            yield from self._join(0)
        may_search = len(self.problem) <= self.search_limit
        yield from self._search() if may_search else self._squeak(None)

    def _join(self, seed: int) -> Iterator[bool]:
        """Join pieces that fit together, and pack the pieces instead of the buffers; yields after
        each unit of progress."""
        if not self._may_join:
            return
        joined = Joined(self.problem, seed)
        for work in joined.work():
            self.work += work
            yield True
        # Buffers not cut from one rectangle rarely fit together, and mostly by chance.
        if len(joined.problem) > len(self.problem) / 2:
            self._may_join = False
            return
        limit = PIECE_WORK[0] + PIECE_WORK[1] * len(self.problem)
        pieces = self._packer_of(joined.problem, may_join=False)
        yield from self._instead(pieces, joined.offsets, limit)

    def _packer_of(self, problem: PackingProblem, may_join: bool = True) -> Packer:
        """Return a packer for a reduced problem, with the limits of this one."""
        return Packer(
            problem,
            self.unit,
            may_join,
            order_limit=self.order_limit,
            search_limit=self.search_limit,
            squeaks=self.squeaks,
        )

    def _instead(
        self, inner: Packer, offsets: Callable[[Integers], Integers], limit: float = math.inf
    ) -> Iterator[bool]:
        """Pack a reduced problem of pieces or stacks instead, with up to `limit` units of work.
        `offsets` maps offsets of the reduced problem to offsets of the buffers.
        """
        done = inner.work
        for _ in inner.steps:
            self.work, done = self.work + inner.work - done, inner.work
            inner.target, inner.wanted = self.target, self.wanted
            if inner.height < self.height:
                self.keep(offsets(inner.offsets), inner.height)
            yield True
            # A lower bound for the pieces is not one for the buffers.
            if inner.height <= max(self.target, inner.bound) or inner.work >= limit:
                return

    def _squeak(self, rounds: int | None) -> Iterator[bool]:
        """Repeatedly move buffers that end above the target toward the front of the order, by
        random distances, and place all buffers again."""
        # Each round would take quadratic time.
        if self._pinned and len(self.problem) > self.order_limit:
            return
        orders = disturbed_orders(self.problem)
        done = 0
        while rounds is None or done < rounds:
            # Take a new order after `squeaks` rounds: blame may move in circles.
            place = ranks(next(orders)).astype(np.float64)
            for _ in range(self.squeaks):
                done += 1
                order = np.argsort(place, kind="stable")
                found = self._in_order(order, True) if self._pinned else self._in_valleys(order)
                self.keep(*found)
                yield True
                # Move by up to 0.3 of all positions, mostly by less: which buffers are to blame is
                # a guess.
                blamed = np.flatnonzero(found[0] + self.problem.size > self.target)
                jump = (1 + random_numbers(len(blamed), done)) / 2
                place[blamed] -= 0.3 * len(place) * jump * jump

    def _search(self) -> Iterator[bool]:
        """Alternate restarted exact searches for the target and for a height below the best one,
        with heuristics between them."""
        exact, squeaks = ExactSearch(self.problem), self._squeak(None)
        # A seed that leaves too many pieces ends all joining.
        seeds = itertools.takewhile(lambda _: self._may_join, itertools.count(1))
        joins = itertools.chain.from_iterable(map(self._join, seeds))
        ways = itertools.cycle((joins, squeaks))
        for number, order in enumerate(disturbed_orders(self.problem)):
            # Each kind of search has its own Luby sequence, not every second limit of a common one.
            turn, asks_for_less = divmod(number, 2)
            if asks_for_less:
                yield from itertools.islice(next(ways), self.squeaks)
            # The bound may have risen since, by a search that was exhausted without a packing.
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
        """Return a height to search for, below the best: `wanted` if possible, else part of the way
        to `least`."""
        if least < self.wanted < self.height:
            return self.wanted
        return self.height - max(1, (self.height - least) // PARTS[turn % len(PARTS)])

    def keep(self, offsets: Integers, height: int) -> None:
        """Keep a packing as the best one if its height is lower than the best so far."""
        if height < self.height:
            self.offsets, self.height = offsets, height

    def _in_valleys(self, order: Integers) -> tuple[Integers, int]:
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
        problem = self.problem
        offsets = problem.offset.copy()
        # Pinned buffers come first, since they cannot move; a stable sort keeps the order of the
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
