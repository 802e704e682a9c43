"""Fill: a local search that saves values instead of recomputing them, within spare capacity.

Let step s occur at positions q < p of a sequence, and nowhere between. Without the occurrence at p,
later uses of the outputs read those computed at q. Each output then stays live from its last use
before p up to p. That is possible if on this whole stretch

    bytes live + bytes of the outputs that stay ≤ limit

and it saves the cost of s. Recomputed steps are tried greedily by cost per byte, highest first, and
late ones before early ones. A pass only raises levels. Inputs of a removed step may now die
earlier, which the next pass measures. Passes end when one removes nothing, or would raise the peak
above both the limit and its previous value.

A pass takes O(length of the sequence + length of all stretches) plus a sort; at most 8 are made.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.jit import compiled, suited
from graphc.planner.problem import Problem
from graphc.planner.profile import Booleans, Integers, StepArrays

PASSES = 8
"""Maximum number of passes over a sequence; each frees bytes for the next."""


def fill(steps: Problem, sequence: Sequence[int], capacity: int) -> list[int]:
    """Return a sequence that recomputes fewer values, highest cost per byte first, within
    `capacity` bytes."""
    best = np.array(sequence, np.int64)
    levels, capacity = steps.levels(best), capacity - steps.fixed_bytes
    for _ in range(PASSES):
        shorter = best[_kept(steps, best, levels, capacity)]
        if len(shorter) == len(best):
            break
        measured = steps.levels(shorter)
        if measured.max() > max(capacity, levels.max()):
            break
        best, levels = shorter, measured
    found: list[int] = best.tolist()
    return found


def _kept(steps: Problem, sequence: Integers, levels: Integers, capacity: int) -> Booleans:
    """Return for each position whether its step stays in the sequence after one pass."""
    table = steps.arrays
    previous = suited(_appearances_before, len(steps))(sequence, len(steps))
    # First occurrences are never removed, so every step stays in the sequence.
    repeats = np.flatnonzero(previous >= 0)
    made = np.concatenate([[0], np.cumsum(table.bytes[table.outputs])])[table.first_output]
    cost_per_byte = table.cost / np.maximum(np.diff(made), 1)
    order = repeats[np.lexsort((-repeats, -cost_per_byte[sequence[repeats]]))]
    return suited(_one_pass, len(steps))(table, sequence, previous, order, levels.copy(), capacity)


@compiled
def _appearances_before(sequence: Integers, count: int) -> Integers:
    """Return for each position the previous position of the same step, or -1."""
    latest = np.full(count, -1, np.int64)
    previous = np.empty(len(sequence), np.int64)
    for position in range(len(sequence)):
        previous[position] = latest[sequence[position]]
        latest[sequence[position]] = position
    return previous


@compiled
def _one_pass(
    table: StepArrays,
    sequence: Integers,
    previous: Integers,
    order: Integers,
    levels: Integers,
    capacity: int,
) -> Booleans:
    """Try to remove recomputed steps in the given order, and return the positions that stay, as
    booleans. `levels`, the live bytes by position, grow by the values that are saved instead."""
    place, ends = _last_readers(table, sequence)
    most = 1
    for step in range(len(table.cost)):
        most = max(most, table.first_output[step + 1] - table.first_output[step])
    # For each output used after `position`: where its new live range begins, and its slot.
    begins, slots = np.empty(most + 1, np.int64), np.empty(most, np.int64)
    stays = np.ones(len(sequence), np.bool_)
    for position in order:
        step, start = sequence[position], previous[position]
        # If the previous occurrence is removed too, its outputs come from the one before.
        while not stays[start]:
            start = previous[start]
        first = table.first_output[step]
        count = 0
        for slot in range(table.first_output[step + 1] - first):
            # Outputs without a later use need not stay live.
            if ends[place[position] + slot] > position:
                begin = _free_from(
                    table, sequence, ends[place[start] + slot], table.outputs[first + slot]
                )
                at = count
                while at and begins[at - 1] > begin:
                    begins[at], slots[at] = begins[at - 1], slots[at - 1]
                    at -= 1
                begins[at], slots[at] = begin, slot
                count += 1
        begins[count] = position
        # The same bytes are added between two successive begins, and the most after the last one.
        added, fits = 0, True
        for index in range(count):
            added += table.bytes[table.outputs[first + slots[index]]]
            # If nothing is added, a level above the limit is not due to this change.
            if added and fits:
                for at in range(begins[index + 1] - 1, begins[index] - 1, -1):
                    if levels[at] + added > capacity:
                        fits = False
                        break
        if not fits:
            continue
        added = 0
        for index in range(count):
            added += table.bytes[table.outputs[first + slots[index]]]
            levels[begins[index] : begins[index + 1]] += added
            # These uses now read the earlier occurrence.
            ends[place[start] + slots[index]] = ends[place[position] + slots[index]]
        stays[position] = False
    return stays


@compiled
def _free_from(table: StepArrays, sequence: Integers, end: int, value: int) -> int:
    """Return the first position at which the bytes of a value are free if `end` is its last use."""
    step = sequence[end]
    for pair in range(table.first_overwrite[step], table.first_overwrite[step + 1]):
        # An overwritten value took no bytes beside the output; saving it undoes that.
        if table.overwritten[pair] == value:
            return end
    return end + 1


@compiled
def _last_readers(table: StepArrays, sequence: Integers) -> tuple[Integers, Integers]:
    """Return the first index of each position's outputs, and the last use of each output by
    index."""
    place = np.zeros(len(sequence) + 1, np.int64)
    for position in range(len(sequence)):
        step = sequence[position]
        made = table.first_output[step + 1] - table.first_output[step]
        place[position + 1] = place[position] + made
    ends = np.zeros(place[-1], np.int64)
    latest = np.full(len(table.bytes), -1, np.int64)  # by value, the index of its use in `ends`
    for position in range(len(sequence)):
        step = sequence[position]
        for value in table.inputs[table.first_input[step] : table.first_input[step + 1]]:
            if latest[value] >= 0:
                ends[latest[value]] = position
        # Set after the reads: a step reads earlier occurrences only.
        for slot in range(place[position + 1] - place[position]):
            latest[table.outputs[table.first_output[step] + slot]] = place[position] + slot
            ends[place[position] + slot] = position
    for value in range(len(latest)):
        if table.is_live_out[value] and latest[value] >= 0:
            ends[latest[value]] = len(sequence)
    return place, ends
