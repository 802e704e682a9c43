"""Optimal recomputation of a chain of units within a number of bytes, by dynamic programming.

The state is (first unit, last unit, free bytes), as in rotor (Beaumont, Eyraud-Dubois, Herrmann,
Joly and Shilova, "Optimal checkpointing for heterogeneous chains", 2019). Each stage has several
options, as in Rockmate (Zhao et al., 2023). Chains, units and regions are those of chain.py. The
free bytes m exclude what crosses the cut before the first unit.

Let o be an option of the span of units `[i, j)`. It saves s(o) bytes for its region. Rerunning its
units costs f(o), and recomputation in its region costs r(o). Let a(i, c) be the cost of running
units `[i, c)` while saving only what crosses the cut before unit c. Let h(i, c) be the bytes of
that beyond what crosses the cut before i.

`Reruns`: C(i, k, m) is the least cost of rerunning units i to k, k included, and of recomputing
what their regions need. It is the least of

    take    f(o) + r(o) + C(j, k, m - s(o))                     for every o of a span [i, j), j <= k
    split   a(i, c) + C(c, k, m - h(i, c)) + C(i, c - 1, m)     for every cut i < c <= k
    lazy    the cost of unit i's region with all recomputation it needs            where i = k

A choice is feasible only if its saved bytes and both its peaks fit into m. The peaks are that of
its forward units, beside the gradients live by then, and that of its region. With n units k is at
most n - 2, since reruns only happen before a cut.

`FirstPass`: F(i, m) is the least extra cost of units i to the end of the chain on their first
execution. Running forward then costs nothing extra:

    F(n, m) = 0
    take    r(o) + F(j, m - s(o))
    split   C(i, c - 1, m) + F(c, m - h(i, c))

Free bytes are rounded to levels, exactly if the sizes have a large common divisor. F has one row
per unit and uses 8,192 levels; C has one row per range and uses 256. Both use up to twice as many
if that makes them exact. With p options per unit and L levels, C takes O(n² (n + p) L) time and
O(n² L) memory. F takes O(n (n + p) L) and O(n L). Each innermost loop is one NumPy operation.
chain.py limits n to about 340. Needs are rounded up and saved bytes to the nearest level, so a
schedule may take other bytes than its level says; solver.py measures it and queries again.

Neither table stores choices: `actions` recovers them along the one path taken. For equal units with
one option this is the problem of revolve (Griewank and Walther, 2000);
tests/planner/recompute/test_solver.py checks it against their closed form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from math import gcd

import numpy as np
from numpy.typing import NDArray

from graphc.planner.recompute.chain import MOST_SPANNED, SPANS, Chain, SpanOption

COARSE, FINE = 256, 8192
"""Numbers of levels of free bytes for C and F, if sizes have no large common divisor."""

INFINITE = np.float32(np.inf)

Row = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Take:
    """An action: run units `[first, stop)` with a saving option, then the rest of the range, then
    the region of these units."""

    first: int
    stop: int
    option: SpanOption


@dataclass(frozen=True, slots=True)
class Split:
    """An action: run units `[first, cut)`, saving only the values that cross the cut, and rerun the
    units later."""

    first: int
    cut: int


@dataclass(frozen=True, slots=True)
class Lazy:
    """An action: run the region of one unit, with the recomputation that it needs."""

    unit: int


Action = Take | Split | Lazy


class Spans:
    """Inputs of the dynamic program for one chain: options, peaks and costs of all spans of
    units."""

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
        """Return a cost in multiples of the largest step cost, the unit of the tables."""
        return np.float32(cost / self.scale)

    def _prepare_advances(self) -> None:
        """Compute peak and cost of running from each cut to each later one, and the bytes that
        cross there."""
        chain, count = self.chain, len(self.chain)
        advances = [chain.advance(unit, unit + 1) for unit in range(count)]
        self.crossing_bytes = np.zeros((count, count), np.int64)
        self.need = np.zeros((count, count), np.int64)
        self.cost = np.zeros((count, count))
        for first in range(count):
            peak, cost = 0, 0.0
            for cut in range(first + 1, count):
                unit_peak, unit_cost = advances[cut - 1]
                # Values that also cross the cut before `first` are counted by the outer range.
                peak = max(peak, unit_peak - chain.shared_bytes(first, cut - 1))
                cost += unit_cost
                self.need[first, cut], self.cost[first, cut] = peak, cost
                self.crossing_bytes[first, cut] = chain.new_bytes(first, cut)

    def divisor(self) -> int:
        """Return the greatest common divisor of all sizes, in bytes, that the tables compare."""
        sizes = {option.saved_bytes for options in self.options for _, option in options}
        sizes |= {option.forward_peak for options in self.options for _, option in options}
        sizes |= {option.region_peak for options in self.options for _, option in options}
        sizes |= {peak for peak, _ in self.lazy} | set(self.chain.undroppable)
        sizes |= set(np.unique(self.need).tolist()) | set(np.unique(self.crossing_bytes).tolist())
        return gcd(*sizes) or 1


class Scale:
    """Conversion of bytes to integer levels. A level is the common divisor of all sizes if that
    gives few levels, which is exact."""

    def __init__(self, most: int, divisor: int, levels: int) -> None:
        exact = most // divisor
        self.bytes = float(divisor) if exact <= 2 * levels else most / levels
        self.count = (exact if exact <= 2 * levels else levels) + 1

    def need(self, size: int) -> int:
        """Return the least number of levels that fits `size` bytes."""
        return int(np.ceil(size / self.bytes - 1e-9))

    def nearest(self, size: int) -> int:
        """Return the level nearest to `size` bytes. Saved bytes are rounded so, as errors of
        rounding up would add up."""
        return round(size / self.bytes)

    def level_within(self, size: float) -> int:
        """Return the largest level of at most `size` bytes, or -1."""
        return max(-1, min(self.count - 1, int(size / self.bytes + 1e-9)))


class Reruns:
    """Table of C, the least costs of rerunning units: `table[first, last, level]` includes both
    units."""

    def __init__(self, spans: Spans, most: int) -> None:
        self.spans, self.chain = spans, spans.chain
        self.scale = Scale(most, spans.divisor(), COARSE)
        count = len(self.chain)
        self.table = np.full((count, count, self.scale.count), INFINITE, np.float32)
        # The bytes live beside a range depend only on its last unit, and vary little. Ranges with
        # equal bytes beside them are filled by one operation.
        self.groups = [
            (next(lasts), undroppable)
            for undroppable, lasts in groupby(
                range(count - 1), key=lambda last: self.chain.undroppable[last + 1]
            )
        ]
        for first in range(count - 2, -1, -1):
            self._fill(first)

    def _stretches(self, start: int) -> Iterator[tuple[slice, int]]:
        """Yield slices of last units from `start` on, each with the undroppable bytes that they
        share."""
        stop = len(self.chain) - 1
        for index, (begin, undroppable) in enumerate(self.groups):
            end = self.groups[index + 1][0] if index + 1 < len(self.groups) else stop
            if end > start:
                yield slice(max(begin, start), end), undroppable

    def _fill(self, first: int) -> None:
        """Fill the table for all ranges that begin at unit `first`, from the ranges that begin
        later."""
        table, scale, spans = self.table, self.scale, self.spans
        rows, levels = table[first], scale.count
        peak, cost = spans.lazy[first]
        # Lazy: the region comes next, so its steps recompute their inputs one by one.
        rows[first, scale.need(peak) :] = spans.price(cost)
        for stop, option in spans.options[first]:
            held = scale.nearest(option.saved_bytes)
            price = spans.price(option.forward_cost + option.recompute_cost)
            # Take: for each level m from `need` on, C(stop, last, m - held) is `held` levels lower.
            for lasts, undroppable in self._stretches(stop):
                need = max(held, self._take_need(option, undroppable))
                if need < levels:
                    rest = table[stop, lasts, need - held : levels - held] + price
                    np.minimum(rows[lasts, need:], rest, out=rows[lasts, need:])
        for cut in range(first + 1, len(self.chain) - 1):
            held = scale.nearest(int(spans.crossing_bytes[first, cut]))
            # Split: `rows[cut - 1]` is complete, since all its own cuts are smaller.
            before = rows[cut - 1] + spans.price(spans.cost[first, cut])
            for lasts, undroppable in self._stretches(cut):
                need = max(held, scale.need(int(spans.need[first, cut]) + undroppable))
                if need < levels:
                    rest = table[cut, lasts, need - held : levels - held] + before[need:]
                    np.minimum(rows[lasts, need:], rest, out=rows[lasts, need:])

    def _take_need(self, option: SpanOption, undroppable: int) -> int:
        return self.scale.need(max(option.forward_peak + undroppable, option.region_peak))

    def actions(self, first: int, last: int, free: int) -> list[Action]:
        """Return the actions of a range depth first: actions after a cut precede actions before the
        cut."""
        found: list[Action] = []
        pending = [(first, last, free)]
        while pending:
            action, following = self._best(*pending.pop())
            found.append(action)
            pending += reversed(following)
        return found

    def _best(self, first: int, last: int, free: int) -> tuple[Action, list[tuple[int, int, int]]]:
        table, scale, spans = self.table, self.scale, self.spans
        undroppable = self.chain.undroppable[last + 1]
        choices: list[tuple[float, Action, list[tuple[int, int, int]]]] = []
        if first == last:
            return Lazy(first), []
        for stop, option in spans.options[first]:
            held = scale.nearest(option.saved_bytes)
            if stop <= last and free >= max(held, self._take_need(option, undroppable)):
                price = spans.price(option.forward_cost + option.recompute_cost)
                cost = table[stop, last, free - held] + price
                choices.append((cost, Take(first, stop, option), [(stop, last, free - held)]))
        for cut in range(first + 1, last + 1):
            held = scale.nearest(int(spans.crossing_bytes[first, cut]))
            if free >= max(held, scale.need(int(spans.need[first, cut]) + undroppable)):
                before = table[first, cut - 1, free] + spans.price(spans.cost[first, cut])
                cost = table[cut, last, free - held] + before
                following = [(cut, last, free - held), (first, cut - 1, free)]
                choices.append((cost, Split(first, cut), following))
        _, action, following = min(choices, key=lambda choice: choice[0])
        return action, following


class FirstPass:
    """Table of F, the least extra costs of first execution: `rows[first, level]`. `actions`
    recovers the choices that attain these costs. Without `reruns` there are no splits, so no range
    is rerun as a whole.
    """

    def __init__(self, spans: Spans, reruns: Reruns | None, most: int) -> None:
        self.spans, self.reruns, self.chain = spans, reruns, spans.chain
        self.scale = Scale(most, self.spans.divisor(), FINE)
        count = len(self.chain)
        self.rows = np.full((count + 1, self.scale.count), INFINITE, np.float32)
        self.rows[count] = 0.0
        sizes = np.arange(self.scale.count) * self.scale.bytes
        if reruns is not None:  # round each level of F down to a level of C
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
                rest = self.rows[stop, need - held : levels - held] + self.spans.price(
                    option.recompute_cost
                )
                np.minimum(row[need:], rest, out=row[need:])
        for cut in self._cuts(first):
            held, need = self._split(first, cut)
            if need < levels:
                rest = self.rows[cut, need - held : levels - held]
                assert self.reruns is not None, "splits are for reruns"
                recomputed = self.reruns.table[first, cut - 1]
                # A range that is infinite with all bytes free is infinite at every level.
                if np.isfinite(recomputed[-1]):
                    np.minimum(row[need:], rest + recomputed[self.coarse[need:]], out=row[need:])

    def _cuts(self, first: int) -> range:
        return range(first + 1, len(self.chain) if self.reruns is not None else 0)

    def _take(self, stop: int, option: SpanOption) -> tuple[int, int]:
        """Return the number of levels that an option saves, and the free levels that it needs."""
        undroppable = self.chain.undroppable[-1]
        # The region of the last unit follows at once, and its peak counts the saved values.
        held = self.scale.nearest(option.saved_bytes) if stop < len(self.chain) else 0
        peak = max(option.forward_peak + undroppable, option.region_peak)
        return held, max(held, self.scale.need(peak))

    def _split(self, first: int, cut: int) -> tuple[int, int]:
        held = self.scale.nearest(int(self.spans.crossing_bytes[first, cut]))
        peak = int(self.spans.need[first, cut]) + self.chain.undroppable[-1]
        return held, max(held, self.scale.need(peak))

    def cost(self, level: int) -> float:
        """Return the extra cost of the chain at a level of free bytes; infinite if the chain does
        not fit."""
        return float(self.rows[0, level]) * self.spans.scale if level >= 0 else np.inf

    @property
    def least_bytes(self) -> float:
        """The fewest free bytes for which there is a schedule."""
        return float(np.flatnonzero(np.isfinite(self.rows[0]))[0]) * self.scale.bytes

    def actions(self, level: int) -> list[Action]:
        """Return the actions at a level of free bytes, in the order in which `emit` executes
        them."""
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
        # The backward pass reaches the ranges before the cuts in reverse order.
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
                recomputed = self.reruns.table[first, cut - 1, self.coarse[free]]
                choices.append((self.rows[cut, free - held] + recomputed, Split(first, cut), held))
        _, action, held = min(choices, key=lambda choice: choice[0])
        return action, held
