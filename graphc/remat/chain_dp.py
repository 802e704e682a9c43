"""The cheapest way to run a chain of units forward and backward within a number of bytes.

A dynamic program over (first unit, last unit, free bytes), as rotor's for chains of unlike stages
(Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova, "Optimal checkpointing for heterogeneous
chains", 2019), with several ways to take a stage, as in Rockmate (Zhao et al., 2023). Chains, units
and regions are those of chain.py. When the free bytes m are counted, what crosses in front of the
first unit has been counted already.

Let o be an option of the span of units [i, j): it saves s(o) bytes up to its region, its units cost
f(o) to run anew, and its region r(o) for what it makes again. Let a(i, c) be the cost of running
units [i, c) while keeping only what crosses the cut in front of unit c, and h(i, c) the bytes of
that beyond what crosses in front of i.

`Reruns`: C(i, k, m) is the least cost of units i to k, k included, when they have run before: to
run them forward anew and to make what their regions need. The least of

    take    f(o) + r(o) + C(j, k, m - s(o))                     for every o of a span [i, j), j <= k
    split   a(i, c) + C(c, k, m - h(i, c)) + C(i, c - 1, m)     for every cut i < c <= k
    lazy    the cost of unit i's region, which makes all it needs                  where i = k

A choice counts only where what it holds and its own peaks fit into m: that of its forward units,
beside the gradients that are live by then, and that of its region. With n units k is at most n - 2,
since what runs again lies in front of a cut.

`FirstPass`: F(i, m) is the least extra cost of units i to the chain's end when they run for the
first time. Then running forward is no extra cost:

    F(n, m) = 0
    take    r(o) + F(j, m - s(o))
    split   C(i, c - 1, m) + F(c, m - h(i, c))

Free bytes are told apart by levels, exactly where sizes have a large common divisor. F has a row a
unit and affords 8192 levels, or twice as many to be exact; C has a row a range, so 256. With p
options a unit and L levels, C takes O(n² (n + p) L) time and O(n² L) memory, F takes O(n (n + p) L)
and O(n L); an innermost loop is one NumPy operation. chain.py keeps n to about 340. Needs are
rounded up and what is held to the nearest level, so a plan may take other bytes than its level
says: solver.py measures the sequence and asks again.

Neither table stores choices: `actions` finds them again along the one path that is taken. For equal
units of one option this is the setting of revolve (Griewank and Walther, 2000), whose closed form
tests/remat/test_solver.py holds it to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from math import gcd

import numpy as np
from numpy.typing import NDArray

from graphc.remat.chain import MOST_SPANNED, SPANS, Chain, SpanOption

COARSE, FINE = 256, 8192
"""Numbers of free bytes that are told apart where sizes have no large common divisor."""

INFINITE = np.float32(np.inf)

Row = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Take:
    """Run units [first, stop) with an option, then what lies behind, then their region."""

    first: int
    stop: int
    option: SpanOption


@dataclass(frozen=True, slots=True)
class Split:
    """Run units [first, cut) and keep what crosses behind them; come back for them later."""

    first: int
    cut: int


@dataclass(frozen=True, slots=True)
class Lazy:
    """The region of one unit, which makes what it needs."""

    unit: int


Action = Take | Split | Lazy


class Spans:
    """The options of all spans of a chain: what stays the same for every number of bytes."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        count = len(chain)
        self.options: list[list[tuple[int, SpanOption]]] = [[] for _ in range(count)]
        for width in SPANS:
            if width > count or (width > 1 and len(chain.steps) * width > MOST_SPANNED):
                break
            for first in range(count - width + 1):
                for option in chain.options(first, first + width):
                    self.options[first].append((first + width, option))
        self.scale = max((chain.steps.cost[step] for step in chain.useful), default=0.0) or 1.0
        self.lazy = [chain.backward(unit, unit + 1, frozenset()) for unit in range(count)]
        self._prepare_advances()

    def price(self, cost: float) -> np.float32:
        """A cost in the tables' unit, so that none overflows."""
        return np.float32(cost / self.scale)

    def _prepare_advances(self) -> None:
        """Bytes `need` and cost of running from one cut to another, and what the second holds."""
        chain, count = self.chain, len(self.chain)
        advances = [chain.advance(unit, unit + 1) for unit in range(count)]
        self.crossing_bytes = np.zeros((count, count), np.int64)
        self.need = np.zeros((count, count), np.int64)
        self.cost = np.zeros((count, count))
        for first in range(count):
            peak, cost = 0, 0.0
            for cut in range(first + 1, count):
                unit_peak, unit_cost = advances[cut - 1]
                # What crosses in front of `first` too is counted by the range around this one.
                peak = max(peak, unit_peak - chain.shared_bytes(first, cut - 1))
                cost += unit_cost
                self.need[first, cut], self.cost[first, cut] = peak, cost
                self.crossing_bytes[first, cut] = chain.new_bytes(first, cut)

    def least_peak(self) -> int:
        """Bytes that some unit's region needs in every plan of this chain."""
        return max(
            min([self.lazy[first][0], *(option.region_peak for _, option in options)])
            for first, options in enumerate(self.options)
        )

    def divisor(self) -> int:
        """The greatest common divisor of all bytes that are compared."""
        sizes = {option.saved_bytes for options in self.options for _, option in options}
        sizes |= {option.forward_peak for options in self.options for _, option in options}
        sizes |= {option.region_peak for options in self.options for _, option in options}
        sizes |= {peak for peak, _ in self.lazy} | set(self.chain.others)
        sizes |= set(np.unique(self.need).tolist()) | set(np.unique(self.crossing_bytes).tolist())
        return gcd(*sizes) or 1


