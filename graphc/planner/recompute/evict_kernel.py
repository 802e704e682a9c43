"""The greedy choice of evict.py, compiled: stretches to drop and chains to recompute them.

A stretch is identified by the event that ends it. Events of a value are sorted by position, so the
previous event begins the stretch. Sets of steps are lists, with marks for membership.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from graphc.jit import compiled
from graphc.planner.profile import Booleans, Floats, Integers, StepArrays
from graphc.planner.recompute.excess import Excess, excess_at, gain_of, reduce_excess
from graphc.planner.recompute.repeats import (
    Recomputed,
    enlarged,
    is_recomputed_at,
    none_recomputed,
    record,
)

LONGEST_CHAIN = 80
"""Maximum number of steps recomputed for one value."""

SIBLINGS = 64
"""Maximum distance in positions at which values count as siblings of a recomputed value."""

SMALL = 16
"""A chain may read a dead undroppable operand, such as the state of a random generator, if the
value is this many times larger. Keeping the operand longer is then cheap."""

MEMORY = 0.5
"""Fraction of a chain's cost that is its lower bound in later rounds, as other drops change the
cost."""

OUTSIDE, NOT_LIVE = -1, -2
"""Results of `_begins`: the value has no producer, or it is not live."""

NEVER = 1 << 62
"""A number that is larger than every position."""


class Network(NamedTuple):
    """Arrays of the steps that do not depend on their sequence. `cost` includes the overhead of a
    recomputed step. `known`, which is updated, has an entry per entry of `table.inputs`, that is,
    per value and use. It holds a lower bound on the cost of recomputing the value for that use:
    infinite if no chain can, -1 if none was computed yet.
    """

    table: StepArrays
    cost: Floats
    known: Floats


class Measured(NamedTuple):
    """Measures of a sequence: events by value and position, and bytes by position. `first_event`
    has the index of each value's first event. For each event, `at` is its position and `read` the
    index in `table.inputs` that it reads, or -1 if it produces the value. `excess` has the bytes
    above the limit during each position, `live_after` the bytes live after it. Two arrays are
    indexed by the event that begins a stretch: `dropped` is the place where the value is
    recomputed, or -1; `needed` is the first place of a chain that reads the value. All four are
    updated.
    """

    first_event: Integers
    at: Integers
    makes: Booleans
    read: Integers
    excess: Excess
    live_after: Integers
    dropped: Integers
    needed: Integers


class Stretches(NamedTuple):
    """Stretches that may be dropped: for each its final event, its value and a lower bound of its
    score."""

    end: Integers
    value: Integers
    bound: Floats


class Marks(NamedTuple):
    """Scratch arrays for chains: a step or value is in the current chain if it has the latest
    mark."""

    step: Integers
    value: Integers
    last_use: Integers
    chain: Integers
    other: Integers
    given: Integers
    """An array of one number, the latest mark."""


@compiled
def drop_half(
    network: Network, measured: Measured, stretches: Stretches, capacity: int, effort: int
) -> tuple[int, Integers, Integers]:
    """Drop the stretches of least score until half of the excess bytes are removed. Returns how
    many more scores may be computed, and the recomputed steps with their places.
    """
    table = network.table
    marks = _no_marks(table)
    recomputed = none_recomputed(len(table.cost))
    count = 0
    sibling_first, siblings = _siblings(table, stretches)
    heap = [(stretches.bound[index], index) for index in range(len(stretches.end))]
    heapq.heapify(heap)
    excess = measured.excess.total.sum()
    enough = excess // 2
    while len(heap) > 0 and effort > 0 and excess > enough:
        bound, index = heapq.heappop(heap)
        value, end = stretches.value[index], stretches.end[index]
        if measured.dropped[end - 1] >= 0:
            continue
        score, place = _best(network, measured, recomputed, marks, value, end)
        effort -= 1
        if place < 0:
            continue
        if len(heap) > 0 and score > max(bound, heap[0][0]) * (1 + 1e-9):
            heapq.heappush(heap, (score, index))
            continue
        length = _chain(network, measured, marks, marks.chain, value, place)
        chain = marks.chain[:length]
        if not _fits(table, measured, marks, np.sort(chain), value, place, capacity):
            continue
        if count + length > len(recomputed.step):
            recomputed = enlarged(recomputed)
        count = record(recomputed, count, chain, place)
        excess -= _drop(table, measured, marks, chain, value, end, place)
        producer = table.producer[value]
        for operand in table.inputs[table.first_input[producer] : table.first_input[producer + 1]]:
            for other in siblings[sibling_first[operand] : sibling_first[operand + 1]]:
                other_end = stretches.end[other]
                if (
                    abs(measured.at[other_end] - measured.at[end]) <= SIBLINGS
                    and measured.dropped[other_end - 1] < 0
                ):
                    # Its producer may be recomputed by now, and then costs nothing more.
                    score, place = _best(
                        network, measured, recomputed, marks, stretches.value[other], other_end
                    )
                    effort -= 1
                    if place >= 0:
                        heapq.heappush(heap, (score, other))
    return effort, recomputed.step[:count], recomputed.place[:count]


@compiled
def _no_marks(table: StepArrays) -> Marks:
    return Marks(
        np.zeros(len(table.cost), np.int64),
        np.zeros(len(table.bytes), np.int64),
        np.zeros(len(table.bytes), np.int64),
        np.empty(LONGEST_CHAIN, np.int64),
        np.empty(LONGEST_CHAIN, np.int64),
        np.zeros(1, np.int64),
    )


@compiled
def _siblings(table: StepArrays, stretches: Stretches) -> tuple[Integers, Integers]:
    """Return stretches grouped by the operands that their values' producers read. The first array
    has the start of each operand's group in the second."""
    first = np.zeros(len(table.bytes) + 1, np.int64)
    for value in stretches.value:
        producer = table.producer[value]
        for operand in table.inputs[table.first_input[producer] : table.first_input[producer + 1]]:
            first[operand + 1] += 1
    first = np.cumsum(first)
    found, place = np.empty(first[-1], np.int64), first.copy()
    for index in range(len(stretches.value)):
        producer = table.producer[stretches.value[index]]
        for operand in table.inputs[table.first_input[producer] : table.first_input[producer + 1]]:
            found[place[operand]] = index
            place[operand] += 1
    return first, found


