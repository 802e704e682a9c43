"""Plans of a tape within a number of bytes: the chain's dynamic program, then what room is left."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.planning.blocks import Chain
from graphc.planning.chain import FirstPass, Reruns, Spans, emit
from graphc.planning.polish import keep_more
from graphc.planning.tape import Tape

ATTEMPTS = 12
"""Lower levels that are tried where a plan takes more bytes than the table said."""

CHEAP = 0.05
"""Part of a forward pass below which no range is run anew as a whole."""


@dataclass(frozen=True, slots=True)
class TapePlan:
    """A sequence of steps, what its repeats cost, and its peak by the tape's own measure."""

    sequence: list[int]
    extra_cost: float
    peak_bytes: int


class TapePlanner:
    """Plans one tape for many limits; what does not depend on the limit is measured once."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.once = TapePlan(list(range(len(tape))), 0.0, tape.peak(range(len(tape))))
        chains = [Chain(tape, run) for run in tape.runs]
        self.spans = [Spans(chain) for chain in chains]
        self.forward_cost = sum(tape.cost_of(chain.useful) for chain in chains)
        self._tables: dict[tuple[int, int, bool], FirstPass] = {}
        self._plans: dict[int, TapePlan | None] = {}

    def plan(self, limit: int) -> TapePlan | None:
        """The cheapest sequence found whose peak is at most `limit` bytes, or None."""
        if limit >= self.once.peak_bytes:
            return self.once
        if limit not in self._plans:
            self._plans[limit] = self._plan(limit)
        return self._plans[limit]

    def _plan(self, limit: int) -> TapePlan | None:
        room = float(limit - self.tape.fixed_bytes)
        for _ in range(ATTEMPTS):
            sequence = self._sequence(limit, room)
            if sequence is None:
                return None
            peak = self.tape.peak(sequence)
            if peak <= limit:
                break
            room -= max(peak - limit, room / 200)
        else:
            return None
        sequence = keep_more(self.tape, sequence, limit)
        return TapePlan(sequence, self.tape.extra_cost(sequence), self.tape.peak(sequence))

    def _sequence(self, limit: int, room: float) -> list[int] | None:
        sequence: list[int] = []
        for number, spans in enumerate(self.spans):
            table = self._table(number, limit, room)
            level = table.scale.within(room)
            if table.cost(level) == float("inf"):
                return None
            run = spans.chain.run
            sequence += range(len(set(sequence)), run.start)
            sequence += emit(spans.chain, table.actions(level))
        return sequence

    def _table(self, number: int, limit: int, room: float) -> FirstPass:
        """Tables serve limits down to half of theirs; ranges are run anew only where that pays."""
        most = self.once.peak_bytes
        while most >= 2 * limit:
            most = most // 2
        single = self._cached(number, most, reruns=False)
        if single.cost(single.scale.within(room)) <= CHEAP * self.forward_cost:
            return single
        return self._cached(number, most, reruns=True)

    def _cached(self, number: int, most: int, reruns: bool) -> FirstPass:
        key = (number, most, reruns)
        if key not in self._tables:
            spans = self.spans[number]
            self._tables[key] = FirstPass(spans, Reruns(spans, most) if reruns else None, most)
        return self._tables[key]
