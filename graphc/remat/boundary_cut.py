"""Sequences that keep at the turn what a minimum cut says, and make the rest when it is first read.

Where a run turns around, all of its forward pass has run and all of its gradients are still to
come. What of it to keep within so many bytes there, for the least cost of making the others again,
is a keep set of min_cut.py; lower_bound.py takes the same for a lower bound. Here it is a plan: the
forward pass, then each backward step behind what it reads and is not there. What is made again
stays to its last reader.

Such a sequence is planned for the turn alone. Behind it, more may be live: what is made again
before what is kept has gone. So eviction brings it down, and it is a better start for
that than what chain.py finds where the forward pass is nowhere narrow, as in layers over time:
there, much costs nearly nothing to make again, but in chains longer than the spans of a chain.

Equal layers make equal values, and then all keep sets on the hull keep none of them or all. What is
made early is read late in the backward pass, where less is live, so it is taken to cost a little
less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from graphc.remat.chain import Chain
from graphc.remat.min_cut import Choice

TILT = 0.1
"""The part of its cost by which the last step is taken to cost more than the first."""

PRICES = 40
"""Most cuts for one number of bytes."""

ATTEMPTS = 4
"""Rooms that are tried: what is made again may hold what else would have died before the turn."""


class BoundaryCut:
    """The choice at the turn of one run."""

    def __init__(self, chain: Chain) -> None:
        self.chain, self.steps, self.run = chain, chain.steps, chain.run

    def sequence(self, capacity: int) -> list[int]:
        """The run with what is kept so that at most `capacity` bytes are live at the turn, or with the
        fewest bytes that are found where that cannot be."""
        saved_limit = capacity - self._beside
        for _ in range(ATTEMPTS):
            sequence = self._with(saved_limit)
            above = self._live_at_boundary(sequence) - capacity
            if above <= 0:
                break
            saved_limit -= above
        return sequence

    def _with(self, saved_limit: int) -> list[int]:
        """The run with what is best kept in so many bytes, beside what the turn reads."""
        run = self.run
        kept = self._choice.within(saved_limit, PRICES).values | self._read
        again = self.chain.lazily(range(run.boundary, run.stop), set(kept))
        return [*range(run.start, run.boundary), *again]

    def _live_at_boundary(self, sequence: Sequence[int]) -> int:
        """Bytes live at the turn where the other runs are as they are."""
        whole = [*range(self.run.start), *sequence, *range(self.run.stop, len(self.steps))]
        place = self.run.start + sequence.index(self._boundary)
        return int(self.steps.levels(whole)[place]) + self.steps.fixed_bytes

    @cached_property
    def _boundary(self) -> int:
        """The first step that reads from the forward pass."""
        droppable, run = self.chain.droppable, self.run
        backward = range(run.boundary, run.stop)
        inputs = self.steps.inputs
        return next((s for s in backward if not droppable.isdisjoint(inputs[s])), run.boundary)

    @cached_property
    def _read(self) -> frozenset[int]:
        """What the turn reads of the forward pass, which is there."""
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
        return Choice(replace(steps, cost=tilted), self.chain.forward, self.chain.wanted, free)

    @cached_property
    def _beside(self) -> int:
        """Bytes live at the turn that are no choice."""
        steps = self.steps
        level = self._live_at_boundary(range(self.run.start, self.run.stop))
        return level - steps.total(self.chain.wanted - self._read)
