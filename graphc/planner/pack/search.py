"""Exact search for a packing within a capacity, by branching on valleys.

Buffers are live in sections `[first, last)` and have sizes. The search assigns offsets such that
buffers with a common section do not overlap and each ends at or below the capacity C. This is
dynamic storage allocation, which is NP-complete (Garey and Johnson, 1979, SR2). So the search is
depth first, with a limit on its decisions.

Let every buffer of a packing sink until it rests on the bottom, on a pin or on another buffer. Only
such packings have to be tried. They are built from the bottom up. A state has, for each unplaced
buffer b,

    solid(b) ≤ least(b)     solid: the lowest offset above all placed buffers and pins that
                            overlap b in time; least: the same, raised further by decisions

and for each section s the floor level(s), the smallest `least` of its unplaced buffers, and
rest(s), the sum of their sizes. A state is pruned if least(b) + size(b) > C for a buffer or
level(s) + rest(s) > C for a section. MiniMalloc (Moffitt, 2023) prunes in the same way and also
tries buffers in a given order.

The branching is that of exact strip packing. A valley is a run of sections with equal floors
between higher ones. A buffer with `least` on that floor is live only within the valley, since the
walls are higher. In one of the two end sections of a valley, there are two kinds of choices:

    rest      one of the buffers that are live there and have `solid` on the floor rests on it;
    leave     none does. All of them rest on something that ends higher: `least` rises for all to
              the lowest end of an unplaced buffer that may support one of them.

The choices exclude each other, so one path leads to each packing whose buffers all rest as low as
they can. A search that ends without a packing proves that none exists. Among all end sections, the
one with the fewest choices is taken first, then the one with the least spare bytes: C - level(s) -
rest(s), some of which `leave` needs.

To choose a section, a decision reads all floors and the members of end sections. To execute it, it
visits the neighbors of the placed or lifted buffers and the members of their sections. It is undone
from trails of changes; their length bounds the memory.
"""

from __future__ import annotations

import numpy as np

from graphc.jit import compiled
from graphc.planner.pack.branching import list_choices, lowest_support, most_constrained
from graphc.planner.pack.problem import Integers
from graphc.planner.pack.tables import (
    FAR,
    FIRST,
    LAST,
    LEAST,
    LEVEL,
    MEMBERS,
    NEIGHBOURS,
    OFFSET,
    PINS,
    PLACED,
    REST,
    SIZE,
    SOLID,
    Table,
)

FOUND, NONE_EXISTS, LIMIT_REACHED = 1, 0, -1
"""The outcomes of a search."""

DEPTH = 8
"""Maximum number of decisions on one path, per buffer."""

SECTION, NEXT, END, TRIED, LIFTS, RAISES = range(6)
"""Columns of the path, which has one row per decision. They are its section; the position of its
next choice in the list of choices, and the end of its part of the list; the buffer being tried, or
-1; and the lengths of the two trails before the decision."""


@compiled
def _settle(offset: int, size: int, pins: Table, start: int, stop: int) -> int:
    """Return the lowest offset, at least `offset`, at which `size` units overlap none of pins
    `[start, stop)`."""
    for pin in range(start, stop):
        # Pins ascend, so passed pins stay below and one walk suffices.
        if offset < pins[pin, 1] and pins[pin, 0] < offset + size:
            offset = pins[pin, 1]
    return offset


@compiled
def _lift(
    buffer: int, offset: int, is_solid: bool, buffers: Table, pins: Table, lifted: Table, lifts: int
) -> int:
    """Raise the least offset of a buffer to `offset`, or past the pins there.

    The old values of `least` and `solid` are saved on the trail `lifted`. Returns its new length.
    """
    start, stop = buffers[buffer, PINS], buffers[buffer + 1, PINS]
    offset = _settle(offset, buffers[buffer, SIZE], pins, start, stop)
    # The trail is undone from its end, so a buffer lifted twice gets its oldest values back.
    least, solid = buffers[buffer, LEAST], buffers[buffer, SOLID]
    lifted[lifts, 0], lifted[lifts, 1], lifted[lifts, 2] = buffer, least, solid
    buffers[buffer, LEAST] = max(least, offset)
    # A buffer that leaves has no support yet: `solid` stays below `least`. It may not rest until a
    # support is placed.
    if is_solid:
        buffers[buffer, SOLID] = max(solid, offset)
    return lifts + 1


