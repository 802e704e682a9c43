"""Search for an order with a low peak: exact for few steps, else cuts, list schedules and windows.

The methods share the best order so far, and a floor: the highest lower bound of a cut. Each method
offers orders, and an order with a lower peak is accepted:

    cut       run one side of a minimum cut before the other (cuts.py), at the peak and shortly
              after it. The bytes of the cut bound every order and raise the floor.
    list      bisect between floor and peak for the least limit with a list schedule (listing.py),
              forwards and then backwards
    windows   solve windows around the peak exactly (windows.py)

A second round follows if the first lowered the peak. The search ends once the peak is within a
thousandth of the floor. Work is bounded by counts, not by time, so the same problem gives the same
order. Cuts process at most 50,000 steps in total and list schedules at most 250,000, but there are
at least one cut and four list schedules. The given order is kept if no other is better by more than
a thousandth.

List schedules rank steps by the given order, so they cannot bring scattered subtrees together.
Therefore depth-first postorders (postorder.py) are offered at the end. If one is better, the
methods run again from there.
"""

from __future__ import annotations

from collections.abc import Callable

from graphc.planner.order.cuts import Cuts
from graphc.planner.order.exact import least_peak_order
from graphc.planner.order.listing import list_schedule
from graphc.planner.order.postorder import postorders
from graphc.planner.order.precedence import Precedence
from graphc.planner.order.windows import improve_windows

EXACT_STEPS = 64
"""Largest number of steps for which the whole problem is searched exactly."""

EXACT_EXPANSIONS = 20_000
"""Number of sets of steps that the exact search expands before it gives up."""

CUT_DISTANCES = (0, 1 / 128, 1 / 64, 1 / 32, 1 / 16)
"""Distances after the peak, as fractions of all steps, of the steps at which minimum cuts are
computed."""

CUT_STEPS = 50_000
"""Limit on the sum of steps over all cut networks; at least one network is cut."""

LIST_STEPS = 250_000
"""Limit on the sum of steps over all list schedules; at least four schedules are computed."""

TRIALS = 6
"""Number of limits that list scheduling tries in each direction."""

TOLERANCE = 0.001
"""Fraction of the peak below which a possible gain is not worth further search. Except after the
exact search, an order must save more than that to replace the given one.
"""

ROUNDS = 2
"""Number of rounds of all methods; each round starts from the result of the previous one."""


def least_order(problem: Precedence) -> list[int]:
    """Return an order of all steps whose peak is at most that of 0, 1, 2, ..., which must be legal.

    Returns 0, 1, 2, ... if no lower peak is found. On problems of up to about twenty steps the peak
    is optimal.
    """
    given = list(range(len(problem)))
    if not given:
        return given
    if len(problem) <= EXACT_STEPS:
        peak = max(problem.profile(given))
        found = least_peak_order(problem, peak, EXACT_EXPANSIONS)
        # None means that the given order is optimal or that the search gave up. In the first case,
        # the search below returns the given order.
        if found is not None:
            return found
    return _Search(problem, given).run()


class _Search:
    """State of a search: the best order so far, its peak, and methods that try to improve it."""

    def __init__(self, problem: Precedence, given: list[int]) -> None:
        self.problem = problem
        self.order, self.profile = given, problem.profile(given)
        self.peak = max(self.profile)
        self.cuts = Cuts(problem)
        self.cuts_left = max(1, min(CUT_STEPS // len(problem), ROUNDS * len(CUT_DISTANCES)))
        self.lists_left = max(4, LIST_STEPS // len(problem))
        self.floor = 0
        """A lower bound on the peak of every order."""

    def run(self) -> list[int]:
        """Return the best order found, or the given one if the gain is within the tolerance."""
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
        """True if the peak is within the tolerance of its lower bound, the floor."""
        return self.peak - self.floor <= TOLERANCE * self.peak

    def offer(self, order: list[int]) -> bool:
        """Accept an order if its peak is lower, and return True if so."""
        profile = self.problem.profile(order)
        if max(profile) >= self.peak:
            return False
        self.order, self.profile, self.peak = order, profile, max(profile)
        return True

    def cut(self) -> None:
        """Offer orders that run the steps on the source side of a minimum cut before all others."""
        for distance in CUT_DISTANCES:
            # Recomputed each time, since the last cut may have moved the peak.
            place = self.profile.index(self.peak) + int(distance * len(self.order))
            if not self.cuts_left or place >= len(self.order):
                return
            self.cuts_left -= 1
            cut = self.cuts.at(self.order[place])
            self.floor = max(self.floor, cut.bytes)
            if self.is_least:
                return
            # Legal: the set contains the predecessors of its steps; both parts keep their order.
            first = [step for step in self.order if step in cut.before]
            self.offer(first + [step for step in self.order if step not in cut.before])

    def list(self) -> None:
        """Offer list schedules under decreasing limits of bytes, chosen by bisection.

        This is done for schedules from the first node on, then for those from the last node back.
        """
        # Both directions rank by the same order. The result of the first only lowers the limit.
        given = self.order
        for backwards in (False, True):
            # The first limit tests if this direction finds any lower peak, since often it does not.
            low, limit = self.floor, self.peak - 1
            for _ in range(min(TRIALS, self.lists_left)):
                self.lists_left -= 1
                order = list_schedule(self.problem, given, limit, backwards)
                if order is not None:
                    self.offer(order)
                elif limit == self.peak - 1:
                    break
                else:
                    # Only list schedules do not fit this limit, so it is not a lower bound.
                    low = limit + 1
                if self.peak - low <= TOLERANCE * self.peak:
                    break
                limit = (low + self.peak) // 2

    def solve_windows(self) -> None:
        """Offer the order that results from solving windows around its peak exactly."""
        self.offer(improve_windows(self.problem, self.order))
