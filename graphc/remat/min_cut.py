"""Which values of some steps to keep for later readers, and which to make again: minimum cuts.

A value that is read later is either kept, which takes bytes, or made again, which costs its step
and asks the same of what that step reads. Minimise cost + λ · bytes for a price λ of a byte, and
the choice is a minimum cut between a source and a sink, over a node for each step s and value v:

    source → s    cost of s          cut where s runs again; infinite if s may not
    s → v         λ · bytes of v     cut where s runs once and v is kept
    v → s         infinite           s reads v: where s runs again, v is there
    v → sink      infinite           v is wanted later

The sink's side holds what is wanted when the steps have run: a value whose maker is on that side is
made again, one whose maker is not is kept. A cut's capacity is the cost of the one plus λ times the
bytes of the other, and what is neither wanted nor needed for it is on the source's side, for free.

Steps may be undecided: whether they have run by then is part of the choice. Such a step t has a
second node, t', on the source's side where it has run, and instead of source → t there are

    t' → t    cost of t    cut where t has run, and runs again
    t → t'    infinite     t runs later, unless it has run
    t' → s'   infinite     t reads what s makes: t has run behind s alone

As λ grows from 0, the minima walk along the lower convex hull of cost against bytes, from all that
costs something kept to nothing kept. `Choice.hull` finds corners as in the method of Eisner and
Severance (1976): at the price where two known corners tie, either a corner below their line is
found or none exists. Keep sets above the hull, if some are the best for their bytes, are not found.

A cut is one maximum flow (SciPy's, whole numbers of 32 bits: capacities are scaled to a sum of 2^30
and rounded up) in a network of as many edges as the steps have reads and results,
and for undecided steps as many again.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from graphc.scheduling.problem import AllBut, Problem

CAPACITY = 2**30
"""Sum of all capacities, which are whole numbers of 32 bits."""

SOURCE, SINK = 0, 1

FORBIDDEN = -1.0
"""Stands for a cost that no cut may have."""


@dataclass(frozen=True, slots=True)
class SavedSet:
    """Values to keep, their bytes, and the cost of making the others again."""

    values: frozenset[int]
    bytes: int
    cost: float


class Choice:
    """Keep or make again: the values that the `chosen` steps make and that are `wanted` later.

    Values that the steps read from elsewhere are there; those in `free` are kept in any case.
    Steps in `undecided`, none of which is chosen, may have run or not; all of them have to.
    """

    def __init__(
        self,
        steps: Problem,
        chosen: Sequence[int],
        wanted: Collection[int],
        free: Collection[int],
        undecided: Sequence[int] = (),
    ) -> None:
        self.steps = steps
        wanted = sorted(set(wanted) - set(free))
        lost = {value for step in chosen for value in steps.outputs[step]} - set(free)
        # Only what a wanted value may have to be made from is in the network.
        # What other steps make counts as there, as if it were kept already.
        asked = itertools.chain(wanted, *(steps.inputs[step] for step in undecided))
        chosen = [*steps.missing(asked, AllBut(lost)), *undecided]
        made = [value for step in chosen for value in steps.outputs[step] if value not in free]
        self.step_node = {step: 2 + index for index, step in enumerate(chosen)}
        first = 2 + len(chosen)
        self.value_node = {value: first + index for index, value in enumerate(made)}
        first += len(made)
        self.ran_node = {step: first + index for index, step in enumerate(undecided)}
        rows: list[tuple[int, int, float, int]] = []
        for step, node in self.step_node.items():
            cost = FORBIDDEN if step in steps.once else steps.cost[step]
            rows.append((self.ran_node.get(step, SOURCE), node, cost, 0))
            for value in steps.outputs[step]:
                if value in self.value_node:
                    rows.append((node, self.value_node[value], 0.0, steps.bytes[value]))
            for value in steps.inputs[step]:
                if value in self.value_node:
                    rows.append((self.value_node[value], node, FORBIDDEN, 0))
        for step, ran in self.ran_node.items():
            rows.append((self.step_node[step], ran, FORBIDDEN, 0))
            producers = {steps.producer[value] for value in steps.inputs[step]}
            rows += [(ran, self.ran_node[m], FORBIDDEN, 0) for m in producers if m in self.ran_node]
        # Not to be cut: whoever wants the value has it, kept or made again.
        rows += [(self.value_node[value], SINK, FORBIDDEN, 0) for value in wanted]
        self.count = first + len(self.ran_node)
        self.starts = np.array([row[0] for row in rows], np.int32)
        self.ends = np.array([row[1] for row in rows], np.int32)
        self.costs = np.array([row[2] for row in rows])
        self.bytes = np.array([row[3] for row in rows], float)

    @property
    def least_price(self) -> float:
        """A price at which everything that is wanted and costs something is kept."""
        return 1e-6 * self.total(0.0) / max(float(self.bytes.sum()), 1.0)

    @property
    def highest_price(self) -> float:
        """A price at which nothing that takes bytes is kept."""
        return 1e12 * self.least_price

    def total(self, price: float) -> float:
        """Cost plus `price` times bytes of everything."""
        return float(np.maximum(self.costs, 0).sum() + price * self.bytes.sum())

    def cheapest(self, price: float) -> SavedSet:
        """The keep set of least cost plus `price` times bytes."""
        # Nothing costs anything to make again, so nothing is worth a byte.
        if not len(self.starts) or not self.costs.max() > 0:
            return SavedSet(frozenset(), 0, 0.0)
        capacity = np.maximum(self.costs, 0) + price * self.bytes
        scale = CAPACITY / max(capacity.sum(), 1e-300)
        # What is rounded to zero would be cut for free, so it is rounded up.
        # Infinite is as much as all finite capacities together, which no least cut costs.
        whole = np.where(self.costs < 0, CAPACITY, np.ceil(capacity * scale)).astype(np.int32)
        network = csr_array((whole, (self.starts, self.ends)), shape=(self.count, self.count))
        flow = maximum_flow(network, SOURCE, SINK).flow
        # SciPy's flow is negative on reverse edges, so this is the residual with both directions.
        residual = network - flow
        residual.eliminate_zeros()
        # What reaches the sink has to be made again, or is wanted; the rest is made once.
        # Of equal cuts this is the one nearest the sink, which makes the fewest steps run again.
        reaching = np.zeros(self.count, bool)
        reaching[breadth_first_order(residual.T.tocsr(), SINK, return_predecessors=False)] = True
        later = {step for step, node in self.step_node.items() if reaching[node]}
        kept = frozenset(
            value
            for value, node in self.value_node.items()
            if reaching[node] and self.steps.producer[value] not in later
        )
        again = (step for step in sorted(later) if not reaching[self.ran_node.get(step, SOURCE)])
        return SavedSet(kept, self.steps.total(kept), self.steps.cost_of(again))

    @cached_property
    def outermost(self) -> tuple[SavedSet, SavedSet]:
        """The keep sets of the most bytes and of the least on the hull."""
        return self.cheapest(self.least_price), self.cheapest(self.highest_price)

    def tangents(self, limit: int, most: int) -> Iterator[tuple[float, SavedSet]]:
        """At most `most` prices of a byte, each with its keep set, that close in on the place where
        the hull crosses `limit` bytes; none where all fits or nothing does."""
        more, less = self.outermost
        for _ in range(most):
            # `more` stays above the room and `less` within it.
            if more.bytes <= limit or less.bytes > limit or less.cost <= more.cost:
                return
            price = (less.cost - more.cost) / (more.bytes - less.bytes)
            between = self.cheapest(price)
            yield price, between
            # No corner lies below their line, which is the hull at `limit`.
            if between.bytes in (more.bytes, less.bytes):
                return
            if between.bytes > limit:
                more = between
            else:
                less = between

    def within(self, limit: int, most: int) -> SavedSet:
        """The cheapest corner of the hull with at most `limit` bytes, as far as `most` cuts find it;
        that of the fewest bytes where none has."""
        whole, least = self.outermost
        if whole.bytes <= limit:
            return whole
        found = (each for _, each in self.tangents(limit, most) if each.bytes <= limit)
        return min(found, key=lambda each: (each.cost, each.bytes), default=least)

    def hull(self, most: int) -> list[SavedSet]:
        """At most `most` keep sets, from the most bytes to the least, on the lower hull of cost
        against bytes."""
        low, high = self.outermost
        found = {low.bytes: low, high.bytes: high}
        pending = [(low, high)]
        while pending and len(found) < most:
            # The oldest pair first: where `most` ends this early, the corners found are spread out.
            more, less = pending.pop(0)
            if more.bytes <= less.bytes or less.cost <= more.cost:
                continue
            # At this price both ends are worth the same: `level`.
            price = (less.cost - more.cost) / (more.bytes - less.bytes)
            between = self.cheapest(price)
            level = more.cost + price * more.bytes
            # Less by rounding alone is no new corner: capacities are whole numbers.
            if between.cost + price * between.bytes < level * (1 - 1e-6) - 1e-12:
                found[between.bytes] = between
                pending += [(more, between), (between, less)]
        return [found[size] for size in sorted(found, reverse=True)]
