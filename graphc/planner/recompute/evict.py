"""Eviction: a local search that drops and recomputes values until a schedule fits.

This is the inverse of fill.py; evict_kernel.py makes the greedy choice. A value is live on
stretches: from a position a that produces or uses it to its next use b. Instead it may be
recomputed at a place p, a < p <= b, by a chain of steps: its producer, after the producers of all
inputs that are not live at p. With

    excess(q) = bytes above the limit during q
    gain      = sum over a < q < p of min(bytes of the value, excess(q))
    score     = cost of the steps of the chain that do not run at p anyway / gain

stretches are dropped greedily, least score first. p is b, or an earlier place at which the most
expensive step of the chain runs for another value. One recomputation then serves both. A chain must
itself fit at p, and its inputs must not be dropped before p.

Dropping a stretch only raises other scores, except those of values whose producer is now
recomputed. So a heap of lower bounds suffices: a score is computed when its stretch is popped, and
again for siblings. Once half of the excess is gone, the recomputed steps are inserted and the
sequence is measured again, as chains bring bytes of their own. Rounds end when nothing is above the
limit, nothing helps, rounds stall (PROGRESS), or EFFORT is used up. A round takes O(n log n) for a
sequence of n steps, plus its chains.

Chains ignore cuts, so this serves graphs that are nowhere narrow: skip connections, layers that
recur over time. The dynamic program looks far ahead, but counts what a region recomputes as live to
the region's end. Started from its schedule for more bytes, few and cheap evictions remain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphc.jit import compiled, suited
from graphc.planner.problem import Problem
from graphc.planner.profile import Booleans, Floats, Integers, StepArrays
from graphc.planner.recompute.evict_kernel import NEVER, Measured, Network, Stretches, drop_half
from graphc.planner.recompute.excess import excess_of

ROUNDS = 40
"""Maximum number of rounds; each removes half of the remaining excess."""

LONGEST = 3
"""Maximum length of a sequence, as a multiple of the number of steps."""

EFFORT, AT_LEAST = 6, 4000
"""Maximum number of scores computed per step, and the minimum of the total for small problems."""

OVERFLOW = 1 << 62
"""Bound on the sum of excess bytes over positions, so that it fits 64 bits."""

OVERHEAD = 0.01
"""Overhead of a recomputed step, such as its launch, as a fraction of the mean step's cost."""

PROGRESS, PATIENCE = 0.98, 3
"""The search ends after PATIENCE successive rounds that leave more than PROGRESS of the excess."""


def evict(
    steps: Problem, sequence: Sequence[int], capacity: int, factors: Floats | None = None
) -> list[int] | None:
    """Return a sequence with more recomputation and a peak of at most `capacity`, or None.

    Values are chosen as if the costs of steps were multiplied by `factors`.
    """
    if not sequence:
        return [] if steps.peak(()) <= capacity else None
    network, capacity = _network(steps), capacity - steps.fixed_bytes
    if factors is not None:
        network = network._replace(cost=network.cost * factors)
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
        effort, recomputed, places = drop(network, measured, stretches, capacity, effort)
        if not len(recomputed) or len(found) + len(recomputed) > LONGEST * len(steps):
            return None
        order = np.lexsort((recomputed, places))
        found = np.insert(found, places[order], recomputed[order])
    return (
        [int(step) for step in found] if steps.peak(found) <= capacity + steps.fixed_bytes else None
    )


def _network(steps: Problem) -> Network:
    extra = OVERHEAD * steps.cost_of(range(len(steps))) / max(len(steps), 1)
    known = np.full(len(steps.arrays.inputs), -1.0)
    return Network(steps.arrays, steps.arrays.cost + extra, known)


def _measured(network: Network, sequence: Integers, excess: Integers) -> tuple[Measured, Stretches]:
    """Return a sequence's events and live bytes, and the stretches of live ranges that may be
    dropped."""
    events = suited(_events, len(network.cost))
    first_event, at, makes, read, change = events(network.table, sequence)
    # `change` starts one position early, for the bytes live before the first step.
    live_after = np.cumsum(change)[1:]
    nothing = np.full(len(at), -1, np.int64)
    never = np.full(len(at), NEVER, np.int64)
    blocks = suited(excess_of, len(network.cost))(excess)
    measured = Measured(first_event, at, makes, read, blocks, live_after, nothing, never)
    value = np.repeat(np.arange(len(first_event) - 1), np.diff(first_event))
    may_go = network.table.is_droppable & (network.table.bytes > 0)
    # The first event of a droppable value produces it, so each use ends a stretch that the event
    # before it begins. A stretch to the end of the sequence stays.
    end = np.flatnonzero(~makes & may_go[value] & (at < len(sequence)))
    return measured, _bounds(network, measured, excess, value[end], at[end - 1], end)


def _bounds(
    network: Network,
    measured: Measured,
    excess: Integers,
    value: Integers,
    start: Integers,
    end: Integers,
) -> Stretches:
    """Return the stretches during which bytes exceed the limit, with lower bounds of their
    scores."""
    stop = measured.at[end]
    total = np.concatenate([[0], np.cumsum(excess)])
    above = np.concatenate([[0], np.cumsum(excess > 0)])
    count = above[stop] - above[start + 1]
    # Floats, since bytes times positions may exceed 64-bit integers.
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
    """Return the uses and productions of values, sorted by value and position, as arrays. The first
    array has the index of each value's first event. The next three have, for each event, its
    position, whether it produces the value, and the index in `table.inputs` that it reads. The last
    has the change of live bytes after each position, with one entry before the first. Values in
    `live_out` have a use after the last position.
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
    latest = np.full(len(table.bytes), -1, np.int64)  # position of each value's last event
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
            # A use ends a stretch. Values without a producer are live from before the first step.
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