@compiled
def _best(
    network: Network, measured: Measured, recomputed: Recomputed, marks: Marks, value: int, end: int
) -> tuple[float, int]:
    """Return the least score of a stretch and the place of recomputation, or -1 if none is
    possible."""
    table, known = network.table, measured.read[end]
    start, last = measured.at[end - 1], measured.at[end]
    length = _chain(network, measured, marks, marks.chain, value, last)
    if length == 0:
        network.known[known] = np.inf
        return np.inf, -1
    whole, most_expensive = 0.0, -1
    for step in marks.chain[:length]:
        whole += network.cost[step]
        if most_expensive < 0 or (table.cost[step], step) > (
            table.cost[most_expensive],
            most_expensive,
        ):
            most_expensive = step
    network.known[known] = max(network.cost[table.producer[value]], MEMORY * whole)
    until = min(last, measured.needed[end - 1])
    score, place = np.inf, -1
    if last <= until:
        score = _score(network, measured, recomputed, marks.chain[:length], value, start, last)
        place = last if score < np.inf else -1
    # The most expensive step of the chain is free where it runs for another value: right after its
    # last occurrence before the use, and wherever it is recomputed.
    run = recomputed.latest[most_expensive]
    other = _last_run_before(table, measured, most_expensive, last) + 1
    while other >= 0:
        if start + 1 < other <= until and other != last:
            length = _chain(network, measured, marks, marks.other, value, other)
            if length > 0:
                found = _score(
                    network, measured, recomputed, marks.other[:length], value, start, other
                )
                if found < score or (found == score and found < np.inf and other < place):
                    score, place = found, other
        other = -1
        if run >= 0:
            other, run = recomputed.place[run], recomputed.previous[run]
    return score, place


@compiled
def _score(
    network: Network,
    measured: Measured,
    recomputed: Recomputed,
    chain: Integers,
    value: int,
    start: int,
    place: int,
) -> float:
    """Return the score of a chain: cost of the steps that it adds at a place, per byte of excess
    removed."""
    gain = gain_of(measured.excess, start + 1, place, network.table.bytes[value])
    if gain == 0:
        return np.inf
    cost = 0.0
    for step in chain:
        if not is_recomputed_at(recomputed, step, place):
            cost += network.cost[step]
    return cost / gain