@compiled
def _fits(
    begin: int,
    end: int,
    capacity: int,
    buffers: Table,
    sections: Table,
    members: Integers,
    raised: Table,
    raises: int,
) -> tuple[bool, int]:
    """Update the floors of sections `[begin, end)`.

    Returns True if the unplaced buffers fit above the floors, and the length of the trail.
    """
    for section in range(begin, end):
        floor = FAR
        for entry in range(sections[section, MEMBERS], sections[section + 1, MEMBERS]):
            buffer = members[entry]
            if not buffers[buffer, PLACED] and buffers[buffer, LEAST] < floor:
                floor = buffers[buffer, LEAST]
        # A section with an unchanged floor cannot overflow now, since `rest` only decreases.
        if floor != sections[section, LEVEL]:
            raised[raises, 0], raised[raises, 1] = section, sections[section, LEVEL]
            raises += 1
            sections[section, LEVEL] = floor
            if floor < FAR and floor + sections[section, REST] > capacity:
                return False, raises
    return True, raises


@compiled
def _rest(
    buffer: int,
    capacity: int,
    buffers: Table,
    sections: Table,
    neighbours: Integers,
    pins: Table,
    lifted: Table,
    lifts: int,
) -> tuple[bool, int, int, int]:
    """Place a buffer at its least offset.

    Returns True if its neighbors still fit, the range of changed sections `[begin, end)`, and the
    length of the trail.
    """
    # On the floor, least and solid are equal: the buffer rests on something.
    top = buffers[buffer, LEAST] + buffers[buffer, SIZE]
    buffers[buffer, PLACED], buffers[buffer, OFFSET] = 1, buffers[buffer, LEAST]
    begin, end = buffers[buffer, FIRST], buffers[buffer, LAST]
    for section in range(begin, end):
        sections[section, REST] -= buffers[buffer, SIZE]
    for edge in range(buffers[buffer, NEIGHBOURS], buffers[buffer + 1, NEIGHBOURS]):
        other = neighbours[edge]
        if not buffers[other, PLACED] and buffers[other, SOLID] < top:
            lifts = _lift(other, top, True, buffers, pins, lifted, lifts)
            begin, end = min(begin, buffers[other, FIRST]), max(end, buffers[other, LAST])
            # Stop here: the decision is undone as far as its trail goes.
            if buffers[other, LEAST] + buffers[other, SIZE] > capacity:
                return False, begin, end, lifts
    return True, begin, end, lifts


@compiled
def _leave(
    section: int,
    capacity: int,
    buffers: Table,
    sections: Table,
    neighbours: Integers,
    members: Integers,
    pins: Table,
    lifted: Table,
    lifts: int,
) -> tuple[bool, int, int, int]:
    """Lift all buffers off the floor of a section to their lowest support; return the same as
    `_rest`."""
    floor, begin, end = sections[section, LEVEL], section, section + 1
    spare = capacity - sections[section, REST] - floor
    # No buffer may rest on the floor then, so at least one unit of this section is wasted.
    if spare <= 0:
        return False, begin, end, lifts
    support = lowest_support(section, buffers, sections, neighbours, members)
    # The next buffer of the section rests on the support, or is above the floor already if pins
    # have lifted some. Without pins no error of the search is known, and plans depend on its count
    # of work.
    lowest = support
    if len(pins) > 0:
        for entry in range(sections[section, MEMBERS], sections[section + 1, MEMBERS]):
            other = members[entry]
            if not buffers[other, PLACED] and buffers[other, LEAST] > floor:
                lowest = min(lowest, buffers[other, LEAST])
    if lowest - floor > spare:
        return False, begin, end, lifts
    for entry in range(sections[section, MEMBERS], sections[section + 1, MEMBERS]):
        other = members[entry]
        if not buffers[other, PLACED] and buffers[other, LEAST] == floor:
            lifts = _lift(other, support, False, buffers, pins, lifted, lifts)
            begin, end = min(begin, buffers[other, FIRST]), max(end, buffers[other, LAST])
            if buffers[other, LEAST] + buffers[other, SIZE] > capacity:
                return False, begin, end, lifts
    return True, begin, end, lifts


@compiled
def _decide(
    decision: Integers,
    begin: int,
    capacity: int,
    buffers: Table,
    sections: Table,
    members: Integers,
    choices: Integers,
) -> None:
    """Begin a decision: choose its section, and write the buffers that can rest there to
    `choices[begin:]`."""
    section = most_constrained(capacity, buffers, sections, members)
    decision[SECTION], decision[NEXT], decision[TRIED] = section, begin, -1
    decision[END] = list_choices(section, buffers, sections, members, choices, begin)


@compiled
def _try(
    decision: Integers,
    capacity: int,
    buffers: Table,
    sections: Table,
    neighbours: Integers,
    members: Integers,
    pins: Table,
    lifted: Table,
    lifts: int,
) -> tuple[bool, int, int, int]:
    """Execute the current choice of a decision; return the same as `_rest` and `_leave`."""
    buffer, section = decision[TRIED], decision[SECTION]
    if buffer >= 0:
        return _rest(buffer, capacity, buffers, sections, neighbours, pins, lifted, lifts)
    return _leave(section, capacity, buffers, sections, neighbours, members, pins, lifted, lifts)


