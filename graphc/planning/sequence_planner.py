"""Sequences within a number of bytes: the chain's dynamic program, then what room is left.

chain.py says what is cheapest by its own levels of bytes; `Steps.peak` says what a sequence takes.
For a limit of M bytes, room m starts at M less the fixed bytes, and

    1. each run's table gives its actions for m, and emission.py the sequence;
    2. where its peak is above M, m falls by the difference, at least by m / 200, and 1 is tried
       again, up to 12 times;
    3. else polish.py fills what is left of M by keeping values that would be made again: in that
       sequence, and in those of up to 32 rooms below m, which are the same for all limits; fewer
       where sequences are long;
    4. where a bound says that much less might do, sequences for more bytes than M, and those that
       turn_cut.py makes, are brought down by shrink.py, to limits that are the same for all M, and
       filled as well; the cheapest for a limit is improved by iterate.py.

The cheapest is the plan.

Tables are made for the bytes of running all once, divided by 1, 2, 4, ...: a limit is served by the
smallest table that reaches up to it, so that it has at least half of its levels. A table without
reruns is quick, and is taken where it costs at most 5 % of a forward pass; else ranges may be run
anew as a whole. All that does not depend on the limit is kept between calls: one planner serves a
budget, a frontier, and a bisection.

Nothing here is proven to be the least: that is what bound.py measures it against.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from graphc.planning.blocks import Chain
from graphc.planning.bound import extra_cost, least_bytes
from graphc.planning.chain import FirstPass, Reruns, Spans
from graphc.planning.emission import emit
from graphc.planning.iterate import iterate
from graphc.planning.polish import keep_more
from graphc.planning.shrink import shrink
from graphc.planning.steps import Steps
from graphc.planning.turn_cut import TurnCut

ATTEMPTS = 12
"""Lower levels that are tried where a plan takes more bytes than the table said."""

PER_OCTAVE, ROOMS = 64, 32
"""Rooms whose sequences are filled for every limit above: how dense they are, and how many."""

ROOMIER = PER_OCTAVE // 16
"""How many rooms further up one is looked for that has a sequence: a sixteenth of an octave."""

EFFORT = 60_000
"""Steps of all sequences that are filled for one limit, where that leaves any."""

CHEAP = 0.05
"""Part of a forward pass below which no range is run anew as a whole."""

SHRUNK_PER_OCTAVE = 32
"""Limits that sequences are shrunk to: how dense they are."""

SOURCES = (1.3, 1.06, 1.15, 1.5, 1.1, 1.2, 2.0)
"""Where the sequences come from that are shrunk to a limit, as parts of it, best first."""

CUT = (1.0, 0.93)
"""Bytes at the turn of sequences from minimum cuts that are shrunk to a limit, as parts of it."""

SHRINKING = 30_000
"""Steps of all sequences of chains that are shrunk to one limit, where that leaves any."""

ITERATING = 30_000
"""Steps of all sequences that are given room and shrunk again for one limit."""

MOST_LOOKED, LOOKING = 3, 6_000
"""Limits whose shrunk sequences serve one above them; fewer, but one, beyond so many steps."""

WORTH = 0.01
"""Part of a step's cost above the bound from which on sequences are shrunk."""

DEEPER = 0.8
"""Part of the fewest bytes of a chain below which nothing is shrunk."""

FINER = 1.01
"""Steps of limits in which the least one is looked for."""

BISECTIONS = 7
SAMPLES = 32
"""Points of the curve in each table."""


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """A sequence of steps, what its repeats cost, and its peak as `Steps.peak` counts."""

    sequence: list[int]
    extra_cost: float
    peak_bytes: int


