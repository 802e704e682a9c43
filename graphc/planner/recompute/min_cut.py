"""Choice between saving and recomputing values, by minimum cuts.

A value with a later use is either saved, which takes bytes, or recomputed. Recomputing it costs its
step and poses the same choice for what that step reads. The choice that minimizes cost + λ · bytes,
for a price λ of a byte, is a minimum cut between a source and a sink. The network has a node for
each step s and each value v:

    source → s    cost of s          cut if s is recomputed; infinite if s may not be
    s → v         λ · bytes of v     cut if s executes once and v is saved
    v → s         infinite           s reads v: if s is recomputed, v is available
    v → sink      infinite           v has a later use

The sink's side holds what is wanted after the steps have run. A value there is recomputed if its
producer is on that side too, and saved if not. The capacity of a cut is the cost of the recomputed
steps plus λ times the saved bytes. Anything else is on the source's side, for free.

Steps may be undecided: the choice then includes whether they have run by now. Such a step t has a
second node t', which is on the source's side if t has run. Instead of source → t there are

    t' → t    cost of t    cut if t has run, and is recomputed
    t → t'    infinite     t runs later, unless it has run
    t' → s'   infinite     t reads what s produces: t has run only if s has

As λ grows from 0, the minima follow the lower convex hull of cost against bytes, from saving
everything that costs something to saving nothing. `Choice.hull` finds corners by the method of
Eisner and Severance (1976): at the price where two known corners tie, either a corner below their
line is found or none exists. Saved sets above the hull are not found, even if they are the best for
their bytes.

A cut is one maximum flow by SciPy. Its capacities are 32-bit integers, scaled to a sum of 2^30 and
rounded up. The network has about one edge per input and output of a step, and twice as many for
undecided steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from graphc.planner.problem import AllBut, Problem

CAPACITY = 2**30
"""Sum of all edge capacities, which are 32-bit integers."""

SOURCE, SINK = 0, 1

FORBIDDEN = -1.0
"""Marks the cost of an edge that must not be cut."""


@dataclass(frozen=True, slots=True)
class SavedSet:
    """A set of values to save, its bytes, and the cost of recomputing all other required values."""

    values: frozenset[int]
    bytes: int
    cost: float


class Choice:
    """The choice to save or recompute outputs of `chosen` steps, so that `required` values are
    available. Inputs from other steps are available, and values in `free` are always saved. Steps
    in `undecided`, none of which is chosen, may or may not have run; all of them must run
    eventually.
    """

    def __init__(
        self,
        steps: Problem,
        chosen: Sequence[int],
        required: Collection[int],
        free: Collection[int],
        undecided: Sequence[int] = (),
    ) -> None:
        self.steps = steps
        required = sorted(set(required) - set(free))
        lost = {value for step in chosen for value in steps.outputs[step]} - set(free)
        # The network has only steps and values that the recomputation of a required value may
        # need. Values of other steps count as available.
        asked = itertools.chain(required, *(steps.inputs[step] for step in undecided))
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
        # These edges are never cut: each required value is available, saved or recomputed.
        rows += [(self.value_node[value], SINK, FORBIDDEN, 0) for value in required]
        self.count = first + len(self.ran_node)
        self.starts = np.array([row[0] for row in rows], np.int32)
        self.ends = np.array([row[1] for row in rows], np.int32)
        self.costs = np.array([row[2] for row in rows])
        self.bytes = np.array([row[3] for row in rows], float)

    @property
    def least_price(self) -> float:
        """A price of a byte at which every required value with a recompute cost is saved."""
        return 1e-6 * self.total(0.0) / max(float(self.bytes.sum()), 1.0)

    @property
    def highest_price(self) -> float:
        """A price of a byte at which no value of nonzero size is saved."""
        return 1e12 * self.least_price

    def total(self, price: float) -> float:
        """Return the cost of all steps plus `price` times the bytes of all values."""
        return float(np.maximum(self.costs, 0).sum() + price * self.bytes.sum())

    def cheapest(self, price: float) -> SavedSet:
        """Return the saved set that minimizes recompute cost plus `price` times saved bytes."""
        # If recomputation is free, nothing is worth a byte.
        if not len(self.starts) or not self.costs.max() > 0:
            return SavedSet(frozenset(), 0, 0.0)
        capacity = np.maximum(self.costs, 0) + price * self.bytes
        scale = CAPACITY / max(capacity.sum(), 1e-300)
        # Capacities are rounded up, since an edge of capacity zero would be cut for free. Infinite
        # is the sum of all finite capacities, which no minimum cut costs.
        whole = np.where(self.costs < 0, CAPACITY, np.ceil(capacity * scale)).astype(np.int32)
        network = csr_array((whole, (self.starts, self.ends)), shape=(self.count, self.count))
        flow = maximum_flow(network, SOURCE, SINK).flow
        # SciPy's flow is negative on reverse edges, so this is the residual with both directions.
        residual = network - flow
        residual.eliminate_zeros()
        # Nodes that reach the sink are recomputed or required; other steps execute once. Of equal
        # cuts this is the one nearest the sink, which recomputes the fewest steps.
        reaching = np.zeros(self.count, bool)
        reaching[breadth_first_order(residual.T.tocsr(), SINK, return_predecessors=False)] = True
        later = {step for step, node in self.step_node.items() if reaching[node]}
        kept = frozenset(
            value
            for value, node in self.value_node.items()
            if reaching[node] and self.steps.producer[value] not in later
        )
        recomputed = (
            step for step in sorted(later) if not reaching[self.ran_node.get(step, SOURCE)]
        )
        return SavedSet(kept, self.steps.total(kept), self.steps.cost_of(recomputed))

    @cached_property
    def outermost(self) -> tuple[SavedSet, SavedSet]:
        """The saved sets at the ends of the hull: with the most bytes, and with the fewest."""
        return self.cheapest(self.least_price), self.cheapest(self.highest_price)

    def tangents(
        self, limit: int, most: int, highest: float = math.inf
    ) -> Iterator[tuple[float, SavedSet]]:
        """Yield up to `most` pairs of a price and its saved set, closing in on `limit` bytes on the
        hull. Yields nothing if all sets on the hull fit the limit, or if none does and prices are
        unlimited. Prices are at most `highest`, at which the last pair is if all others are too
        low."""
        more, less = self.outermost
        for _ in range(most):
            # `more` stays above the limit and `less` within it.
            if more.bytes <= limit:
                return
            if less.bytes > limit:
                if highest < math.inf:
                    yield highest, self.cheapest(highest)
                return
            if less.cost <= more.cost:
                return
            price = min((less.cost - more.cost) / (more.bytes - less.bytes), highest)
            between = self.cheapest(price)
            yield price, between
            # No corner is below their line, which is the hull at `limit`.
            if between.bytes in (more.bytes, less.bytes):
                return
            if between.bytes > limit:
                more = between
            else:
                less = between

    def hull(self, most: int) -> list[SavedSet]:
        """Return up to `most` saved sets on the lower convex hull of cost against bytes, most bytes
        first."""
        low, high = self.outermost
        found = {low.bytes: low, high.bytes: high}
        pending = [(low, high)]
        while pending and len(found) < most:
            # Oldest pair first, so that the corners found are spread out if `most` ends this early.
            more, less = pending.pop(0)
            if more.bytes <= less.bytes or less.cost <= more.cost:
                continue
            # At this price both ends have the same value, `level`.
            price = (less.cost - more.cost) / (more.bytes - less.bytes)
            between = self.cheapest(price)
            level = more.cost + price * more.bytes
            # Capacities are integers, so a value that is less by rounding is no new corner.
            if between.cost + price * between.bytes < level * (1 - 1e-6) - 1e-12:
                found[between.bytes] = between
                pending += [(more, between), (between, less)]
        return [found[size] for size in sorted(found, reverse=True)]
