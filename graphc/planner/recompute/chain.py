"""A run as a chain of units between narrow cuts, with the options of each span of units.

The dynamic program of chain_dp.py needs a chain, but a forward pass is a graph. The pass is cut
where it is narrow. A cut is a position in the forward pass. Its crossing values are all that later
steps need of earlier ones to recompute what gradients use. Cuts are positions that one value
crosses, or that no more bytes cross than any of the 8 positions on either side. A unit is the
stretch between two cuts. The backward steps are divided into one region per unit. The region of a
unit ends at the first step that uses a value from before the unit's first cut. With units u(0),
..., u(n - 1) and regions r(k):

    forward pass   u(0) | u(1) | ... | u(n - 1)   `crossing[k]` crosses the cut before u(k)
    backward pass  r(n - 1), ..., r(1), r(0)      `undroppable[k]` bytes stay after r(k)

r(k) extends to the last use of u(k)'s values, and further while its steps use nothing from before
u(k) but `crossing[k]`. A value that crosses several cuts, such as a skip connection, is in several
`crossing`s. A span counts only the values that are new at its end, so each is counted once.

For a span of units, min_cut.py gives the values to save for its region at various prices. Walks
over the span's steps (`Problem.profile`) give the peaks of each option. They cost a few tens of
maximum flows over the span's steps. Equal spans, compared by numbers and not by names, are measured
once. So a deep network of equal layers costs only as much as its distinct layers.

Chains of more than 340 units (80 if most cuts are several values wide) are thinned out, since
chain_dp.py takes cubic time.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

from graphc.planner.problem import AllBut, Problem, Run
from graphc.planner.recompute.min_cut import Choice
from graphc.planner.recompute.narrow import crossings, narrow, thinned

SPANS = (1, 2, 4, 8)
"""Lengths of spans, in units. Within a span, values that cross its inner cuts can be dropped."""

MOST, FEW = 8, 4
"""Maximum number of options of a span of one unit, and the least such maximum of longer spans."""

MOST_SPANNED = 400_000
"""Number of steps, times the width of spans, above which spans of this width are skipped."""


@dataclass(frozen=True, slots=True)
class SpanOption:
    """A choice of values to save from the forward steps of a span, with its bytes and costs.

    `saved_bytes` counts the saved values and those that cross the cut after the span.
    `forward_cost` is the cost of rerunning the span, and `recompute_cost` the cost of recomputation
    in its region. Peaks, in bytes, count the values that the span produces; `region_peak` also
    counts all undroppable values.
    """

    saved: frozenset[int]
    saved_bytes: int
    forward_peak: int
    region_peak: int
    forward_cost: float
    recompute_cost: float


class Chain:
    """The units of one run, their cuts and regions, and the options of each span.

    `crossing[k]` holds the values that cross the cut before unit k. `undroppable[k]` has the bytes
    of undroppable values that are live after the region of unit k. Its last entry is for the
    forward/backward boundary.
    """

    def __init__(self, steps: Problem, run: Run) -> None:
        self.steps, self.run = steps, run
        self.forward = range(run.start, run.boundary)
        self.droppable = steps.droppable(run)
        self._find_units()
        # Pinned values change where the pass is narrow, so find the units again.
        if retained := self._long_used():
            self.droppable -= retained
            self._find_units()
        self._find_regions()
        self.undroppable = self._undroppable()
        self._measured: dict[object, list[tuple[tuple[int, ...], SpanOption]]] = {}

    def __len__(self) -> int:
        return len(self.units)

    def _find_units(self) -> None:
        """Divide the forward steps at the cuts."""
        self.fixed = AllBut(self.droppable)
        self.required = {
            value
            for step in range(self.run.boundary, self.run.stop)
            for value in self.steps.inputs[step]
            if value in self.droppable
        }
        self.useful = self.steps.missing(self.required, self.fixed)
        # The last position, after all useful steps, is left out, since the boundary is always a
        # cut.
        widths = [(size, len(crossing)) for _, size, crossing in self._crossings()][:-1]
        chosen = set(thinned(narrow(widths), widths))
        cuts = [
            # Copied, because the walk goes on with the same dict.
            (step, frozenset(crossing))
            for index, (step, _, crossing) in enumerate(self._crossings())
            if index in chosen
        ]
        # The boundary is a cut: of the last step, the first region reads only its outputs.
        for step in self.useful[-1:]:
            cuts.append((step, frozenset(self.steps.outputs[step]) & self.required))
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

    def _long_used(self) -> set[int]:
        """Return small values that are used long after the other values of their unit, to pin them.
        Otherwise a scale that the whole backward pass reads would extend its unit's region over
        that pass.
        """
        far = 3 * (self.run.stop - self.run.boundary) // len(self.units)
        found: set[int] = set()
        for first in range(len(self.units)):
            made = [value for value in self.made(first, first + 1) if value in self.required]
            made.sort(key=lambda value: -self.steps.last_use[value])
            # Latest use first, up to a hundredth of the unit's bytes, which are cheap to keep.
            spare = self.steps.total(made) // 100
            for value, following in pairwise(made):
                spare -= self.steps.bytes[value]
                if spare < 0:
                    break
                # A gap in last uses tells stragglers from a unit that is used over a long time.
                if self.steps.last_use[value] - self.steps.last_use[following] > far:
                    found.update(made[: made.index(following)])
        return found

    def _find_regions(self) -> None:
        """Assign backward steps to units: each region ends before a step that reads from before the
        unit."""
        ends = [self.run.boundary] * len(self.units)
        for value, index in self.unit_of.items():
            ends[index] = max(ends[index], self.steps.last_use[value] + 1)
        self.regions = [range(0)] * len(self.units)
        start = self.run.boundary
        # The last unit's gradients come first. Long regions delay recomputation of earlier units.
        for index in range(len(self.units) - 1, -1, -1):
            stop = max(start, ends[index])
            while stop < self.run.stop and all(
                self.unit_of.get(value, index) >= index or value in self.crossing[index]
                for value in self.steps.inputs[stop]
            ):
                stop += 1
            self.regions[index] = range(start, stop)
            start = stop
        # Nothing is before the first unit, so its region takes the rest of the run.
        self.regions[0] = range(self.regions[0].start, self.run.stop)

    def _undroppable(self) -> list[int]:
        """Return the bytes of undroppable values that are live after each region, and at the
        boundary."""
        steps = self.steps
        change = [0] * (len(steps) + 2)
        for value, size in enumerate(steps.bytes):
            if value not in self.droppable:
                end = len(steps) if value in steps.live_out else steps.last_use[value]
                if end > steps.producer[value]:
                    # Live at the positions before steps from after its producer to its last use.
                    change[steps.producer[value] + 1] += size
                    change[end + 1] -= size
        live = list(accumulate(change))
        return [*(live[region.stop] for region in self.regions), live[self.run.boundary]]

    def new_bytes(self, first: int, stop: int) -> int:
        """Return the bytes that cross the cut before unit `stop`, but not the cut before unit
        `first`."""
        return self.steps.total(self.crossing[stop] - self.crossing[first])

    def shared_bytes(self, first: int, stop: int) -> int:
        """Return the bytes that cross both the cut before unit `first` and the cut before unit
        `stop`."""
        return self.steps.total(self.crossing[stop] & self.crossing[first])

    def needed(self, required: Iterable[int], available: Container[int]) -> list[int]:
        """Return the forward steps that compute the `required` values from the `available` ones."""
        return self.steps.missing(required, _Either(available, self.fixed))

    def made(self, first: int, stop: int) -> Iterator[int]:
        """Yield the droppable values that units `[first, stop)` produce, in order."""
        for step in range(self.units[first].start, self.units[stop - 1].stop):
            for value in self.steps.outputs[step]:
                if value in self.droppable:
                    yield value

    def region(self, first: int, stop: int) -> range:
        """Return the backward steps in the regions of units `[first, stop)`."""
        return range(self.regions[stop - 1].start, self.regions[first].stop)

    def lazy_sequence(self, region: Iterable[int], available: set[int]) -> list[int]:
        """Return the steps of a region, each after the recomputation it needs. Adds the recomputed
        values to `available`."""
        sequence: list[int] = []
        inputs, outputs, droppable = self.steps.inputs, self.steps.outputs, self.droppable
        for step in region:
            lost = [v for v in inputs[step] if v in droppable and v not in available]
            if lost:
                # Recomputed as late as possible, then live until the last use in the region.
                recomputed = self.needed(lost, available)
                sequence += recomputed
                for repeated in recomputed:
                    available.update(outputs[repeated])
            sequence.append(step)
        return sequence

    def advance(self, first: int, stop: int) -> tuple[int, float]:
        """Return peak bytes and cost of rerunning units `[first, stop)`. Only values that cross the
        cut after these units are saved. The peak counts the values that cross the cut before them.
        """
        after = self.crossing[stop]
        before = self.crossing[first]
        recomputed = self.needed(after, before)
        # Values that are never dropped count in `undroppable`, not here.
        counted = self.droppable
        levels = self.steps.profile(recomputed, after, AllBut(counted))
        return max(levels, default=0), self.steps.cost_of(recomputed)

    def forward_peak(self, first: int, stop: int, saved: frozenset[int]) -> int:
        """Return the peak bytes of the values that units `[first, stop)` produce, while these units
        run. Values in `saved` and those that cross the cut after the units stay live to the end."""
        # Values of other units are counted with those units.
        own = set(self.made(first, stop))
        forward = range(self.units[first].start, self.units[stop - 1].stop)
        after = (saved | self.crossing[stop]) & own
        return max(self.steps.profile(forward, after, AllBut(own)), default=0)

    def backward(self, first: int, stop: int, saved: frozenset[int]) -> tuple[int, float]:
        """Return peak bytes and recompute cost of the region of units `[first, stop)`. Initially,
        the values in `saved` and the values that cross the cut before the units are available."""
        available = set(saved) | self.crossing[first]
        region = self.region(first, stop)
        sequence = self.lazy_sequence(region, available)
        # Values of earlier units are counted with those units, for as long as they are live.
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
        # Values neither dropped nor touched here are live throughout the region: a constant.
        untouched = self.undroppable[first] - self.steps.total(after)
        peak = max(self.steps.profile(sequence, after, earlier), default=0)
        return peak + untouched, self.steps.cost_of(sequence) - self.steps.cost_of(region)

    def options(self, first: int, stop: int) -> list[SpanOption]:
        """Return the saving options of units `[first, stop)`; options of equal spans are computed
        once."""
        # Saved sets are stored as indices into the span's own values, so that equal spans can share
        # them. Peaks are stored less the bytes live beside the span, in which equal spans differ.
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
        # Values that cross the cut after the span are saved in every option. Values that are not
        # droppable are live anyway. Neither is a choice.
        made = {value for step in forward for value in self.steps.outputs[step]}
        choice = Choice(
            self.steps, forward, self.required.intersection(own), leaving | made - set(own)
        )
        shift = self.undroppable[first]
        found: list[SpanOption] = []
        # Cuts of longer spans take longer, so long spans get fewer options.
        for keep_set in choice.hull(max(FEW, MOST // (stop - first))):
            saved = keep_set.values | leaving
            peak, cost = self.backward(first, stop, saved)
            recomputed = self.needed(saved, self.crossing[first])
            found.append(
                SpanOption(
                    keep_set.values,
                    self.steps.total(saved),
                    self.forward_peak(first, stop, keep_set.values),
                    peak - shift,
                    self.steps.cost_of(recomputed),
                    cost,
                )
            )
        return found

    def _shape(self, first: int, stop: int) -> tuple[object, list[int], int]:
        """Return a key that equal spans share, the droppable values of the span, and undroppable
        bytes."""
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
                    # A value of another unit is available, and counted there.
                    coded.append(-1)
                    continue
                if value not in numbers:
                    # Numbered by first occurrence, so that equal spans match. Whether the value
                    # outlives the region decides what is live at its end.
                    numbers[value] = len(numbers)
                    coded.append(-2 - (steps.last_use[value] >= region.stop))
                coded += (numbers[value], steps.bytes[value])
            described.append((steps.cost[step], steps.workspace[step], tuple(coded)))
        described.append(tuple(sorted(numbers.get(v, -1) for v in self.crossing[stop])))
        return tuple(described), own, self.undroppable[first]


class _Either:
    """The union of two containers, as a container."""

    def __init__(self, one: Container[int], other: Container[int]) -> None:
        self.one, self.other = one, other

    def __contains__(self, value: object) -> bool:
        return value in self.one or value in self.other
