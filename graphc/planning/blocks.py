"""A run as a chain of units between narrow places, and what can be done with a span of units.

A cut is a place in the forward pass; what crosses it is all that the rest of the pass, where
gradients want it, needs of what ran before. The backward steps are parted to match: the region of a
unit holds the steps that must run before anything earlier than its first cut is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeVar

from graphc.planning.keep_sets import Choice
from graphc.planning.steps import AllBut, Run, Tape

WINDOW = 8
"""A cut is narrowest among so many places on either side, or one value wide."""

MOST_UNITS, MOST_WIDE = 340, 80
"""Longer chains are thinned out: where one value crosses, and where several do."""

SPANS = (1, 2, 4, 8, 16)
"""Units that are taken together, so that what crosses between them can be dropped too."""

MOST, FEW = 24, 6
"""Options of one unit, at most, and of a long span."""

MOST_SPANNED = 400_000
"""Steps of all spans of one width, beyond which wider ones are not looked at."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to take a span: what is kept from its forward steps to its region, and what it takes.

    `saved` counts what is kept and what crosses the cut behind the span. `forward_cost` is the cost
    of running it anew, `again_cost` of what the region has to make again. Peaks count what the span
    makes; that of the region also all that is not of the forward pass.
    """

    kept: frozenset[int]
    saved: int
    forward_peak: int
    region_peak: int
    forward_cost: float
    again_cost: float


class Chain:
    """The units of one run, their cuts and regions, and the options of each span.

    `crossing[k]` is what crosses in front of unit k, `others[k]` the bytes that are live behind the
    region of unit k and not of the forward pass; the last entry is for the place of the turn.
    """

    def __init__(self, tape: Tape, run: Run) -> None:
        self.tape, self.run = tape, run
        self.forward = range(run.start, run.turn)
        self.droppable: set[int] = {
            value
            for step in self.forward
            if step not in tape.once
            for value in tape.outputs[step]
            if value not in tape.held and tape.last_read[value] < run.stop
        }
        self._find_units()
        if lasting := self._lasting():
            self.droppable -= lasting
            self._find_units()
        self._find_regions()
        self.others = self._others()
        self._measured: dict[object, list[tuple[tuple[int, ...], Option]]] = {}

    def __len__(self) -> int:
        return len(self.units)

    def _find_units(self) -> None:
        """Part the forward steps at the cuts."""
        self.fixed = AllBut(self.droppable)
        self.wanted = {
            value
            for step in range(self.run.turn, self.run.stop)
            for value in self.tape.inputs[step]
            if value in self.droppable
        }
        self.useful = self.tape.missing(self.wanted, self.fixed)
        widths = [(size, len(crossing)) for _, size, crossing in self._boundaries()][:-1]
        chosen = set(_thinned(narrow(widths), widths))
        cuts = [
            (step, frozenset(crossing))
            for index, (step, _, crossing) in enumerate(self._boundaries())
            if index in chosen
        ]
        # The turn is a cut too: what the last step makes is all that the first region reads.
        for step in self.useful[-1:]:
            cuts.append((step, frozenset(self.tape.outputs[step]) & self.wanted))
        edges = [self.run.start, *(step + 1 for step, _ in cuts), self.run.turn]
        self.units = [range(a, b) for a, b in pairwise(edges)]
        self.crossing = [frozenset[int](), *(values for _, values in cuts)]
        self.crossing.append(frozenset())
        self.unit_of = {
            value: index
            for index, unit in enumerate(self.units)
            for step in unit
            for value in self.tape.outputs[step]
            if value in self.droppable
        }

    def _boundaries(self) -> Iterator[tuple[int, int, Collection[int]]]:
        tape = self.tape
        return boundaries(
            self.useful,
            lambda step: tape.inputs[step],
            lambda step: filter(self.droppable.__contains__, tape.outputs[step]),
            lambda value: tape.bytes[value],
        )

    def _lasting(self) -> set[int]:
        """Few bytes of a unit that are read long after the rest of it: they are not dropped.

        A scale that all of a backward pass reads would else stretch a region over all of it.
        """
        far = 3 * (self.run.stop - self.run.turn) // len(self.units)
        found: set[int] = set()
        for first in range(len(self.units)):
            made = [value for value in self.made(first, first + 1) if value in self.wanted]
            made.sort(key=lambda value: -self.tape.last_read[value])
            spare = self.tape.total(made) // 100
            for value, following in pairwise(made):
                spare -= self.tape.bytes[value]
                if spare < 0:
                    break
                if self.tape.last_read[value] - self.tape.last_read[following] > far:
                    found.update(made[: made.index(following)])
        return found

    def _find_regions(self) -> None:
        """Each region as long as it can be: up to a step that reads from before its first cut."""
        ends = [self.run.turn] * len(self.units)
        for value, index in self.unit_of.items():
            ends[index] = max(ends[index], self.tape.last_read[value] + 1)
        self.regions = [range(0)] * len(self.units)
        start = self.run.turn
        for index in range(len(self.units) - 1, -1, -1):
            stop = max(start, ends[index])
            while stop < self.run.stop and all(
                self.unit_of.get(value, index) >= index or value in self.crossing[index]
                for value in self.tape.inputs[stop]
            ):
                stop += 1
            self.regions[index] = range(start, stop)
            start = stop
        self.regions[0] = range(self.regions[0].start, self.run.stop)

    def _others(self) -> list[int]:
        """Bytes behind each region, and at the turn, of values that are not dropped."""
        tape = self.tape
        change = [0] * (len(tape) + 2)
        for value, size in enumerate(tape.bytes):
            if value not in self.droppable:
                end = len(tape) if value in tape.held else tape.last_read[value]
                if end > tape.maker[value]:
                    change[tape.maker[value] + 1] += size
                    change[end + 1] -= size
        live = list(accumulate(change))
        return [*(live[region.stop] for region in self.regions), live[self.run.turn]]

    def new_bytes(self, first: int, last: int) -> int:
        """Bytes that cross the cut in front of unit `last` and not the one in front of `first`."""
        return self.tape.total(self.crossing[last] - self.crossing[first])

    def shared_bytes(self, first: int, last: int) -> int:
        """Bytes that cross both cuts."""
        return self.tape.total(self.crossing[last] & self.crossing[first])

    def needed(self, wanted: Iterable[int], available: Container[int]) -> list[int]:
        """Forward steps that make the wanted values from those available."""
        return self.tape.missing(wanted, _Either(available, self.fixed))

    def made(self, first: int, last: int) -> Iterator[int]:
        """Droppable values of units [first, last), in order."""
        for step in range(self.units[first].start, self.units[last - 1].stop):
            for value in self.tape.outputs[step]:
                if value in self.droppable:
                    yield value

    def region(self, first: int, last: int) -> range:
        """Backward steps of units [first, last)."""
        return range(self.regions[last - 1].start, self.regions[first].stop)

    def lazily(self, steps: Iterable[int], available: set[int]) -> list[int]:
        """Backward steps, each after what it needs and is not available; notes what is made."""
        sequence: list[int] = []
        inputs, outputs, droppable = self.tape.inputs, self.tape.outputs, self.droppable
        for step in steps:
            lost = [v for v in inputs[step] if v in droppable and v not in available]
            if lost:
                again = self.needed(lost, available)
                sequence += again
                for repeated in again:
                    available.update(outputs[repeated])
            sequence.append(step)
        return sequence

    def advance(self, first: int, last: int) -> tuple[int, float]:
        """Peak and cost of running units [first, last) anew, keeping what crosses behind them.

        The peak counts what crosses in front of them.
        """
        after = self.crossing[last]
        before = self.crossing[first]
        steps = self.needed(after, before)
        counted = self.droppable
        levels = self.tape.profile(steps, after, AllBut(counted))
        return max(levels, default=0), self.tape.cost_of(steps)

    def forward_peak(self, first: int, last: int, kept: frozenset[int]) -> int:
        """The most bytes of their own values that units [first, last) have live."""
        own = set(self.made(first, last))
        steps = range(self.units[first].start, self.units[last - 1].stop)
        after = (kept | self.crossing[last]) & own
        return max(self.tape.profile(steps, after, AllBut(own)), default=0)

    def backward(self, first: int, last: int, kept: frozenset[int]) -> tuple[int, float]:
        """Peak and cost of the repeats of a region, with `kept` and the cut in front available."""
        available = set(kept) | self.crossing[first]
        region = self.region(first, last)
        sequence = self.lazily(region, available)
        earlier = {
            value for step in sequence for value in self.tape.inputs[step]
            if self.unit_of.get(value, first) < first
        } | self.crossing[first]  # fmt: skip
        touched = {
            value
            for step in sequence
            for value in (*self.tape.inputs[step], *self.tape.outputs[step])
            if value not in self.droppable
        }
        after = {
            value
            for value in touched
            if value in self.tape.held or self.tape.last_read[value] >= region.stop
        }
        untouched = self.others[first] - self.tape.total(after)
        peak = max(self.tape.profile(sequence, after, earlier), default=0)
        return peak + untouched, self.tape.cost_of(sequence) - self.tape.cost_of(region)

    def options(self, first: int, last: int) -> list[Option]:
        """Ways to take units [first, last), measured once for equal spans."""
        key, own, shift = self._shape(first, last)
        if key not in self._measured:
            number = {value: index for index, value in enumerate(own)}
            self._measured[key] = [
                (tuple(sorted(number[value] for value in option.kept)), option)
                for option in self._options(first, last)
            ]
        return [
            Option(
                frozenset(own[index] for index in kept),
                option.saved,
                option.forward_peak,
                option.region_peak + shift,
                option.forward_cost,
                option.again_cost,
            )
            for kept, option in self._measured[key]
        ]

    def _options(self, first: int, last: int) -> list[Option]:
        own = list(self.made(first, last))
        leaving = self.crossing[last] - self.crossing[first]
        steps = range(self.units[first].start, self.units[last - 1].stop)
        made = {value for step in steps for value in self.tape.outputs[step]}
        choice = Choice(self.tape, steps, self.wanted.intersection(own), leaving | made - set(own))
        shift = self.others[first]
        found: list[Option] = []
        for keep_set in choice.hull(max(FEW, MOST // (last - first))):
            kept = keep_set.values | leaving
            peak, cost = self.backward(first, last, kept)
            again = self.needed(kept, self.crossing[first])
            found.append(
                Option(
                    keep_set.values,
                    self.tape.total(kept),
                    self.forward_peak(first, last, keep_set.values),
                    peak - shift,
                    self.tape.cost_of(again),
                    cost,
                )
            )
        return found

    def _shape(self, first: int, last: int) -> tuple[object, list[int], int]:
        """What decides the options of a span, its own values in order, and bytes beside it."""
        tape = self.tape
        own = list(self.made(first, last))
        numbers = {value: index for index, value in enumerate(own)}
        steps = range(self.units[first].start, self.units[last - 1].stop)
        region = self.region(first, last)
        described: list[object] = [len(steps), len(region)]
        for step in (*steps, *region):
            coded = []
            for value in (*tape.inputs[step], *tape.outputs[step]):
                if value not in numbers and value in self.droppable:
                    coded.append(-1)
                    continue
                if value not in numbers:
                    numbers[value] = len(numbers)
                    coded.append(-2 - (tape.last_read[value] >= region.stop))
                coded += (numbers[value], tape.bytes[value])
            described.append((tape.cost[step], tape.workspace[step], tuple(coded)))
        described.append(tuple(sorted(numbers.get(v, -1) for v in self.crossing[last])))
        return tuple(described), own, self.others[first]


class _Either:
    """What stands in one container or in the other."""

    def __init__(self, one: Container[int], other: Container[int]) -> None:
        self.one, self.other = one, other

    def __contains__(self, value: object) -> bool:
        return value in self.one or value in self.other


V = TypeVar("V", bound=Hashable)


def boundaries(
    steps: Sequence[int],
    reads: Callable[[int], Iterable[V]],
    makes: Callable[[int], Iterable[V]],
    size: Callable[[V], int],
) -> Iterator[tuple[int, int, Collection[V]]]:
    """(step, bytes, values) that cross the place behind each step, from what ran to what will."""
    last_use = {value: step for step in steps for value in reads(step)}
    crossing: dict[V, None] = {}
    ending: dict[int, list[V]] = {}
    total = 0
    for step in steps:
        for value in ending.pop(step, ()):
            del crossing[value]
            total -= size(value)
        for value in makes(step):
            if last_use.get(value, -1) > step:
                crossing[value] = None
                total += size(value)
                ending.setdefault(last_use[value], []).append(value)
        yield step, total, crossing


def narrow(widths: Sequence[tuple[int, int]]) -> list[int]:
    """Of places with (bytes, values) that cross, those that one value crosses or that are narrowest
    among their neighbours."""
    sizes = [size for size, _ in widths]
    return [
        index
        for index, (size, count) in enumerate(widths)
        if count == 1 or (count and size == min(sizes[max(0, index - WINDOW) : index + WINDOW + 1]))
    ]


def _thinned(places: list[int], widths: Sequence[tuple[int, int]]) -> list[int]:
    """Of neighbouring places the narrower, until there are few enough."""
    wide = sum(widths[place][1] > 1 for place in places)
    most = MOST_WIDE if 2 * wide > len(places) else MOST_UNITS
    while len(places) >= most:
        pairs = [places[index : index + 2] for index in range(0, len(places), 2)]
        places = [min(pair, key=lambda place: widths[place][0]) for pair in pairs]
    return places