class SequencePlanner:
    """Plans the same steps for many limits; what does not depend on the limit is measured once.

    `shrinks` says whether the fourth way is tried, which takes most of the time where it is.
    """

    def __init__(self, steps: Steps, shrinks: bool = True) -> None:
        self.steps = steps
        self.once = SequencePlan(list(range(len(steps))), 0.0, steps.peak(range(len(steps))))
        chains = [Chain(steps, run) for run in steps.runs]
        self.spans = [Spans(chain) for chain in chains if chain.useful]
        self.cuts = [TurnCut(spans.chain) for spans in self.spans]
        self.forward_cost = sum(steps.cost_of(chain.useful) for chain in chains)
        least = max((spans.least_peak() for spans in self.spans), default=0)
        self.step_cost = steps.cost_of(range(len(steps)))
        self.looked = max(1, min(MOST_LOOKED, LOOKING // max(len(steps), 1)))
        self.sources = SOURCES[: SHRINKING // max(len(steps), 1)] if shrinks and self.spans else ()
        lowest = DEEPER if self.sources else 1.0
        self.floor = max(int(lowest * (steps.fixed_bytes + least)), least_bytes(steps))
        """Bytes that every plan found here needs."""
        self._tables: dict[tuple[int, int, bool], FirstPass] = {}
        self._plans: dict[int, SequencePlan | None] = {}
        self._sequences: dict[int, list[int] | None] = {}
        self._shrunk: dict[int, list[int] | None] = {}

    def plan_for(self, limit: int) -> SequencePlan | None:
        """The sequence for a limit of bytes, whatever was planned before, or None."""
        if limit >= self.once.peak_bytes:
            return self.once
        if limit <= 0:
            return None
        if limit not in self._plans:
            self._plans[limit] = self._plan(limit)
        return self._plans[limit]

    def plan(self, limit: int) -> SequencePlan | None:
        """The cheapest sequence found so far whose peak is at most `limit` bytes, or None."""
        if self.plan_for(limit) is self.once:
            return self.once
        # A plan for a smaller limit may have been found cheaper.
        known = (plan for plan in self._plans.values() if plan and plan.peak_bytes <= limit)
        return min(known, key=lambda plan: plan.extra_cost, default=None)

    def least(self) -> SequencePlan:
        """The plan of the fewest bytes found, whatever was planned before."""
        # The smallest table that has a plan first: its levels are the finest where it matters.
        for most in reversed(list(self._mosts())):
            tables = [self._table(number, most, True) for number in range(len(self.spans))]
            if not tables or any(math.isinf(table.cost(table.scale.count - 1)) for table in tables):
                continue
            limit = self.steps.fixed_bytes + max(math.ceil(table.least_bytes) for table in tables)
            while limit < self.once.peak_bytes:
                found = self.plan_for(limit)
                if found is not None:
                    return found
                # A table counts in levels and may promise a little too much, so the limit goes up
                # to a plan.
                limit = int(limit * FINER) + 1
        return self.once

    def least_costing_by(self, steps: Steps, cost: float) -> SequencePlan:
        """The plan of the fewest bytes, of those that cost the least here, whose repeats cost at
        most so much by other costs, those of `steps`."""
        best = self.once
        low, high = self.floor, best.peak_bytes
        for _ in range(BISECTIONS):
            limit = (low + high) // 2
            found = self.plan_for(limit)
            if found is not None and steps.extra_cost(found.sequence) <= cost:
                best, high = found, min(limit, found.peak_bytes)
            else:
                low = limit
        return best

    def least_costing(self, cost: float) -> SequencePlan:
        """The plan of the fewest bytes found whose repeats cost at most so much."""
        high = self.once.peak_bytes
        # The tables say between which halves the limit lies, the plans say where exactly.
        for reruns in (False, True):
            # Reruns go on from where tables without them stopped: they reach fewer bytes at the
            # same cost.
            low = self.floor
            for most in self._mosts():
                if most >= high:
                    continue
                if self._cost(most, reruns) > cost:
                    low = most
                    break
                high = most
        best = self.once
        for _ in range(BISECTIONS):
            limit = (low + high) // 2
            found = self.plan(limit)
            if found is not None and found.extra_cost <= cost:
                best = min(best, found, key=lambda plan: plan.peak_bytes)
                # A plan may leave some of its limit, and then the next limit is below the plan,
                # too.
                high = min(limit, found.peak_bytes)
            else:
                low = limit
        return best

    def curve(self) -> list[tuple[int, float]]:
        """(bytes, extra cost) estimated without running ranges anew, from many bytes to few."""
        points = [(self.once.peak_bytes, 0.0)]
        for most in self._mosts():
            # Below half of its bytes the next table has the finer levels.
            for sample in range(SAMPLES, SAMPLES // 2, -1):
                limit = most * sample // SAMPLES
                cost = self._cost(limit, False)
                if math.isinf(cost):
                    return points
                points.append((limit, cost))
        return points

    def _mosts(self) -> Iterator[int]:
        """Bytes that tables are made for: the whole, and halves of halves."""
        most = self.once.peak_bytes
        yield most
        while most // 2 > self.floor:
            most //= 2
            yield most

    def _most_for(self, limit: int) -> int:
        """Tables serve limits down to half of theirs."""
        most = self.once.peak_bytes
        while most >= 2 * max(limit, 1):
            most //= 2
        return most

    def _plan(self, limit: int) -> SequencePlan | None:
        plans = [plan for plan in (self._along_chains(limit), *self._from_above(limit)) if plan]
        return min(plans, key=lambda plan: plan.extra_cost, default=None)

    def _along_chains(self, limit: int) -> SequencePlan | None:
        """What the tables give, filled."""
        room = float(limit - self.steps.fixed_bytes)
        for _ in range(ATTEMPTS):
            sequence = self._sequence(limit, room)
            if sequence is None:
                return None
            # Tables round to levels, so the sequence is measured before anybody relies on it.
            peak = self.steps.peak(sequence)
            if peak <= limit:
                return self._filled(limit, room, sequence)
            # By the overshoot, and at least by about a level of a coarse table, or the same plan
            # comes back.
            room -= max(peak - limit, room / 200)
        return None

    def _from_above(self, limit: int) -> Iterator[SequencePlan]:
        """What was shrunk to limits that are the same for all, filled up to this one."""
        if not self.sources or limit < self.floor:
            return
        most = self.once.peak_bytes
        first = math.ceil(SHRUNK_PER_OCTAVE * math.log2(most / limit))
        for number in range(first, first + self.looked):
            if number not in self._shrunk:
                self._shrunk[number] = self._shrunk_to(
                    int(most * 2.0 ** (-number / SHRUNK_PER_OCTAVE))
                )
            sequence = self._shrunk[number]
            if sequence is not None:
                yield self._measured(keep_more(self.steps, sequence, limit))

    def _shrunk_to(self, limit: int) -> list[int] | None:
        """The cheapest of the sequences for more bytes that shrink to a limit, filled."""
        if limit < self.floor:
            return None
        known = self._along_chains(limit)
        if known is not None:
            bound = extra_cost(self.steps, limit)
            if known.extra_cost - bound <= WORTH * self.step_cost:
                return None
        tried: list[list[int]] = []
        found = []
        for sequence in self._sources(limit):
            if sequence in tried:
                continue
            tried.append(sequence)
            shrunk = shrink(self.steps, sequence, limit)
            if shrunk is not None:
                found.append(keep_more(self.steps, shrunk, limit))
        best = min(found, key=self.steps.extra_cost, default=None)
        return None if best is None else iterate(self.steps, best, limit, ITERATING)

    def _sources(self, limit: int) -> Iterator[list[int]]:
        """What is shrunk to a limit."""
        for part in self.sources:
            yield self._sequence_above(int(part * limit))
        for part in CUT:
            yield self._joined([cut.sequence(int(part * limit)) for cut in self.cuts])

    def _sequence_above(self, limit: int) -> list[int]:
        """What the tables give for at least the bytes of a limit."""
        whole = self.once.peak_bytes - self.steps.fixed_bytes
        room = max(limit - self.steps.fixed_bytes, 1)
        number = math.floor(PER_OCTAVE * math.log2(whole / room)) if room < whole else 0
        while number > 0:
            sequence = self._sequence_for(number)
            if sequence is not None:
                return sequence
            number -= ROOMIER
        return self.once.sequence

    def _measured(self, sequence: list[int]) -> SequencePlan:
        return SequencePlan(sequence, self.steps.extra_cost(sequence), self.steps.peak(sequence))

    def _filled(self, limit: int, room: float, sequence: list[int]) -> SequencePlan:
        """The cheapest of the sequence given and those for less room, all filled up to the limit.

        The rooms are the same for all limits, so that a larger one does not miss what a smaller
        one has. What tables lose by rounding, a sequence for less room that is filled may regain.
        """
        tried = [sequence]
        width = 1
        while width * EFFORT < ROOMS * len(sequence):
            width *= 2
        whole = self.once.peak_bytes - self.steps.fixed_bytes
        first = -int(-PER_OCTAVE * math.log2(max(whole / room, 1.0)) // width) * width
        for number in range(first, first + ROOMS, width) if width <= ROOMS else ():
            other = self._sequence_for(number)
            if other is None:
                break
            if other not in tried and self.steps.peak(other) <= limit:
                tried.append(other)
        plans = [self._measured(keep_more(self.steps, each, limit)) for each in tried]
        return min(plans, key=lambda plan: plan.extra_cost)

    def _sequence_for(self, number: int) -> list[int] | None:
        """What the tables give for a room that no limit moves."""
        if number not in self._sequences:
            whole = self.once.peak_bytes - self.steps.fixed_bytes
            room = whole * 2.0 ** (-number / PER_OCTAVE)
            self._sequences[number] = self._sequence(int(room) + self.steps.fixed_bytes, room)
        return self._sequences[number]

    def _sequence(self, limit: int, room: float) -> list[int] | None:
        parts = []
        for number, spans in enumerate(self.spans):
            table = self._best_table(number, limit, room)
            level = table.scale.within(room)
            if math.isinf(table.cost(level)):
                return None
            parts.append(emit(spans.chain, table.actions(level)))
        return self._joined(parts)

    def _joined(self, parts: Iterable[list[int]]) -> list[int]:
        """The runs of the chains, and what lies between them: it runs once, in order."""
        sequence: list[int] = []
        reached = 0
        for spans, part in zip(self.spans, parts, strict=True):
            run = spans.chain.run
            sequence += range(reached, run.start)
            sequence += part
            reached = run.stop
        return [*sequence, *range(reached, len(self.steps))]

    def _best_table(self, number: int, limit: int, room: float) -> FirstPass:
        """Ranges are run anew only where that pays."""
        most = self._most_for(limit)
        single = self._table(number, most, False)
        if single.cost(single.scale.within(room)) <= CHEAP * self.forward_cost:
            return single
        return self._table(number, most, True)

    def _cost(self, limit: int, reruns: bool) -> float:
        room = limit - self.steps.fixed_bytes
        most = self._most_for(limit)
        tables = (self._table(number, most, reruns) for number in range(len(self.spans)))
        return sum(table.cost(table.scale.within(room)) for table in tables)

    def _table(self, number: int, most: int, reruns: bool) -> FirstPass:
        key = (number, most, reruns)
        if key not in self._tables:
            spans, room = self.spans[number], max(most - self.steps.fixed_bytes, 1)
            self._tables[key] = FirstPass(spans, Reruns(spans, room) if reruns else None, room)
        return self._tables[key]
