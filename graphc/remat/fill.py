"""Local search on a sequence: what the budget lets stay is not computed again.

Let step s stand at positions q < p of a sequence, and nowhere between. Without the repeat at
p, what reads s's results behind p reads those of q, so each has to stay live from its last reader
before p up to p. That is possible where on all of this stretch

    bytes live + bytes of the results that stay ≤ limit

and it saves the cost of s. Repeats are tried greedily, those of most cost a byte first and late
ones before early ones. Levels are only raised during a pass: that what the repeat read may now die
earlier is seen by the next pass, which measures anew. They end when one removes nothing, or would
raise the peak above both the limit and what it was.

A pass takes O(length of the sequence + length of all stretches) beside a sort; there are at most 8.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.jit import compiled, suited
from graphc.scheduling.problem import Problem
from graphc.scheduling.profile import Booleans, Integers, StepArrays

PASSES = 8
"""Most passes over a sequence; each makes room for the next."""


def fill(steps: Problem, sequence: Sequence[int], capacity: int) -> list[int]:
    """Hold values instead of computing them again, dearest bytes first, wherever `capacity` allows."""
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
    """By position whether the step stays where one pass has held what it can."""
    table = steps.arrays
    previous = suited(_appearances_before, len(steps))(sequence, len(steps))
    # Only repeats are tried, never first appearances, so every step stays in the sequence.
    repeats = np.flatnonzero(previous >= 0)
    made = np.concatenate([[0], np.cumsum(table.bytes[table.outputs])])[table.first_output]
    worth = table.cost / np.maximum(np.diff(made), 1)
    order = repeats[np.lexsort((-repeats, -worth[sequence[repeats]]))]
    return suited(_one_pass, len(steps))(table, sequence, previous, order, levels.copy(), capacity)


@compiled
def _appearances_before(sequence: Integers, count: int) -> Integers:
    """The position at which each step of a sequence stands before, or -1."""
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
    """Tries the repeats in the order given, and raises the levels for what is held."""
    place, ends = _last_readers(table, sequence)
    most = 1
    for step in range(len(table.cost)):
        most = max(most, table.first_output[step + 1] - table.first_output[step])
    # Of each result that is read behind the repeat: from where on it has to be held, and which.
    begins, slots = np.empty(most + 1, np.int64), np.empty(most, np.int64)
    stays = np.ones(len(sequence), np.bool_)
    for position in order:
        step, start = sequence[position], previous[position]
        # If the appearance before is gone too, its results come from the one before that.
        while not stays[start]:
            start = previous[start]
        first = table.first_output[step]
        count = 0
        for slot in range(table.first_output[step + 1] - first):
            # What nobody reads any more does not have to live on.
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
        # Between the begins of two stretches the same is added; most comes last.
        added, fits = 0, True
        for index in range(count):
            added += table.bytes[table.outputs[first + slots[index]]]
            # Where nothing is added a level may be above the limit: no doing of this repeat.
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
            # From now on the earlier appearance is what these readers read.
            ends[place[start] + slots[index]] = ends[place[position] + slots[index]]
        stays[position] = False
    return stays


@compiled
def _free_from(table: StepArrays, sequence: Integers, end: int, value: int) -> int:
    """The position from which on a value has no bytes, if position `end` reads it last."""
    step = sequence[end]
    for pair in range(table.first_overwrite[step], table.first_overwrite[step + 1]):
        # What was overwritten there took no bytes beside the output; to hold it undoes that.
        if table.overwritten[pair] == value:
            return end
    return end + 1


@compiled
def _last_readers(table: StepArrays, sequence: Integers) -> tuple[Integers, Integers]:
    """The last reader of each result of each appearance, and where those of a position begin."""
    place = np.zeros(len(sequence) + 1, np.int64)
    for position in range(len(sequence)):
        step = sequence[position]
        made = table.first_output[step + 1] - table.first_output[step]
        place[position + 1] = place[position] + made
    ends = np.zeros(place[-1], np.int64)
    latest = np.full(len(table.bytes), -1, np.int64)  # by value, where in `ends` its reader stands
    for position in range(len(sequence)):
        step = sequence[position]
        for value in table.inputs[table.first_input[step] : table.first_input[step + 1]]:
            if latest[value] >= 0:
                ends[latest[value]] = position
        # Set behind the reads: a step reads what ran before it.
        for slot in range(place[position + 1] - place[position]):
            latest[table.outputs[table.first_output[step] + slot]] = place[position] + slot
            ends[place[position] + slot] = position
    for value in range(len(latest)):
        if table.is_live_out[value] and latest[value] >= 0:
            ends[latest[value]] = len(sequence)
    return place, ends
