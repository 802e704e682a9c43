"""Local search on a sequence: what is above the limit is dropped, and computed again when read.

This is polish.py the other way round. A value is live on stretches: from a position a, which makes
or reads it, to the next that reads it, b. Instead it may be made again at a place p in (a, b], by
its maker behind the makers of whatever that reads and is not live at p: a chain of repeats. With

    excess(q) = what is above the limit during q
    gain      = sum over a < q < p of min(bytes of the value, excess(q))
    score     = cost of those steps of the chain that do not run at p anyway / gain

stretches are dropped greedily, those of the least score first. p is b, or an earlier place at which
the dearest step of the chain runs for another value, so that what one product makes is made
again once. A chain must itself fit at p, and what it reads is not dropped before it.

Scores only grow as more is dropped, but for those of values whose maker runs again by then. So a
heap of lower bounds is enough: a score is worked out when it comes up, and again for siblings. Once
half of all excess is gone, repeats are put into the sequence and it is measured anew, for a chain
brings bytes of its own. Rounds end when nothing is above the limit, nothing helps, or scores
have been worked out as often as EFFORT says; a round takes O(n log n) for a sequence of n steps,
beside chains.

Chains know no cuts, so this serves where a forward pass is nowhere narrow: skip connections, layers
over time. blocks.py and chain.py see far there, but count what a region makes again as kept to its
end; from one of their sequences for more bytes, what is left to drop is cheap.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphc.planning.steps import Steps

IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]

ROUNDS = 40
"""Most rounds; each has half of the excess of the one before."""

LONGEST = 3
"""Times as many steps as there are: a sequence that grows longer leads nowhere."""

EFFORT, AT_LEAST = 6, 4000
"""Scores that are worked out for each step, and for few steps at least, before it gives up."""

LONGEST_CHAIN = 80
"""Steps that are run again for one value, at most."""

SIBLINGS = 64
"""Positions within which values count as siblings of one that is made again."""

SMALL = 16
"""Times as large as what is made once and died, such as the state of a generator of random bits, a
value is that a chain may read it for: to keep it on is cheap."""

OVERHEAD = 0.01
"""What a repeat costs beside its own cost, as a part of the mean step: a launch is not free."""

MEMORY = 0.5
"""Part of a chain's cost below which later rounds do not look for one: neighbours change it."""

PROGRESS, PATIENCE = 0.98, 3
"""So many rounds, one after another, that leave more than this part of the excess lead nowhere."""


def shrink(steps: Steps, sequence: Sequence[int], limit: int) -> list[int] | None:
    """A sequence with more repeats whose peak is at most `limit`, or None where none is found."""
    if not sequence:
        return [] if steps.peak(()) <= limit else None
    network = _Network(steps)
    found, stalled, last = list(sequence), 0, math.inf
    for _ in range(ROUNDS):
        measured = _Round(network, found, limit)
        excess = int(measured.excess.sum())
        if not excess:
            return found
        stalled = stalled + 1 if excess > PROGRESS * last else 0
        last = excess
        if stalled == PATIENCE or network.left <= 0 or not measured.drop_half():
            return None
        found = measured.rewritten()
        if len(found) > LONGEST * len(steps):
            return None
    return found if steps.peak(found) <= limit else None


