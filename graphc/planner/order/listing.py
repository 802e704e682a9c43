"""List scheduling within a limit of bytes, forwards or backwards.

Of the ready steps, the scheduler takes the first in the given order that fits below the limit, by
`during(s, D)` of precedence.py. Steps that do not increase the live bytes come first. A step that
does not fit waits, with its descendants, until enough values have died. If no ready step fits, this
method finds no schedule under the limit, and search.py tries a higher one.

Forwards, this delays a weight gradient with small operands while the feature maps are live.
Backwards, the scheduler fills the order from its end, which moves a value that is produced early
and used late next to its consumers. The backward case is the forward case on the reversed order. A
value is live if one of its consumers has been taken and its producer has not. So a step adds those
of its inputs that are not live yet, and frees its outputs.

In both directions, a step that does not increase the live bytes is taken as soon as it fits. This
loses no schedule. Take an order that takes the step later, and move it to the front. A step frees
at least as much once more steps have been taken: forwards because more consumers have run,
backwards because more of its inputs are already live. The steps in between thus see at most the
live bytes that they saw before.

The reach of a step is the bytes that it needs above the live bytes while it runs. Its growth is the
bytes that it adds. Both only fall while the step waits: forwards when it becomes the last consumer
of a value, backwards when one of its inputs becomes live. A fall costs one scan of the step's
operands and one heap entry. Outdated entries are skipped.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from graphc.jit import compiled, suited
from graphc.planner.order.precedence import OrderTable, Precedence
from graphc.planner.profile import Booleans, Integers, overwritten_bytes

LESS = 16
"""Divisor of the number of steps for deciding whether to compile the loop, as it runs only a few
times."""


def list_schedule(
    problem: Precedence, sequence: Sequence[int], limit: int, backwards: bool
) -> list[int] | None:
    """Return a list schedule within `limit` bytes that prefers steps early in `sequence`.

    Returns None if at some point no ready step fits.
    """
    preferred = np.array(sequence[::-1] if backwards else sequence, np.int64)
    schedule = suited(_schedule, len(problem) // LESS)
    order: list[int] = schedule(problem.table, preferred, limit, backwards).tolist()
    if len(order) < len(problem):
        return None
    return order[::-1] if backwards else order


class _Waiting(NamedTuple):
    """State of list scheduling, with one array entry per step or per value.

    `rank` is a step's position in the preferred order, and `awaited` counts the steps that it waits
    for. For ready steps, `reach` is the bytes needed above the live bytes while the step runs, and
    `growth` the bytes added after it. Forwards, `unread` counts the consumers still to run, and
    `last_consumer` sums their numbers: once one is left, the sum is its number. A value that
    `stays` neither dies (forwards) nor becomes live (backwards) with its next consumer.
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
    """Return the list schedule as an array of steps; it ends early if no ready step fits."""
    waiting = _all_waiting(table, preferred, backwards)
    first_successor = table.first_predecessor if backwards else table.first_successor
    successors = table.predecessors if backwards else table.successors
    order, done = np.empty(len(preferred), np.int64), 0
    live = table.last_bytes if backwards else table.first_bytes
    if live > limit:
        return order[:0]
    # `shrinking` and `growing` queue ready steps by rank, `blocked` those that did not fit by
    # reach. The first elements only tell numba the types of the lists.
    shrinking, growing, blocked = [0], [0], [(0, 0)]
    shrinking.clear()
    growing.clear()
    blocked.clear()
    for step in range(len(preferred)):
        if waiting.awaited[step] == 0:
            _enter(table, waiting, shrinking, growing, step, backwards)
    while done < len(preferred):
        spare = limit - live
        # Blocked steps that fit again return to the queues by rank.
        while len(blocked) > 0 and blocked[0][0] <= spare:
            step = heapq.heappop(blocked)[1]
            if waiting.is_ready[step]:
                queue = shrinking if waiting.growth[step] <= 0 else growing
                heapq.heappush(queue, waiting.rank[step])
        # Steps that do not increase the live bytes come first (see the module docstring).
        chosen = _next(waiting, preferred, shrinking, blocked, spare)
        if chosen < 0:
            chosen = _next(waiting, preferred, growing, blocked, spare)
        if chosen < 0:
            break
        order[done] = chosen
        done += 1
        waiting.is_ready[chosen] = False
        live += waiting.growth[chosen]
        # These steps are queued again with a new reach; older entries are skipped once a step is
        # taken.
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
    # A value in `live_out` counts one consumer too many, so that it never dies.
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
    """Return the first step of a queue that needs at most `spare` bytes, or -1. Steps before it are
    moved to `blocked`."""
    while len(queue) > 0:
        step = preferred[heapq.heappop(queue)]
        if waiting.is_ready[step]:
            if waiting.reach[step] <= spare:
                return int(step)
            # Reach only falls, and a step is queued again whenever it falls, so no step is
            # blocked too long.
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
    """Compute the reach and growth of a ready step, and queue it."""
    steps, dying = table.steps, 0
    for value in steps.inputs[steps.first_input[step] : steps.first_input[step + 1]]:
        if not waiting.stays[value]:
            dying += steps.bytes[value]
    reach, growth = table.needed[step], table.retained[step] - dying
    if backwards:
        # Outputs with consumers are already live, since these have been taken. The step adds its
        # inputs that are not live, its workspace, and its outputs without consumers.
        reach, growth = dying + reach - table.retained[step], -growth
    if dying > 0:
        reach -= overwritten_bytes(steps, step, waiting.stays)
    waiting.is_ready[step], waiting.reach[step], waiting.growth[step] = True, reach, growth
    heapq.heappush(shrinking if growth <= 0 else growing, waiting.rank[step])


@compiled
def _take(table: OrderTable, waiting: _Waiting, step: int, backwards: bool) -> Integers:
    """Take a step; return the steps whose reach or growth falls as a result, some of them twice."""
    steps = table.steps
    inputs = steps.inputs[steps.first_input[step] : steps.first_input[step + 1]]
    count = 0
    if backwards:
        # Its inputs are live from now on, so their other consumers add fewer bytes.
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
        # The last consumer frees the value, so its reach and growth fall.
        if waiting.unread[value] == 1 and steps.bytes[value] > 0 and not steps.is_live_out[value]:
            waiting.stays[value] = False
            others[count] = waiting.last_consumer[value]
            count += 1
    return others[:count]
