"""A run as a chain of units between narrow places, and what can be done with a span of units.

The dynamic program of chain.py needs a chain; a forward pass is a graph. It is cut where it is
narrow: a cut is a place in the forward pass, and what crosses it is all that the rest of the pass
needs of what ran before, as far as gradients want it. Cuts are places that one value crosses, or
that no more bytes cross than any of the 8 places on either side. Between two of them lies a unit.
The backward steps are parted to match: the region of a unit holds the steps that must run before
anything earlier than its first cut is asked for. So with units u(0), ..., u(n - 1) and regions
r(k),

    forward pass   u(0) | u(1) | ... | u(n - 1)   `crossing[k]` crosses in front of u(k)
    backward pass  r(n - 1), ..., r(1), r(0)      `others[k]` bytes behind r(k) cannot be dropped

where r(k) goes up to the last reader of what u(k) makes, and on as long as nothing from before u(k)
but `crossing[k]` is asked for. Values that cross several cuts, such as skip connections, are in
several `crossing`s; a span counts what is new at its end, so that each is counted once.

For a span of units, min_cut.py gives the values to keep up to its region at various prices, and
walks over its steps (`Problem.profile`) give the peaks of each such option. They cost a few tens of
maximum flows over the span's steps. Equal spans, by the numbers that decide their options and not
by names, are measured once, which makes deep networks of equal layers as fast as their distinct
layers.

Chains of more than 340 units (80 where most places are several values wide) are thinned out, since
chain.py takes cubic time.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

from graphc.remat.min_cut import Choice
from graphc.remat.narrow import crossings, narrow, thinned
from graphc.scheduling.problem import AllBut, Problem, Run

SPANS = (1, 2, 4, 8)
"""Units that are taken together, so that what crosses between them can be dropped too."""

MOST, FEW = 8, 4
"""Options of one unit, at most, and of a long span."""

MOST_SPANNED = 400_000
"""Steps of all spans of one width, beyond which wider ones are not looked at."""


@dataclass(frozen=True, slots=True)
class SpanOption:
    """One way to take a span: what is kept from its forward steps to its region, and what it takes.

    `saved_bytes` counts what is kept and what crosses the cut behind the span. `forward_cost` is the cost
    of running it anew, `recompute_cost` of what the region has to make again. Peaks count what the span
    makes; that of the region also all that is not of the forward pass.
    """

    saved: frozenset[int]
    saved_bytes: int
    forward_peak: int
    region_peak: int
    forward_cost: float
    recompute_cost: float


class Chain:
    """The units of one run, their cuts and regions, and the options of each span.

    `crossing[k]` is what crosses in front of unit k, `others[k]` the bytes that are live behind the
    region of unit k and not of the forward pass; the last entry is for the place of the turn.
    """

    def __init__(self, steps: Problem, run: Run) -> None:
        self.steps, self.run = steps, run
        self.forward = range(run.start, run.boundary)
        self.droppable = steps.droppable(run)
        self._find_units()
        # What is never dropped changes where the pass is narrow, so units are found again.
        if lasting := self._lasting():
            self.droppable -= lasting
            self._find_units()
        self._find_regions()
        self.others = self._others()
        self._measured: dict[object, list[tuple[tuple[int, ...], SpanOption]]] = {}

    def __len__(self) -> int:
        return len(self.units)

    def _find_units(self) -> None:
        """Part the forward steps at the cuts."""
        self.fixed = AllBut(self.droppable)
        self.wanted = {
            value
            for step in range(self.run.boundary, self.run.stop)
            for value in self.steps.inputs[step]
            if value in self.droppable
        }
        self.useful = self.steps.missing(self.wanted, self.fixed)
        # The last place, behind all that is wanted, is left out: the turn is a cut in any case.
        widths = [(size, len(crossing)) for _, size, crossing in self._crossings()][:-1]
        chosen = set(thinned(narrow(widths), widths))
        cuts = [
            # Copied, for the walk goes on with the same dict.
            (step, frozenset(crossing))
            for index, (step, _, crossing) in enumerate(self._crossings())
            if index in chosen
        ]
        # The turn is a cut too: what the last step makes is all that the first region reads.
        for step in self.useful[-1:]:
            cuts.append((step, frozenset(self.steps.outputs[step]) & self.wanted))
        edges = [self.run.start, *(step + 1 for step, _ in cuts), self.run.boundary]
        self.units = [range(a, b) for a, b in pairwise(edges)]
        self.crossing = [frozenset[int](), *(values for _, values in cuts)]
        self.crossing.append(frozenset())
        self.unit_of = {
            value: index
            for index, unit in enumerate(self.units)
            for step in unit
            for value in self.steps.outputs[step]
            if value in self.droppable
        }

    def _crossings(self) -> Iterator[tuple[int, int, Collection[int]]]:
        steps = self.steps
        return crossings(
            self.useful,
            lambda step: steps.inputs[step],
            lambda step: filter(self.droppable.__contains__, steps.outputs[step]),
            lambda value: steps.bytes[value],
        )

    def _lasting(self) -> set[int]:
        """Few bytes of a unit that are read long after the rest of it: they are not dropped.

        A scale that all of a backward pass reads would else stretch a region over all of it.
        """
        far = 3 * (self.run.stop - self.run.boundary) // len(self.units)
        found: set[int] = set()
        for first in range(len(self.units)):
            made = [value for value in self.made(first, first + 1) if value in self.wanted]
            made.sort(key=lambda value: -self.steps.last_use[value])
            # From the last read on, as many values as make a hundredth of the bytes: to hold these
            # is cheap.
            spare = self.steps.total(made) // 100
            for value, following in pairwise(made):
                spare -= self.steps.bytes[value]
                if spare < 0:
                    break
                # Only a gap tells stragglers from a unit that is simply read over a long time.
                if self.steps.last_use[value] - self.steps.last_use[following] > far:
                    found.update(made[: made.index(following)])
        return found

    def _find_regions(self) -> None:
        """Each region as long as it can be: up to a step that reads from before its first cut."""
        ends = [self.run.boundary] * len(self.units)
        for value, index in self.unit_of.items():
            ends[index] = max(ends[index], self.steps.last_use[value] + 1)
        self.regions = [range(0)] * len(self.units)
        start = self.run.boundary
        # The last unit's gradients come first. A region goes on as long as it asks for nothing
        # earlier, so that what comes before its unit is wanted back as late as it can be.
        for index in range(len(self.units) - 1, -1, -1):
            stop = max(start, ends[index])
            while stop < self.run.stop and all(
                self.unit_of.get(value, index) >= index or value in self.crossing[index]
                for value in self.steps.inputs[stop]
            ):
                stop += 1
            self.regions[index] = range(start, stop)
            start = stop
        # Nothing lies in front of the first unit, so its region takes all that is left of the run.
        self.regions[0] = range(self.regions[0].start, self.run.stop)

    def _others(self) -> list[int]:
        """Bytes behind each region, and at the turn, of values that are not dropped."""
        steps = self.steps
        change = [0] * (len(steps) + 2)
        for value, size in enumerate(steps.bytes):
            if value not in self.droppable:
                end = len(steps) if value in steps.live_out else steps.last_use[value]
                if end > steps.producer[value]:
                    # By the place in front of a step: live from behind its maker to in front of its
                    # last reader.
                    change[steps.producer[value] + 1] += size
                    change[end + 1] -= size
        live = list(accumulate(change))
        return [*(live[region.stop] for region in self.regions), live[self.run.boundary]]

    def new_bytes(self, first: int, stop: int) -> int:
        """Bytes that cross the cut in front of unit `stop` and not the one in front of `first`."""
        return self.steps.total(self.crossing[stop] - self.crossing[first])

    def shared_bytes(self, first: int, stop: int) -> int:
        """Bytes that cross both cuts."""
        return self.steps.total(self.crossing[stop] & self.crossing[first])

    def needed(self, wanted: Iterable[int], available: Container[int]) -> list[int]:
        """Forward steps that make the wanted values from those available."""
        return self.steps.missing(wanted, _Either(available, self.fixed))

    def made(self, first: int, stop: int) -> Iterator[int]:
        """Droppable values of units [first, stop), in order."""
        for step in range(self.units[first].start, self.units[stop - 1].stop):
            for value in self.steps.outputs[step]:
                if value in self.droppable:
                    yield value

    def region(self, first: int, stop: int) -> range:
        """Backward steps of units [first, stop)."""
        return range(self.regions[stop - 1].start, self.regions[first].stop)

    def lazily(self, region: Iterable[int], available: set[int]) -> list[int]:
        """Backward steps, each after what it needs and is not available; notes what is made."""
        sequence: list[int] = []
        inputs, outputs, droppable = self.steps.inputs, self.steps.outputs, self.droppable
        for step in region:
            lost = [v for v in inputs[step] if v in droppable and v not in available]
            if lost:
                # As late as can be, and then it stays: its later readers in the region find it.
                again = self.needed(lost, available)
                sequence += again
                for repeated in again:
                    available.update(outputs[repeated])
            sequence.append(step)
        return sequence

    def advance(self, first: int, stop: int) -> tuple[int, float]:
        """Peak and cost of running units [first, stop) anew, keeping what crosses behind them.

        The peak counts what crosses in front of them.
        """
        after = self.crossing[stop]
        before = self.crossing[first]
        again = self.needed(after, before)
        # What is never dropped counts in `others`, not here.
        counted = self.droppable
        levels = self.steps.profile(again, after, AllBut(counted))
        return max(levels, default=0), self.steps.cost_of(again)

    def forward_peak(self, first: int, stop: int, saved: frozenset[int]) -> int:
        """The most bytes of their own values that units [first, stop) have live."""
        # What comes from other units is counted where those are, so only the span's own counts
        # here.
        own = set(self.made(first, stop))
        forward = range(self.units[first].start, self.units[stop - 1].stop)
        after = (saved | self.crossing[stop]) & own
        return max(self.steps.profile(forward, after, AllBut(own)), default=0)

    def backward(self, first: int, stop: int, saved: frozenset[int]) -> tuple[int, float]:
        """Peak and cost of the repeats of a region, with `saved` and the cut in front available."""
        available = set(saved) | self.crossing[first]
        region = self.region(first, stop)
        sequence = self.lazily(region, available)
        # What earlier units made is counted in front of the span already, for as long as it is
        # kept.
        earlier = {
            value for step in sequence for value in self.steps.inputs[step]
            if self.unit_of.get(value, first) < first
        } | self.crossing[first]  # fmt: skip
        touched = {
            value
            for step in sequence
            for value in (*self.steps.inputs[step], *self.steps.outputs[step])
            if value not in self.droppable
        }
        after = {
            value
            for value in touched
            if value in self.steps.live_out or self.steps.last_use[value] >= region.stop
        }
        # What is not dropped and not touched here is live all through the region: a constant.
        untouched = self.others[first] - self.steps.total(after)
        peak = max(self.steps.profile(sequence, after, earlier), default=0)
        return peak + untouched, self.steps.cost_of(sequence) - self.steps.cost_of(region)

    def options(self, first: int, stop: int) -> list[SpanOption]:
        """Ways to take units [first, stop), measured once for equal spans."""
        # A kept set is noted by places among the span's own values, so that an equal span can read
        # it; peaks are noted less what is live beside the span, which is where equal spans differ.
        key, own, shift = self._shape(first, stop)
        if key not in self._measured:
            number = {value: index for index, value in enumerate(own)}
            self._measured[key] = [
                (tuple(sorted(number[value] for value in option.saved)), option)
                for option in self._options(first, stop)
            ]
        return [
            SpanOption(
                frozenset(own[index] for index in saved),
                option.saved_bytes,
                option.forward_peak,
                option.region_peak + shift,
                option.forward_cost,
                option.recompute_cost,
            )
            for saved, option in self._measured[key]
        ]

    def _options(self, first: int, stop: int) -> list[SpanOption]:
        own = list(self.made(first, stop))
        leaving = self.crossing[stop] - self.crossing[first]
        forward = range(self.units[first].start, self.units[stop - 1].stop)
        # What crosses behind the span is kept whatever the option, and what is not droppable
        # anyway: neither is a choice.
        made = {value for step in forward for value in self.steps.outputs[step]}
        choice = Choice(
            self.steps, forward, self.wanted.intersection(own), leaving | made - set(own)
        )
        shift = self.others[first]
        found: list[SpanOption] = []
        # A cut takes longer the longer the span is, so long spans have fewer.
        for keep_set in choice.hull(max(FEW, MOST // (stop - first))):
            saved = keep_set.values | leaving
            peak, cost = self.backward(first, stop, saved)
            again = self.needed(saved, self.crossing[first])
            found.append(
                SpanOption(
                    keep_set.values,
                    self.steps.total(saved),
                    self.forward_peak(first, stop, keep_set.values),
                    peak - shift,
                    self.steps.cost_of(again),
                    cost,
                )
            )
        return found

    def _shape(self, first: int, stop: int) -> tuple[object, list[int], int]:
        """What decides the options of a span, its own values in order, and bytes beside it."""
        steps = self.steps
        own = list(self.made(first, stop))
        numbers = {value: index for index, value in enumerate(own)}
        forward = range(self.units[first].start, self.units[stop - 1].stop)
        region = self.region(first, stop)
        described: list[object] = [len(forward), len(region)]
        for step in (*forward, *region):
            coded = []
            for value in (*steps.inputs[step], *steps.outputs[step]):
                if value not in numbers and value in self.droppable:
                    # Another unit's: it is there, and counted there.
                    coded.append(-1)
                    continue
                if value not in numbers:
                    # Numbered at its first appearance, so that names do not matter; whether it
                    # outlives the region decides what is live at its end.
                    numbers[value] = len(numbers)
                    coded.append(-2 - (steps.last_use[value] >= region.stop))
                coded += (numbers[value], steps.bytes[value])
            described.append((steps.cost[step], steps.workspace[step], tuple(coded)))
        described.append(tuple(sorted(numbers.get(v, -1) for v in self.crossing[stop])))
        return tuple(described), own, self.others[first]


class _Either:
    """A container of what stands in one container or in the other."""

    def __init__(self, one: Container[int], other: Container[int]) -> None:
        self.one, self.other = one, other

    def __contains__(self, value: object) -> bool:
        return value in self.one or value in self.other
