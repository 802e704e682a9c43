"""Schedules that save a minimum cut of the graph at the forward/backward boundary.

At the boundary of a run, its whole forward pass has executed and all of its gradients are still to
come. min_cut.py finds the values to save there, within a number of bytes, for the least recompute
cost. lower_bound.py uses the same set as a bound; here it gives a schedule. The schedule is the
forward pass, then each backward step after the recomputation of its missing inputs. Recomputed
values stay live to their last use.

Such a schedule fits at the boundary only. Later more may be live, as values are recomputed before
saved ones have died, so eviction has to reduce it. If the forward pass is nowhere narrow, as with
layers that recur over time, it is a better start for eviction than the dynamic program's schedule.
In such networks, many values are nearly free to recompute, but by chains longer than a span of
units.

Equal layers have equal values, so every saved set on the hull would save none or all of them. Early
values are used late in the backward pass, when less is live. Their cost is therefore reduced a
little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from graphc.planner.recompute.chain import Chain
from graphc.planner.recompute.min_cut import Choice

TILT = 0.1
"""Relative cost increase of the last forward step over the first; steps between are
interpolated."""

PRICES = 40
"""Maximum number of minimum cuts computed for one limit of saved bytes."""

ATTEMPTS = 4
"""Limits of saved bytes tried in turn, as recomputation may extend live ranges over the
boundary."""


class BoundaryCut:
    """Chooser of the values to save at the forward/backward boundary of one run, by minimum
    cuts."""

    def __init__(self, chain: Chain) -> None:
        self.chain, self.steps, self.run = chain, chain.steps, chain.run

    def sequence(self, capacity: int) -> list[int]:
        """Return the steps of the run with at most `capacity` bytes live at the boundary. If no
        attempt has so few bytes, return the last attempt."""
        saved_limit = capacity - self._other_bytes
        for _ in range(ATTEMPTS):
            sequence = self._with(saved_limit)
            above = self._live_at_boundary(sequence) - capacity
            if above <= 0:
                break
            saved_limit -= above
        return sequence

    def _with(self, saved_limit: int) -> list[int]:
        """Return the steps of the run if it saves `_read` and the best other values of at most
        `saved_limit` bytes."""
        run = self.run
        kept = self._choice.cheapest_within(saved_limit, PRICES).values | self._read
        recomputed = self.chain.lazy_sequence(range(run.boundary, run.stop), set(kept))
        return [*range(run.start, run.boundary), *recomputed]

    def _live_at_boundary(self, sequence: Sequence[int]) -> int:
        """Return the bytes live at the boundary if this run executes `sequence` and others are
        unchanged."""
        whole = [*range(self.run.start), *sequence, *range(self.run.stop, len(self.steps))]
        place = self.run.start + sequence.index(self._boundary)
        return int(self.steps.levels(whole)[place]) + self.steps.fixed_bytes

    @cached_property
    def _boundary(self) -> int:
        """The first backward step that reads from the forward pass."""
        droppable, run = self.chain.droppable, self.run
        backward = range(run.boundary, run.stop)
        inputs = self.steps.inputs
        return next((s for s in backward if not droppable.isdisjoint(inputs[s])), run.boundary)

    @cached_property
    def _read(self) -> frozenset[int]:
        """The droppable forward values that the boundary step reads; these values must be live
        there."""
        return frozenset(self.chain.droppable.intersection(self.steps.inputs[self._boundary]))

    @cached_property
    def _choice(self) -> Choice:
        steps, run = self.steps, self.run
        made = {value for step in self.chain.forward for value in steps.outputs[step]}
        tilted = tuple(
            cost * (1 + TILT * max(0, step - run.start) / (run.boundary - run.start))
            for step, cost in enumerate(steps.cost)
        )
        free = (made - self.chain.droppable) | self._read
        return Choice(replace(steps, cost=tilted), self.chain.forward, self.chain.required, free)

    @cached_property
    def _other_bytes(self) -> int:
        """Bytes live at the boundary that stay live under every choice of saved values."""
        steps = self.steps
        level = self._live_at_boundary(range(self.run.start, self.run.stop))
        return level - steps.total(self.chain.required - self._read)