@compiled
def _begins(table: StepArrays, measured: Measured, value: int, place: int) -> int:
    """Return the event that begins the stretch of a value over a place, or `OUTSIDE` or
    `NOT_LIVE`."""
    if table.producer[value] < 0:
        return OUTSIDE
    first, last = measured.first_event[value], measured.first_event[value + 1]
    index = first + np.searchsorted(measured.at[first:last], place)
    if not first < index < last or measured.makes[index]:
        return NOT_LIVE
    # Recomputed before this place, it is live; recomputed at this place, it is part of that chain.
    return NOT_LIVE if measured.dropped[index - 1] >= place else index - 1


@compiled
def _last_run_before(table: StepArrays, measured: Measured, step: int, place: int) -> int:
    """Return the last position before a place at which a step with an output occurs."""
    made = table.outputs[table.first_output[step]]
    first, last = measured.first_event[made], measured.first_event[made + 1]
    index = first + np.searchsorted(measured.at[first:last], place) - 1
    while not measured.makes[index]:
        index -= 1
    return int(measured.at[index])


@compiled
def _chain(
    network: Network, measured: Measured, marks: Marks, chain: Integers, value: int, place: int
) -> int:
    """Write to `chain` the steps that recompute a value at a place from the values live there.
    Returns the number of steps, or 0 if recomputation there is not allowed.
    """
    table = network.table
    marks.given[0] += 1
    mark, size = marks.given[0], table.bytes[value]
    chain[0], length, done = table.producer[value], 1, 0
    marks.step[chain[0]] = mark
    while done < length:
        step = chain[done]
        done += 1
        for operand in table.inputs[table.first_input[step] : table.first_input[step + 1]]:
            producer = table.producer[operand]
            if producer < 0 or marks.step[producer] == mark:
                continue
            if _begins(table, measured, operand, place) != NOT_LIVE:
                continue
            if not table.is_droppable[operand]:
                # Its live range grows for the chain, which the next round measures.
                if table.bytes[operand] <= size // SMALL:
                    continue
                return 0
            if length == LONGEST_CHAIN:
                return 0
            marks.step[producer] = mark
            chain[length] = producer
            length += 1
    return length


@compiled
def _fits(
    table: StepArrays,
    measured: Measured,
    marks: Marks,
    order: Integers,
    value: int,
    place: int,
    capacity: int,
) -> bool:
    """Return whether a chain fits at a place, within the capacity plus the place's present
    excess."""
    marks.given[0] += 1
    mark = marks.given[0]
    for index in range(len(order)):
        step = order[index]
        marks.step[step] = mark
        for each in table.inputs[table.first_input[step] : table.first_input[step + 1]]:
            marks.value[each], marks.last_use[each] = mark, index
    # The stretch to be dropped reaches or crosses this place.
    level = measured.live_after[place - 1] - table.bytes[value]
    most = capacity + excess_at(measured.excess, place)  # later drops remove the present excess
    for index in range(len(order)):
        step = order[index]
        made = table.outputs[table.first_output[step] : table.first_output[step + 1]]
        during = level + table.workspace[step]
        for each in made:
            during += table.bytes[each]
        if during > most:
            return False
        for each in made:
            is_used = marks.value[each] == mark and marks.last_use[each] > index
            if each == value or (is_used and _begins(table, measured, each, place) == NOT_LIVE):
                level += table.bytes[each]
        for each in table.inputs[table.first_input[step] : table.first_input[step + 1]]:
            producer = table.producer[each]
            is_own = producer >= 0 and marks.step[producer] == mark and each != value
            if (
                is_own
                and marks.last_use[each] == index
                and _begins(table, measured, each, place) == NOT_LIVE
            ):
                level -= table.bytes[each]
    return True


@compiled
def _drop(
    table: StepArrays,
    measured: Measured,
    marks: Marks,
    chain: Integers,
    value: int,
    end: int,
    place: int,
) -> int:
    """Drop a stretch of a value that a chain recomputes at a place; return the excess bytes
    removed."""
    mark = marks.step[chain[0]]  # the mark that `_fits` gave this chain
    for step in chain:
        for operand in table.inputs[table.first_input[step] : table.first_input[step + 1]]:
            producer = table.producer[operand]
            since = _begins(table, measured, operand, place)
            if since >= 0 and marks.step[producer] != mark:
                measured.needed[since] = min(place, measured.needed[since])
    measured.dropped[end - 1] = place
    start, size = measured.at[end - 1], table.bytes[value]
    measured.live_after[start : place - 1] -= size
    return reduce_excess(measured.excess, start + 1, place, size)