class _Network:
    """What rounds ask of the steps, whatever the sequence."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        extra = OVERHEAD * steps.cost_of(range(len(steps))) / max(len(steps), 1)
        self.cost = [cost + extra for cost in steps.cost]
        self.droppable = [False] * len(steps.bytes)
        """By value: whether its maker may run again for it, and makes nothing that is held."""
        for run in steps.runs:
            for value in steps.droppable(run):
                made = steps.outputs[steps.maker[value]]
                self.droppable[value] = steps.held.isdisjoint(made)
        self.bytes, self.maker = np.array(steps.bytes, np.int64), np.array(steps.maker, np.int64)
        self.may_drop = np.array(self.droppable, bool) & (self.bytes > 0)
        self.left = max(EFFORT * len(steps), AT_LEAST)
        """Scores that may still be worked out."""
        self.known: dict[tuple[int, int], float] = {}
        """By (value, step that reads it next) what a chain for it cost, in part, or no chain."""
        self._reads, self._made = _Ragged(steps.inputs), _Ragged(steps.outputs)

    def events(self, sequence: Sequence[int]) -> tuple[IntArray, IntArray, BoolArray]:
        """(value, position, whether made) of all reads and makes, by value and position; what is
        held is read behind the last."""
        order = np.array(sequence, np.int64)
        read, read_at = self._reads.of(order)
        made, made_at = self._made.of(order)
        held = np.array(sorted(self.steps.held), np.int64)
        value = np.concatenate([read, made, held])
        position = np.concatenate([read_at, made_at, np.full(len(held), len(order))])
        makes = np.zeros(len(value), bool)
        makes[len(read) : len(read) + len(made)] = True
        sort = np.lexsort((makes, position, value))
        return value[sort], position[sort], makes[sort]


class _Ragged:
    """Rows of different lengths, one behind the other."""

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self.flat = np.array([each for row in rows for each in row], np.int64)
        self.length = np.array([len(row) for row in rows], np.int64)
        self.start = np.cumsum(self.length) - self.length

    def of(self, chosen: IntArray) -> tuple[IntArray, IntArray]:
        """What stands in the chosen rows, and at which place of `chosen` each of it."""
        length = self.length[chosen]
        place = np.repeat(np.arange(len(chosen)), length)
        first = np.repeat(self.start[chosen] - (np.cumsum(length) - length), length)
        return self.flat[first + np.arange(len(place))], place


class _Round:
    """One sequence, measured; stretches that are dropped from it, and what runs again for them."""

    def __init__(self, network: _Network, sequence: list[int], limit: int) -> None:
        self.network, self.steps, self.sequence = network, network.steps, sequence
        self.limit, self.cost, self.droppable = limit, network.cost, network.droppable
        levels = np.array(self.steps.profile(sequence, self.steps.held), np.int64)
        self.excess = np.maximum(levels + self.steps.fixed_bytes - limit, 0)
        if self.excess.any():
            self._find_events()
        self.dropped: dict[tuple[int, int], int] = {}
        """By (value, start of the stretch) the place where it is made again."""
        self.again: dict[int, set[int]] = {}
        """By place the steps that run again before the one that stands there."""
        self.places: dict[int, set[int]] = {}
        """By step the places where it runs again, from this round."""
        self.needed: dict[tuple[int, int], int] = {}
        """By (value, start of the stretch) the first place of a chain that reads it there."""

    def _find_events(self) -> None:
        """Where values are made and read, their stretches, and the bytes behind each position."""
        network, last = self.network, len(self.sequence)
        value, position, makes = network.events(self.sequence)
        self.at, self.makes = position.tolist(), makes.tolist()
        ends = np.searchsorted(value, np.arange(len(network.bytes) + 1))
        self.first = ends.tolist()  # where the events of each value begin
        # A stretch ends with a read; one of what comes from outside begins in front of all.
        begins = np.empty(len(value), bool)
        begins[:1] = True
        begins[1:] = value[1:] != value[:-1]
        start = np.where(begins, -1, np.roll(position, 1))
        is_stretch = ~makes & (~begins | (network.maker[value] < 0))
        value, start, end = value[is_stretch], start[is_stretch], position[is_stretch]
        change = np.zeros(last + 3, np.int64)
        np.add.at(change, start + 1, network.bytes[value])
        np.subtract.at(change, end + 1, network.bytes[value])
        # `change` is one place further than positions, for what is live before the first.
        self.behind = np.cumsum(change)[1:] + self.steps.fixed_bytes
        may = network.may_drop[value] & (end < last)
        self.stretches = value[may], start[may], end[may]

    def drop_half(self) -> bool:
        """Drop stretches of the least scores until half of the excess is gone; False if none is."""
        heap = self._bounds()
        siblings: dict[int, list[tuple[int, int, int]]] = {}
        for _, value, start, end in heap:
            for operand in self.steps.inputs[self.steps.maker[value]]:
                siblings.setdefault(operand, []).append((value, start, end))
        heapq.heapify(heap)
        enough = int(self.excess.sum()) // 2
        while heap and self.network.left > 0 and int(self.excess.sum()) > enough:
            bound, value, start, end = heapq.heappop(heap)
            if (value, start) in self.dropped:
                continue
            best = self._best(value, start, end)
            if best is None:
                continue
            score, place, chain = best
            if heap and score > max(bound, heap[0][0]) * (1 + 1e-9):
                heapq.heappush(heap, (score, value, start, end))
            elif self._fits(chain, place, value):
                self._drop(value, start, place, chain)
                for operand in self.steps.inputs[self.steps.maker[value]]:
                    for other in siblings[operand]:
                        if abs(other[2] - end) <= SIBLINGS and other[:2] not in self.dropped:
                            # Its maker may run again by now, and then costs nothing more.
                            found = self._best(*other)
                            if found is not None:
                                heapq.heappush(heap, (found[0], *other))
        return bool(self.dropped)

    def _bounds(self) -> list[tuple[float, int, int, int]]:
        """(no more than its score, value, start, end) of each stretch that covers excess."""
        value, start, end = self.stretches
        total = np.concatenate([[0], np.cumsum(self.excess)])
        above = np.concatenate([[0], np.cumsum(self.excess > 0)])
        count = above[end] - above[start + 1]
        size, most = self.network.bytes[value], total[end] - total[start + 1]
        covers = count > 0
        gain = np.minimum(size * count, most)[covers]
        rows = (value[covers], start[covers], end[covers], gain)
        found: list[tuple[float, int, int, int]] = []
        for one, a, b, most in zip(*(row.tolist() for row in rows), strict=True):
            cost = self.network.known.get((one, self.sequence[b]), self.cost[self.steps.maker[one]])
            if cost < math.inf:
                found.append((cost / most, one, a, b))
        return found

    def _best(self, value: int, start: int, end: int) -> tuple[float, int, set[int]] | None:
        """The least score of a stretch, with its place and its chain."""
        self.network.left -= 1
        chain = self._chain(value, end)
        key = value, self.sequence[end]
        if chain is None:
            self.network.known[key] = math.inf
            return None
        whole = sum(self.cost[step] for step in chain)
        self.network.known[key] = max(self.cost[self.steps.maker[value]], MEMORY * whole)
        dearest = max(chain, key=lambda step: (self.steps.cost[step], step))
        places = {end, *self.places.get(dearest, ())}
        if (before := self._stands_before(dearest, end)) is not None:
            places.add(before + 1)
        until = min(end, self.needed.get((value, start), end))
        best: tuple[float, int, set[int]] | None = None
        for place in sorted(places):
            if not start + 1 < place <= until:
                continue
            found = chain if place == end else self._chain(value, place)
            if found is None:
                continue
            room = np.minimum(self.excess[start + 1 : place], self.steps.bytes[value])
            gain = int(room.sum())
            if gain:
                runs = self.again.get(place, ())
                score = sum(self.cost[step] for step in found if step not in runs) / gain
                if best is None or score < best[0]:
                    best = score, place, found
        return best

    def _live_since(self, value: int, place: int) -> int | None:
        """The start of the stretch on which a value is live at a place, or None if it is not."""
        if self.steps.maker[value] < 0:
            return -1
        first, last = self.first[value], self.first[value + 1]
        index = bisect_left(self.at, place, first, last)
        if not first < index < last or self.makes[index]:
            return None
        start = self.at[index - 1]
        # Made again before this place, it is there; at this place, it is part of what runs there.
        return None if self.dropped.get((value, start), -1) >= place else start

    def _stands_before(self, step: int, place: int) -> int | None:
        """The last position before a place at which a step stands."""
        made = self.steps.outputs[step][0]
        first, last = self.first[made], self.first[made + 1]
        index = bisect_left(self.at, place, first, last) - 1
        while index >= first and not self.makes[index]:
            index -= 1
        return self.at[index] if index >= first else None

    def _chain(self, value: int, place: int) -> set[int] | None:
        """Steps that make a value at a place from what is live; None if that cannot be."""
        found = {self.steps.maker[value]}
        pending = [self.steps.maker[value]]
        while pending:
            for operand in self.steps.inputs[pending.pop()]:
                maker = self.steps.maker[operand]
                if maker in found or self._live_since(operand, place) is not None:
                    continue
                if not self.droppable[operand]:
                    # It stays for the chain, which the next round measures.
                    if self.steps.bytes[operand] * SMALL <= self.steps.bytes[value]:
                        continue
                    return None
                if len(found) >= LONGEST_CHAIN:
                    return None
                found.add(maker)
                pending.append(maker)
        return found

    def _fits(self, chain: Iterable[int], place: int, value: int) -> bool:
        """Whether the steps of a chain may run at a place without raising its level above the
        limit, or above what it is."""
        steps, order = self.steps, sorted(chain)
        last_use = {v: index for index, step in enumerate(order) for v in steps.inputs[step]}
        # The stretch that is to be dropped goes up to this place or over it.
        level = int(self.behind[place - 1]) - steps.bytes[value]
        most = self.limit + int(self.excess[place])  # what is above the limit there goes later
        for index, step in enumerate(order):
            made = steps.outputs[step]
            if level + steps.total(made) + steps.workspace[step] > most:
                return False
            for each in made:
                is_used = each == value or last_use.get(each, -1) > index
                if is_used and (each == value or self._live_since(each, place) is None):
                    level += steps.bytes[each]
            for each in steps.inputs[step]:
                is_own = steps.maker[each] in chain and each != value
                if is_own and last_use[each] == index and self._live_since(each, place) is None:
                    level -= steps.bytes[each]
        return True

    def _drop(self, value: int, start: int, place: int, chain: set[int]) -> None:
        for step in chain:
            for operand in self.steps.inputs[step]:
                since = self._live_since(operand, place)
                if since is not None and self.steps.maker[operand] not in chain:
                    key = (operand, since)
                    self.needed[key] = min(place, self.needed.get(key, place))
        self.dropped[value, start] = place
        self.again.setdefault(place, set()).update(chain)
        for step in chain:
            self.places.setdefault(step, set()).add(place)
        stretch = self.excess[start + 1 : place]
        np.maximum(stretch - self.steps.bytes[value], 0, out=stretch)
        self.behind[start : place - 1] -= self.steps.bytes[value]

    def rewritten(self) -> list[int]:
        """The sequence with the repeats in their places."""
        found: list[int] = []
        for position, step in enumerate(self.sequence):
            found += sorted(self.again.get(position, ()))
            found.append(step)
        return found
