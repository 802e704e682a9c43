"""Local search on a sequence: what is above the limit is dropped, and computed again when read.

This is the inverse of fill.py; its greedy choice is in evict_kernel.py. A value is live on
stretches: from a position a, which makes or reads it, to the next that reads it, b. Instead it may
be made again at a place p in (a, b], by its maker behind the makers of whatever that reads and is
not live at p: a chain of repeats. With

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
over time. The dynamic program looks far ahead there, but counts what a region recomputes as kept to
its end; from one of its sequences for more bytes, the remaining evictions are cheap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphc.jit import compiled, suited
from graphc.remat.evict_kernel import NEVER, Measured, Network, Stretches, drop_half
from graphc.scheduling.problem import Problem
from graphc.scheduling.profile import Booleans, Integers, StepArrays

ROUNDS = 40
"""Most rounds; each has half of the excess of the one before."""

LONGEST = 3
"""Times as many steps as there are: a sequence that grows longer leads nowhere."""

EFFORT, AT_LEAST = 6, 4000
"""Scores that are worked out for each step, and for few steps at least, before it gives up."""

OVERFLOW = 1 << 62
"""Bytes above the limit, summed over positions, beyond which they are not counted any more."""

OVERHEAD = 0.01
"""What a repeat costs beside its own cost, as a part of the mean step: a launch is not free."""

PROGRESS, PATIENCE = 0.98, 3
"""So many rounds, one after another, that leave more than this part of the excess lead nowhere."""


def evict(steps: Problem, sequence: Sequence[int], capacity: int) -> list[int] | None:
    """A sequence with more repeats whose peak is at most `capacity`, or None where none is found."""
    if not sequence:
        return [] if steps.peak(()) <= capacity else None
    network, capacity = _network(steps), capacity - steps.fixed_bytes
    found, stalled, last = np.array(sequence, np.int64), 0, math.inf
    effort = max(EFFORT * len(steps), AT_LEAST)
    for _ in range(ROUNDS):
        excess = np.maximum(steps.levels(found) - capacity, 0)
        if int(excess.max()) * len(found) >= OVERFLOW:
            return None
        total = int(excess.sum())
        if not total:
            return [int(step) for step in found]
        stalled = stalled + 1 if total > PROGRESS * last else 0
        last = total
        if stalled == PATIENCE or effort <= 0:
            return None
        measured, stretches = _measured(network, found, excess)
        drop = suited(drop_half, len(steps))
        effort, again, places = drop(network, measured, stretches, capacity, effort)
        if not len(again) or len(found) + len(again) > LONGEST * len(steps):
            return None
        order = np.lexsort((again, places))
        found = np.insert(found, places[order], again[order])
    return (
        [int(step) for step in found] if steps.peak(found) <= capacity + steps.fixed_bytes else None
    )


def _network(steps: Problem) -> Network:
    extra = OVERHEAD * steps.cost_of(range(len(steps))) / max(len(steps), 1)
    known = np.full(len(steps.arrays.inputs), -1.0)
    return Network(steps.arrays, steps.arrays.cost + extra, known)


def _measured(network: Network, sequence: Integers, excess: Integers) -> tuple[Measured, Stretches]:
    """Where values are made and read, their stretches, and the bytes behind each position."""
    events = suited(_events, len(network.cost))
    first_event, at, makes, read, change = events(network.table, sequence)
    # `change` is one place further than positions, for what is live before the first.
    behind = np.cumsum(change)[1:]
    nothing = np.full(len(at), -1, np.int64)
    never = np.full(len(at), NEVER, np.int64)
    measured = Measured(first_event, at, makes, read, excess, behind, nothing, never)
    value = np.repeat(np.arange(len(first_event) - 1), np.diff(first_event))
    may_go = network.table.is_droppable & (network.table.bytes > 0)
    # The first event of what may go makes it, so each read ends a stretch that the event before it
    # begins; one that is held to the end stays.
    end = np.flatnonzero(~makes & may_go[value] & (at < len(sequence)))
    return measured, _bounds(network, measured, value[end], at[end - 1], end)


def _bounds(
    network: Network, measured: Measured, value: Integers, start: Integers, end: Integers
) -> Stretches:
    """The stretches that cover excess, with no more than their scores."""
    stop = measured.at[end]
    total = np.concatenate([[0], np.cumsum(measured.excess)])
    above = np.concatenate([[0], np.cumsum(measured.excess > 0)])
    count = above[stop] - above[start + 1]
    # As floats: a large value times many positions is beyond whole numbers of 64 bits.
    most = network.table.bytes[value] * count.astype(np.float64)
    gain = np.minimum(most, total[stop] - total[start + 1])
    known = network.known[measured.read[end]]
    cost = np.where(known >= 0, known, network.cost[network.table.producer[value]])
    may_pay = (count > 0) & np.isfinite(cost)
    bound = cost[may_pay] / gain[may_pay]
    return Stretches(end[may_pay], value[may_pay], bound)


@compiled
def _events(
    table: StepArrays, sequence: Integers
) -> tuple[Integers, Integers, Booleans, Integers, Integers]:
    """Reads and makes by value and position; what is held is read behind the last.

    Where the events of each value begin, then of each event the position, whether it makes the
    value, and the place in `table.inputs` that it reads. Last by how much the bytes live change
    behind each position, from the one before the first on.
    """
    first_event = np.zeros(len(table.bytes) + 1, np.int64)
    for step in sequence:
        for value in table.inputs[table.first_input[step] : table.first_input[step + 1]]:
            first_event[value + 1] += 1
        for value in table.outputs[table.first_output[step] : table.first_output[step + 1]]:
            first_event[value + 1] += 1
    first_event[1:] += table.is_live_out
    first_event = np.cumsum(first_event)
    at, read = np.empty(first_event[-1], np.int64), np.full(first_event[-1], -1, np.int64)
    makes = np.zeros(first_event[-1], np.bool_)
    latest = np.full(len(table.bytes), -1, np.int64)  # by value the position of its last event
    place, change = first_event[:-1].copy(), np.zeros(len(sequence) + 3, np.int64)
    for position in range(len(sequence) + 1):
        if position == len(sequence):
            slots = np.zeros(0, np.int64)
            values = np.flatnonzero(table.is_live_out)
        else:
            step = sequence[position]
            slots = np.arange(table.first_input[step], table.first_input[step + 1])
            values = table.inputs[slots]
        for index in range(len(values)):
            value = values[index]
            at[place[value]] = position
            if len(slots) > 0:
                read[place[value]] = slots[index]
            place[value] += 1
            # A stretch ends with a read; one of what comes from outside begins in front of all.
            if latest[value] >= 0 or table.producer[value] < 0:
                change[latest[value] + 1] += table.bytes[value]
                change[position + 1] -= table.bytes[value]
            latest[value] = position
        if position < len(sequence):
            for value in table.outputs[table.first_output[step] : table.first_output[step + 1]]:
                at[place[value]], makes[place[value]] = position, True
                place[value] += 1
                latest[value] = position
    return first_event, at, makes, read, change