class Scale:
    """Bytes as whole levels: exact where few levels are enough for a common divisor."""

    def __init__(self, most: int, divisor: int, levels: int) -> None:
        exact = most // divisor
        self.bytes = float(divisor) if exact <= 2 * levels else most / levels
        self.count = (exact if exact <= 2 * levels else levels) + 1

    def need(self, size: int) -> int:
        """Levels without which so many bytes do not fit."""
        return int(np.ceil(size / self.bytes - 1e-9))

    def nearest(self, size: int) -> int:
        """Levels for bytes that stay; to the nearest, since many add up."""
        return round(size / self.bytes)

    def within(self, size: float) -> int:
        """The largest level of at most so many bytes."""
        return max(-1, min(self.count - 1, int(size / self.bytes + 1e-9)))


class Reruns:
    """C of the module's docstring: `table[first, last, level]`, both units included."""

    def __init__(self, spans: Spans, most: int) -> None:
        self.spans, self.chain = spans, spans.chain
        self.scale = Scale(most, spans.divisor(), COARSE)
        count = len(self.chain)
        self.table = np.full((count, count, self.scale.count), INFINITE, np.float32)
        # What is live beside a range depends on its last unit alone, and little: ranges with equal
        # bytes beside them are filled by one operation.
        self.groups = [
            (next(lasts), others)
            for others, lasts in groupby(
                range(count - 1), key=lambda last: self.chain.others[last + 1]
            )
        ]
        for first in range(count - 2, -1, -1):
            self._fill(first)

    def _stretches(self, start: int) -> Iterator[tuple[slice, int]]:
        """Last units from `start` on, in stretches of equal bytes beside them."""
        stop = len(self.chain) - 1
        for index, (begin, others) in enumerate(self.groups):
            end = self.groups[index + 1][0] if index + 1 < len(self.groups) else stop
            if end > start:
                yield slice(max(begin, start), end), others

    def _fill(self, first: int) -> None:
        """All ranges from one unit on; those behind it are known."""
        table, scale, spans = self.table, self.scale, self.spans
        rows, levels = table[first], scale.count
        peak, cost = spans.lazy[first]
        # Lazy: the region comes next, so its steps make what they read, each as it is read.
        rows[first, scale.need(peak) :] = spans.price(cost)
        for stop, option in spans.options[first]:
            held = scale.nearest(option.saved_bytes)
            price = spans.price(option.forward_cost + option.recompute_cost)
            # Take: for every level m from `need` on, C(stop, last, m - held) stands `held` lower.
            for lasts, others in self._stretches(stop):
                need = max(held, self._take_need(option, others))
                if need < levels:
                    behind = table[stop, lasts, need - held : levels - held] + price
                    np.minimum(rows[lasts, need:], behind, out=rows[lasts, need:])
        for cut in range(first + 1, len(self.chain) - 1):
            held = scale.nearest(int(spans.crossing_bytes[first, cut]))
            # Split: `rows[cut - 1]` is complete, for its last choice was made at a smaller cut.
            before = rows[cut - 1] + spans.price(spans.cost[first, cut])
            for lasts, others in self._stretches(cut):
                need = max(held, scale.need(int(spans.need[first, cut]) + others))
                if need < levels:
                    behind = table[cut, lasts, need - held : levels - held] + before[need:]
                    np.minimum(rows[lasts, need:], behind, out=rows[lasts, need:])

    def _take_need(self, option: SpanOption, others: int) -> int:
        return self.scale.need(max(option.forward_peak + others, option.region_peak))

    def actions(self, first: int, last: int, free: int) -> list[Action]:
        """Depth first: what a range does, then the range behind it, then that before a cut."""
        found: list[Action] = []
        pending = [(first, last, free)]
        while pending:
            action, following = self._best(*pending.pop())
            found.append(action)
            pending += reversed(following)
        return found

    def _best(self, first: int, last: int, free: int) -> tuple[Action, list[tuple[int, int, int]]]:
        table, scale, spans = self.table, self.scale, self.spans
        others = self.chain.others[last + 1]
        choices: list[tuple[float, Action, list[tuple[int, int, int]]]] = []
        if first == last:
            return Lazy(first), []
        for stop, option in spans.options[first]:
            held = scale.nearest(option.saved_bytes)
            if stop <= last and free >= max(held, self._take_need(option, others)):
                price = spans.price(option.forward_cost + option.recompute_cost)
                cost = table[stop, last, free - held] + price
                choices.append((cost, Take(first, stop, option), [(stop, last, free - held)]))
        for cut in range(first + 1, last + 1):
            held = scale.nearest(int(spans.crossing_bytes[first, cut]))
            if free >= max(held, scale.need(int(spans.need[first, cut]) + others)):
                before = table[first, cut - 1, free] + spans.price(spans.cost[first, cut])
                cost = table[cut, last, free - held] + before
                following = [(cut, last, free - held), (first, cut - 1, free)]
                choices.append((cost, Split(first, cut), following))
        _, action, following = min(choices, key=lambda choice: choice[0])
        return action, following


