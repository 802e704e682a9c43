"""List scheduling within a limit of bytes, from the first step on or from the last one back.

Of the steps that may run, the first one of the given order that fits below the limit is taken, by
during(s, D) of precedence.py; steps that leave no more bytes live than there were come first. A
step that does not fit waits, with all that needs it, until enough has died. Where nothing fits any
more, there is no schedule under this limit by this method, and search.py asks for a higher one.

Forwards, a weight gradient whose operands are small beside it is put off so while the feature maps
are live. Backwards, steps are taken off the end, and what is made early and read late moves to its
readers. The second is the first on the reversed order: live bytes are those of values that what has
been taken reads and whose makers are still to be taken, so a step takes what it reads and is not
live yet, and frees what it makes.

In either direction, a step that leaves no more bytes live than there were is taken as soon as
it can be. This loses nothing. Take an order that takes it later and move it to the front: what
is taken in between then finds at most the bytes that it found before, for the step frees at least
as much when more steps have been taken. Forwards that is because more readers have run, backwards
because more of what it reads is live already.

A step's reach (bytes above those live while it runs) and growth only fall while it waits, each time
that a value comes to be its own to free. A fall costs one look at the step's operands and one more
entry in a heap; entries that are out of date are passed over.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from graphc.jit import compiled, suited
from graphc.scheduling.precedence import OrderTable, Precedence
from graphc.scheduling.profile import Booleans, Integers, taken_over

LESS = 16
"""A schedule is made few times, so it is compiled only from so many times as many steps on."""


def list_schedule(
    problem: Precedence, sequence: Sequence[int], limit: int, backwards: bool
) -> list[int] | None:
    """All steps in the order of `sequence` as far as they fit into `limit` bytes; None where
    nothing that may be taken fits any more."""
    preferred = np.array(sequence[::-1] if backwards else sequence, np.int64)
    schedule = suited(_schedule, len(problem) // LESS)
    order: list[int] = schedule(problem.table, preferred, limit, backwards).tolist()
    if len(order) < len(problem):
        return None
    return order[::-1] if backwards else order


class _Waiting(NamedTuple):
    """Steps and values that are to come, by number; `rank` is that in the preferred order.

    `awaited` counts the steps that one waits for. Of ready steps, `reach` are the bytes above those
    live that it takes while it runs, and `growth` are those that it leaves. Running forwards,
    `unread` counts readers that are to come, and `last_consumer` adds up their numbers: one reader's,
    in the end. What `stays` neither dies with the next that reads it nor comes to live with it.
    """

    rank: Integers
    awaited: Integers
    is_ready: Booleans
    reach: Integers
    growth: Integers
    unread: Integers
    last_consumer: Integers
    stays: Booleans


@compiled
def _schedule(table: OrderTable, preferred: Integers, limit: int, backwards: bool) -> Integers:
    """The steps in the order in which they are taken, until nothing fits."""
    waiting = _all_waiting(table, preferred, backwards)
    first_successor = table.first_predecessor if backwards else table.first_successor
    successors = table.predecessors if backwards else table.successors
    order, done = np.empty(len(preferred), np.int64), 0
    live = table.last_bytes if backwards else table.first_bytes
    if live > limit:
        return order[:0]
    # Ready steps by rank: those that leave no more bytes live, and others; by reach, those that did
    # not fit. What is put in gives a list its type.
    shrinking, growing, blocked = [0], [0], [(0, 0)]
    shrinking.clear()
    growing.clear()
    blocked.clear()
    for step in range(len(preferred)):
        if waiting.awaited[step] == 0:
            _enter(table, waiting, shrinking, growing, step, backwards)
    while done < len(preferred):
        spare = limit - live
        # By reach, as only room can free them; those that fit again go back to where rank decides.
        while len(blocked) > 0 and blocked[0][0] <= spare:
            step = heapq.heappop(blocked)[1]
            if waiting.is_ready[step]:
                queue = shrinking if waiting.growth[step] <= 0 else growing
                heapq.heappush(queue, waiting.rank[step])
        # What leaves no more bytes first, whatever its rank: that loses nothing (see above).
        chosen = _next(waiting, preferred, shrinking, blocked, spare)
        if chosen < 0:
            chosen = _next(waiting, preferred, growing, blocked, spare)
        if chosen < 0:
            break
        order[done] = chosen
        done += 1
        waiting.is_ready[chosen] = False
        live += waiting.growth[chosen]
        # Measured and queued again; the older entry is passed over once the step has been taken.
        for step in _take(table, waiting, chosen, backwards):
            if waiting.is_ready[step]:
                _enter(table, waiting, shrinking, growing, step, backwards)
        for step in successors[first_successor[chosen] : first_successor[chosen + 1]]:
            waiting.awaited[step] -= 1
            if waiting.awaited[step] == 0:
                _enter(table, waiting, shrinking, growing, step, backwards)
    return order[:done]


@compiled
def _all_waiting(table: OrderTable, preferred: Integers, backwards: bool) -> _Waiting:
    count, steps = len(preferred), table.steps
    rank, unread = np.empty(count, np.int64), np.diff(table.first_consumer)
    rank[preferred] = np.arange(count)
    last_consumer = np.zeros(len(steps.bytes), np.int64)
    for value in range(len(last_consumer)):
        last_consumer[value] = table.consumers[
            table.first_consumer[value] : table.first_consumer[value + 1]
        ].sum()
    # What is held has one reader more than there are, who never comes: it dies with nobody.
    unread = unread + steps.is_live_out
    stays = (steps.bytes == 0) | (steps.is_live_out if backwards else unread != 1)
    awaited = np.diff(table.first_successor if backwards else table.first_predecessor)
    nothing = np.zeros(count, np.int64)
    return _Waiting(
        rank, awaited, np.zeros(count, np.bool_), nothing, nothing.copy(), unread, last_consumer,
        stays,
    )  # fmt: skip


@compiled
def _next(
    waiting: _Waiting,
    preferred: Integers,
    queue: list[int],
    blocked: list[tuple[int, int]],
    spare: int,
) -> int:
    """The first step of a queue that fits, or -1."""
    while len(queue) > 0:
        step = preferred[heapq.heappop(queue)]
        if waiting.is_ready[step]:
            if waiting.reach[step] <= spare:
                return int(step)
            # A reach only falls, and a fall queues the step again, so nothing waits here too long.
            heapq.heappush(blocked, (waiting.reach[step], step))
    return -1


@compiled
def _enter(
    table: OrderTable,
    waiting: _Waiting,
    shrinking: list[int],
    growing: list[int],
    step: int,
    backwards: bool,
) -> None:
    """Measures a ready step as things stand, and queues it."""
    steps, dying = table.steps, 0
    for value in steps.inputs[steps.first_input[step] : steps.first_input[step + 1]]:
        if not waiting.stays[value]:
            dying += steps.bytes[value]
    reach, growth = table.needed[step], table.lasting[step] - dying
    if backwards:
        # Outputs that somebody reads are live already, as their readers have been taken; what comes
        # on top is what it reads afresh, its workspace, and outputs for nobody.
        reach, growth = dying + reach - table.lasting[step], -growth
    if dying > 0:
        reach -= taken_over(steps, step, waiting.stays)
    waiting.is_ready[step], waiting.reach[step], waiting.growth[step] = True, reach, growth
    heapq.heappush(shrinking if growth <= 0 else growing, waiting.rank[step])


@compiled
def _take(table: OrderTable, waiting: _Waiting, step: int, backwards: bool) -> Integers:
    """Notes that a step is taken; gives steps whose reach or growth have fallen, some twice."""
    steps = table.steps
    inputs = steps.inputs[steps.first_input[step] : steps.first_input[step + 1]]
    count = 0
    if backwards:
        # What comes to live with it is live now, so whoever else reads it brings less with it.
        for value in inputs:
            if not waiting.stays[value]:
                count += table.first_consumer[value + 1] - table.first_consumer[value]
        others, count = np.empty(count, np.int64), 0
        for value in inputs:
            if not waiting.stays[value]:
                waiting.stays[value] = True
                for consumer in table.consumers[
                    table.first_consumer[value] : table.first_consumer[value + 1]
                ]:
                    others[count] = consumer
                    count += 1
        return others
    others = np.empty(len(inputs), np.int64)
    for value in inputs:
        waiting.unread[value] -= 1
        waiting.last_consumer[value] -= step
        # One reader is left: now it frees the value, so its reach and growth fall.
        if waiting.unread[value] == 1 and steps.bytes[value] > 0 and not steps.is_live_out[value]:
            waiting.stays[value] = False
            others[count] = waiting.last_consumer[value]
            count += 1
    return others[:count]
