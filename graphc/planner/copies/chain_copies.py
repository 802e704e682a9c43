"""The dynamic program of a chain with three choices for a value: keep, recompute, or copy.

It extends the first pass of chain_dp.py by the backlog of the link, as POFO does (Beaumont,
Eyraud-Dubois and Shilova, "Efficient Combination of Rematerialization and Offloading for Training
DNNs", NeurIPS 2021). The program goes through the forward pass from unit to unit. A state is the
cut before a unit with

    kept      the bytes that stay on the device until their region of the backward pass
    leaving   the bytes that the link has still to copy to the host when the unit starts
    due       the bytes that it must have copied back when the unit's region ends, of values for the
              regions after it

and with the extra seconds so far, of recomputation and waits. From a state there are the moves of
a first pass. Take: run a span with a saving option. Split: run to a cut, and rerun these units
within the free bytes later. What a move saves may stay, or leave for the host: the values inside,
and apart from them those that cross the cut after it. The latter are needed by the next move, so
they leave after it and are back before its regions.

The model of the link is that of POFO: it frees and takes bytes at a constant rate in both
directions, and where the bytes do not suffice, computation waits. The backward pass mirrors the
forward pass, so `due` falls by what the link copies during the regions after a unit. During a rerun
of units, 1, 1/2 or none of the due bytes have a place beside it. States have exact numbers, and of
those in one cell of a grid the fastest is continued, if no state of a lower cell is as fast.

Whole values do not move at a constant rate, and spans have bytes beside their values. So this
yields several schedules, each with values to copy. `OffloadSearch` places the copies, measures the
seconds and improves the best one. Moves of POFO are all among these; saving options, spans of
several units and separate choices for what crosses a cut are not among POFO's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from graphc.planner.copies.chain_states import (
    CROSSES,
    LAST,
    LEVEL,
    MOVE,
    ON_HOST,
    PARENT,
    SECONDS,
    Limits,
    Moves,
    Tables,
    search,
)
from graphc.planner.host_link import HostLink
from graphc.planner.recompute.chain import SpanOption
from graphc.planner.recompute.chain_dp import Action, Reruns, Spans, Split, Take
from graphc.planner.recompute.emission import emit
from graphc.planner.recompute.solver import Solver

FREE = (1.0, 0.9, 1.05, 0.95)
"""Free bytes of the program, as multiples of the real ones. With fewer, whole values leave in time.
With more, saving options that round up are found; further copies bring them within the budget."""

CELLS, MOST = 24, 960
"""Number of cells in each direction, and of cells times units, which limits it for long chains."""

MEASURED, EFFORT = 40, 20_000
"""Number of schedules that each program yields, and its product with the number of steps, which
limits it for long chains."""

Joints = Callable[[float], Iterator[tuple[Sequence[int], frozenset[int]]]]
"""Yields sequences, each with the values to copy, that should take less than some extra seconds."""


@dataclass(frozen=True, slots=True)
class Joint:
    """A sequence of the steps of a run with the values that leave for the host in its forward
    pass, and the extra seconds that the program expects."""

    sequence: list[int]
    values: frozenset[int]
    seconds: float


class ChainCopies:
    """The program for one chain. Values in `resident` never leave."""

    def __init__(
        self, spans: Spans, reruns: Reruns, link: HostLink, resident: Collection[int]
    ) -> None:
        self.spans, self.reruns, self.link = spans, reruns, link
        self.chain, self.resident = spans.chain, resident
        self.takes: list[tuple[int, int, SpanOption]] = [
            (first, stop, option)
            for first, options in enumerate(spans.options)
            for stop, option in options
        ]
        count = len(self.chain)
        self.crossing = [
            frozenset(
                value
                for value in self.chain.crossing[cut]
                - self.chain.crossing[cut - 1]
                - self.chain.crossing[cut + 1]
                if value not in resident
            )
            for cut in range(1, count)
        ]
        self.crossing.insert(0, frozenset())
        self.moves = self._moves()

    def schedules(self, free: float, seconds: float, cells: int, most: int) -> Iterator[Joint]:
        """Yield up to `most` schedules within `free` bytes of less than `seconds` extra seconds,
        the fastest first. States have `cells` cells in each direction."""
        limits = Limits(free, self.link.to_host, self.link.to_device, seconds, cells)
        found = search(self.moves, limits)
        last = np.flatnonzero(found.moves[:, CROSSES] == LAST)
        order = np.argsort(found.amounts[last, SECONDS], kind="stable")
        for row in last[order[:most]]:
            yield self._joint(found, int(row))

    def _joint(self, found: Tables, row: int) -> Joint:
        seconds = float(found.amounts[row, SECONDS])
        path = []
        while row > 0:
            at = found.moves[row]
            path.append((int(at[MOVE]), int(at[ON_HOST]), int(at[LEVEL]), int(at[CROSSES])))
            row = int(at[PARENT])
        actions: list[Action] = []
        reruns: list[tuple[int, int, int]] = []
        values: set[int] = set()
        first = 0
        for move, on_host, level, crosses in reversed(path):
            if move >= 0:
                _, stop, option = self.takes[move]
                actions.append(Take(first, stop, option))
                if on_host:
                    values |= self._inner(stop, option) - set(self.resident)
            else:
                stop = -1 - move
                actions.append(Split(first, stop))
                reruns.append((first, stop - 1, level))
            if crosses == 1:
                values |= self.crossing[stop]
            first = stop
        for rerun in reversed(reruns):
            actions += self.reruns.actions(*rerun)
        return Joint(emit(self.chain, actions), frozenset(values), seconds)

    def _inner(self, stop: int, option: SpanOption) -> frozenset[int]:
        return option.saved - self.chain.crossing[stop]

    def _moves(self) -> Moves:
        chain, spans, steps = self.chain, self.spans, self.chain.steps
        count = len(chain)
        forward = [steps.cost_of(unit) for unit in chain.units]
        region = [steps.cost_of(region) for region in chain.regions]
        first_take = np.searchsorted([first for first, _, _ in self.takes], range(count + 1))
        undroppable = chain.undroppable[-1]
        rows = []
        for first, stop, option in self.takes:
            inner = self._inner(stop, option)
            leaves = steps.total(value for value in inner if value not in self.resident)
            new = chain.new_bytes(first, stop) if stop < count else 0
            rows.append(
                (
                    steps.total(inner) - leaves,
                    leaves,
                    new,
                    option.forward_peak + undroppable,
                    option.region_peak,
                    sum(forward[first:stop]),
                    sum(region[first:stop]) + option.recompute_cost,
                    option.recompute_cost,
                )
            )
        wait = np.full((count, count), 0.0)
        times, backs = np.zeros((count, count)), np.zeros((count, count))
        need = spans.need.astype(np.float64) + undroppable
        for first in range(count):
            most, now, back = 0.0, 0.0, 0.0
            for cut in range(first + 1, count):
                most = max(most, need[first, cut] - now * self.link.to_host)
                now += forward[cut - 1]
                back += region[cut - 1]
                wait[first, cut], times[first, cut], backs[first, cut] = most, now, back
        columns = np.array(rows, np.float64).T.copy()
        stays, leaves, crossing, forward_peak, region_peak, ahead, back_again, extra = columns
        return Moves(
            np.asarray(first_take, np.int64),
            np.array([stop for _, stop, _ in self.takes], np.int64),
            stays,
            leaves,
            crossing,
            forward_peak,
            region_peak,
            ahead,
            back_again,
            extra,
            np.array([steps.total(values) for values in self.crossing], np.float64),
            need,
            wait,
            spans.crossing_bytes.astype(np.float64),
            times,
            backs,
            self.reruns.table.astype(np.float64) * spans.scale,
            float(self.reruns.scale.bytes),
        )


def joint_schedules(
    solver: Solver, link: HostLink, capacity: int, resident: Collection[int]
) -> list[Joints]:
    """Return the programs of a problem for several numbers of free bytes; none if the problem has
    several runs, or none."""
    if len(solver.spans) != 1:
        return []
    spans = solver.spans[0]
    program = ChainCopies(spans, solver.reruns(capacity)[0], link, resident)
    cells = min(CELLS, max(1, MOST // len(spans.chain)))
    measured = min(MEASURED, max(1, EFFORT // len(solver.problem)))

    def schedules(part: float, seconds: float) -> Iterator[tuple[Sequence[int], frozenset[int]]]:
        free = part * (capacity - solver.problem.fixed_bytes)
        for joint in program.schedules(free, seconds, cells, measured):
            yield solver.joined([joint.sequence]), joint.values

    return [partial(schedules, part) for part in FREE]
