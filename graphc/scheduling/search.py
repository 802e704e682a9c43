"""The search for an order: exact where there are few steps, else cuts, lists and windows.

The methods share one order, the best so far, and one floor, the highest bound of a cut. Each offers
orders, and one is taken where its peak is lower:

    cut       run one side of a minimum cut before the other (cuts.py), at the peak and a little
              behind it. The cut's bytes are a bound for every order, and become the floor.
    list      bisect between floor and peak for the least limit with a list schedule (listing.py),
              forwards and then backwards
    windows   solve windows around the peak exactly (windows.py)

twice over, as long as a round lowers the peak and it is above the floor by a thousandth. Every
method is bounded by counts of work that fall with the number of steps, not by time, so the same
problem gives the same order: at most 50,000 steps are put into cuts, and 250,000 into list
schedules, but one cut and four lists in any case. The given order is kept where none is better by a
thousandth.

Lists rank by the order given, so they cannot bring scattered subtrees together. In the end
depth-first postorders (postorder.py) are offered; if one is better, the methods go on from there.
"""

from __future__ import annotations

from collections.abc import Callable

from graphc.scheduling.cuts import Cuts
from graphc.scheduling.exact import least_peak_order
from graphc.scheduling.listing import list_schedule
from graphc.scheduling.postorder import postorders
from graphc.scheduling.precedence import Precedence
from graphc.scheduling.windows import improve_windows

EXACT_STEPS = 64
"""Up to so many steps the whole problem is searched."""

EXACT_EXPANSIONS = 20_000
"""Sets of steps that this search looks at before it gives up."""

CUT_DISTANCES = (0, 1 / 128, 1 / 64, 1 / 32, 1 / 16)
"""How far behind the peak cuts are taken, as parts of all steps."""

CUT_STEPS = 50_000
"""Steps of all networks that are cut, one after another; at least one is."""

LIST_STEPS = 250_000
"""Steps of all list schedules, one after another; at least four are made."""

TRIALS = 6
"""Limits of bytes that list scheduling is tried with, in either direction."""

TOLERANCE = 0.001
"""Part of the peak that is not worth a try, nor, beyond the exact search, another order."""

ROUNDS = 2
"""Turns of all methods, the second on what the first has found."""


def least_order(problem: Precedence) -> list[int]:
    """An order of all steps whose peak is at most that of 0, 1, 2, ..., which has to be legal.

    The given order is returned where no lower peak is found. On problems of up to about twenty
    steps the peak is the least there is.
    """
    given = list(range(len(problem)))
    if not given:
        return given
    if len(problem) <= EXACT_STEPS:
        peak = max(problem.profile(given))
        found = least_peak_order(problem, peak, EXACT_EXPANSIONS)
        # None says that the given order is the least, or that the search gave up: both go on below,
        # where the first ends with the order given.
        if found is not None:
            return found
    return _Search(problem, given).run()


class _Search:
    """The best order so far and its peak, and the methods that look for a better one."""

    def __init__(self, problem: Precedence, given: list[int]) -> None:
        self.problem = problem
        self.order, self.profile = given, problem.profile(given)
        self.peak = max(self.profile)
        self.cuts = Cuts(problem)
        self.cuts_left = max(1, min(CUT_STEPS // len(problem), ROUNDS * len(CUT_DISTANCES)))
        self.lists_left = max(4, LIST_STEPS // len(problem))
        self.floor = 0
        """No order has a lower peak."""

    def run(self) -> list[int]:
        """The best order found, or the one given where that is hardly better."""
        given, given_peak = self.order, self.peak
        self._improve()
        if not self.is_least and any(map(self.offer, postorders(self.problem))):
            self._improve()
        return self.order if given_peak - self.peak > TOLERANCE * given_peak else given

    def _improve(self) -> None:
        methods: list[Callable[[], None]] = [self.cut, self.list, self.solve_windows]
        for _ in range(ROUNDS):
            peak = self.peak
            for method in methods:
                method()
                if self.is_least:
                    return
            if self.peak == peak:
                return

    @property
    def is_least(self) -> bool:
        """Whether what could still be found is not worth it."""
        return self.peak - self.floor <= TOLERANCE * self.peak

    def offer(self, order: list[int]) -> bool:
        """Take an order if its peak is lower."""
        profile = self.problem.profile(order)
        if max(profile) >= self.peak:
            return False
        self.order, self.profile, self.peak = order, profile, max(profile)
        return True

    def cut(self) -> None:
        """Run what lies before a least cut first, and the rest behind it."""
        for distance in CUT_DISTANCES:
            # Looked for anew each time, for the cut before may have moved the peak.
            place = self.profile.index(self.peak) + int(distance * len(self.order))
            if not self.cuts_left or place >= len(self.order):
                return
            self.cuts_left -= 1
            cut = self.cuts.at(self.order[place])
            self.floor = max(self.floor, cut.bytes)
            if self.is_least:
                return
            # Legal: with each step the set has all that it waits for. Inside either part the order
            # stays.
            first = [step for step in self.order if step in cut.before]
            self.offer(first + [step for step in self.order if step not in cut.before])

    def list(self) -> None:
        """Bisect the limit of bytes under which a list schedule is found, in both directions."""
        # Both directions rank by the same order; what one finds is only a limit to the other.
        given = self.order
        for backwards in (False, True):
            # First whether this direction finds anything lower at all, since often it does not.
            low, limit = self.floor, self.peak - 1
            for _ in range(min(TRIALS, self.lists_left)):
                self.lists_left -= 1
                order = list_schedule(self.problem, given, limit, backwards)
                if order is not None:
                    self.offer(order)
                elif limit == self.peak - 1:
                    break
                else:
                    # No proof that nothing fits this limit, only that lists do not: it is no floor.
                    low = limit + 1
                if self.peak - low <= TOLERANCE * self.peak:
                    break
                limit = (low + self.peak) // 2

    def solve_windows(self) -> None:
        """Solve windows around the peak."""
        self.offer(improve_windows(self.problem, self.order))