class FirstPass:
    """F of the module's docstring: `rows[first, level]`, and the actions that lead to it.

    Without `reruns` there are no splits, so no range is run anew as a whole.
    """

    def __init__(self, spans: Spans, reruns: Reruns | None, most: int) -> None:
        self.spans, self.reruns, self.chain = spans, reruns, spans.chain
        self.scale = Scale(most, self.spans.divisor(), FINE)
        count = len(self.chain)
        self.rows = np.full((count + 1, self.scale.count), INFINITE, np.float32)
        self.rows[count] = 0.0
        sizes = np.arange(self.scale.count) * self.scale.bytes
        if reruns is not None:  # the level of C with at most the bytes of a level of F
            self.coarse = np.minimum(
                (sizes / reruns.scale.bytes + 1e-9).astype(np.int64), reruns.scale.count - 1
            )
        for first in range(count - 1, -1, -1):
            self._fill(first)

    def _fill(self, first: int) -> None:
        row, levels = self.rows[first], self.scale.count
        for stop, option in self.spans.options[first]:
            held, need = self._take(stop, option)
            if need < levels:
                behind = self.rows[stop, need - held : levels - held] + self.spans.price(
                    option.recompute_cost
                )
                np.minimum(row[need:], behind, out=row[need:])
        for cut in self._cuts(first):
            held, need = self._split(first, cut)
            if need < levels:
                behind = self.rows[cut, need - held : levels - held]
                assert self.reruns is not None, "splits are for reruns"
                again = self.reruns.table[first, cut - 1]
                # Infinite with all bytes free is infinite everywhere.
                if np.isfinite(again[-1]):
                    np.minimum(row[need:], behind + again[self.coarse[need:]], out=row[need:])

    def _cuts(self, first: int) -> range:
        return range(first + 1, len(self.chain) if self.reruns is not None else 0)

    def _take(self, stop: int, option: SpanOption) -> tuple[int, int]:
        """Levels that a span's option holds, and that it needs."""
        others = self.chain.others[-1]
        # Behind the last unit comes its region at once, whose peak has counted what is saved.
        held = self.scale.nearest(option.saved_bytes) if stop < len(self.chain) else 0
        peak = max(option.forward_peak + others, option.region_peak)
        return held, max(held, self.scale.need(peak))

    def _split(self, first: int, cut: int) -> tuple[int, int]:
        held = self.scale.nearest(int(self.spans.crossing_bytes[first, cut]))
        peak = int(self.spans.need[first, cut]) + self.chain.others[-1]
        return held, max(held, self.scale.need(peak))

    def cost(self, level: int) -> float:
        """The extra cost of the chain, infinite where it does not fit."""
        return float(self.rows[0, level]) * self.spans.scale if level >= 0 else np.inf

    @property
    def least_bytes(self) -> float:
        """The fewest bytes for which there is a plan."""
        return float(np.flatnonzero(np.isfinite(self.rows[0]))[0]) * self.scale.bytes

    def actions(self, level: int) -> list[Action]:
        """What to do, in the order in which `emit` carries it out."""
        found: list[Action] = []
        later: list[tuple[int, int, int]] = []
        first, free = 0, level
        while first < len(self.chain):
            action, held = self._best(first, free)
            found.append(action)
            if isinstance(action, Split):
                later.append((first, action.cut - 1, int(self.coarse[free])))
                first = action.cut
            else:
                assert isinstance(action, Take), "a first pass takes or splits"
                first = action.stop
            free -= held
        # The backward pass comes to the ranges in front of the cuts last cut first.
        for rerun in reversed(later):
            assert self.reruns is not None, "splits are for reruns"
            found += self.reruns.actions(*rerun)
        return found

    def _best(self, first: int, free: int) -> tuple[Action, int]:
        choices: list[tuple[float, Action, int]] = []
        for stop, option in self.spans.options[first]:
            held, need = self._take(stop, option)
            if free >= need:
                cost = self.rows[stop, free - held] + self.spans.price(option.recompute_cost)
                choices.append((cost, Take(first, stop, option), held))
        for cut in self._cuts(first):
            held, need = self._split(first, cut)
            if free >= need:
                assert self.reruns is not None, "splits are for reruns"
                again = self.reruns.table[first, cut - 1, self.coarse[free]]
                choices.append((self.rows[cut, free - held] + again, Split(first, cut), held))
        _, action, held = min(choices, key=lambda choice: choice[0])
        return action, held