@compiled
def _take_back(
    decision: Integers,
    buffers: Table,
    sections: Table,
    lifted: Table,
    lifts: int,
    raised: Table,
    raises: int,
) -> int:
    """Undo the choice being tried; return the number of buffers, 0 or 1, that are no longer
    placed."""
    for lift in range(lifts - 1, decision[LIFTS] - 1, -1):
        buffer = lifted[lift, 0]
        buffers[buffer, LEAST], buffers[buffer, SOLID] = lifted[lift, 1], lifted[lift, 2]
    for rise in range(raises - 1, decision[RAISES] - 1, -1):
        sections[raised[rise, 0], LEVEL] = raised[rise, 1]
    buffer = decision[TRIED]
    if buffer < 0:
        return 0
    buffers[buffer, PLACED] = 0
    for section in range(buffers[buffer, FIRST], buffers[buffer, LAST]):
        sections[section, REST] += buffers[buffer, SIZE]
    return 1


@compiled
def _begin(
    capacity: int,
    buffers: Table,
    sections: Table,
    members: Integers,
    pins: Table,
    lifted: Table,
    raised: Table,
) -> bool:
    """Reset the state: no buffer is placed, and `least` of each is its lowest possible offset.
    Returns True if all buffers fit the capacity there."""
    buffers[:, PLACED:] = 0
    sections[:, REST:] = 0
    fits = True
    for buffer in range(len(buffers) - 1):
        _lift(buffer, 0, True, buffers, pins, lifted, 0)
        fits = fits and buffers[buffer, LEAST] + buffers[buffer, SIZE] <= capacity
        for section in range(buffers[buffer, FIRST], buffers[buffer, LAST]):
            sections[section, REST] += buffers[buffer, SIZE]
    fits_above, _ = _fits(0, len(sections) - 1, capacity, buffers, sections, members, raised, 0)
    return fits and fits_above


@compiled
def search(
    buffers: Table,
    sections: Table,
    neighbours: Integers,
    members: Integers,
    pins: Table,
    capacity: int,
    limit: int,
) -> tuple[int, int, int]:
    """Search for a packing within `capacity`; return the outcome, decisions and work.

    The offsets of a packing found are in the column OFFSET. `pins` are bytes `[start, end)`,
    ascending for each buffer.
    """
    left, floors = len(buffers) - 1, len(sections) - 1
    deepest, entries = DEPTH * left, DEPTH * len(members)
    lifted = np.empty((len(neighbours) + entries + left, 3), np.int64)
    raised = np.empty((2 * entries + 2 * floors, 2), np.int64)
    choices, path = np.empty(entries + left, np.int64), np.zeros((deepest + 2, 6), np.int64)
    if not _begin(capacity, buffers, sections, members, pins, lifted, raised):
        return NONE_EXISTS, 0, 0
    count, lifts, raises, depth, decisions, work = left, 0, 0, 0, 0, 0
    is_new, is_complete = True, True
    while True:
        decision = path[depth]
        if is_new:
            if left == 0:
                return FOUND, decisions, work
            begin = path[depth - 1, END] if depth > 0 else 0
            _decide(decision, begin, capacity, buffers, sections, members, choices)
            decision[LIFTS], decision[RAISES] = lifts, raises
        else:
            left += _take_back(decision, buffers, sections, lifted, lifts, raised, raises)
            lifts, raises = decision[LIFTS], decision[RAISES]
        if decision[NEXT] > decision[END]:  # `leave`, tried last at END, has been tried too
            depth, is_new = depth - 1, False
            if depth < 0:
                return (NONE_EXISTS if is_complete else LIMIT_REACHED), decisions, work
            continue
        decisions += 1
        if decisions > limit:
            return LIMIT_REACHED, decisions, work
        decision[TRIED] = choices[decision[NEXT]] if decision[NEXT] < decision[END] else -1
        decision[NEXT] += 1
        left -= decision[TRIED] >= 0
        fits, begin, end, lifts = _try(
            decision, capacity, buffers, sections, neighbours, members, pins, lifted, lifts
        )
        # The cost of a decision is about the number of members of all changed sections.
        work += sections[end, MEMBERS] - sections[begin, MEMBERS]
        if fits:
            fits, raises = _fits(begin, end, capacity, buffers, sections, members, raised, raises)
        # Branches too deep for the trails are not followed; the search then proves nothing at its
        # end.
        is_new = fits and (
            depth < deepest
            and lifts + count < len(lifted)
            and raises + floors < len(raised)
            and decision[END] + count < len(choices)
        )
        is_complete = is_complete and is_new == fits
        depth += is_new
