"""Exact search for a packing within a capacity, valley by valley.

Buffers live in sections [first, last) and have sizes. Wanted are offsets such that buffers with a
section in common do not overlap and every one ends at or below the capacity C. This is dynamic
storage allocation, NP-complete (Garey and Johnson, 1979, SR2), so the search is depth first, with a
limit on its decisions.

Let every buffer of a packing sink until it lies on the bottom, on a pin or on another buffer. Only
such packings have to be tried, and they are built from the bottom up. A state has for each buffer b
that is not placed

    solid(b) ≤ least(b)     the lowest offset above all placed buffers and pins that live with b;
                            the same, as far as decisions have raised it further

and for each section s the floor level(s), the smallest `least` of its buffers that are to come, and
rest(s), the sum of their sizes. It is given up where least(b) + size(b) > C for a buffer or
level(s) + rest(s) > C for a section. That is so in MiniMalloc (Moffitt, 2023), where an order of
buffers decides what is tried first, too.

The branching is that of exact strip packing. A valley is a run of sections with equal floors
between higher ones. A buffer with `least` on its floor lives within it, for the walls are higher.
In one of the two outermost sections of a valley, either

    rest      one of the buffers that live there and have `solid` on the floor lies on it, or
    leave     none does. All of them lie on something that ends higher: `least` rises for all, to
              the lowest end of a buffer to come that may lie under one of them

These exclude one another, so each packing whose buffers all lie as low as they can is reached by
one path, and a search that ends without one proves that none exists. Of all such sections the one
with the fewest choices is taken first, then the one with the least to spare: C - level(s) -
rest(s), of which `leave` needs some.

To choose a section, a decision looks at all floors and at the members of outermost sections; to
carry it out, at the neighbours of what it places or lifts and the members of their sections. It is
undone from trails of what it changed, whose length bounds the memory.
"""

from __future__ import annotations

import numpy as np

from graphc.jit import compiled
from graphc.packing.branching import list_choices, lowest_support, most_constrained
from graphc.packing.problem import Integers
from graphc.packing.tables import (
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
"""How a search ends."""

DEPTH = 8
"""Decisions on one path, for each buffer."""

SECTION, NEXT, END, TRIED, LIFTS, RAISES = range(6)
"""Columns of the path, a row a decision: its section; where in the list of choices the next one and
the end are; the buffer that is tried, or -1; how long the two trails were before."""


@compiled
def _settle(offset: int, size: int, pins: Table, start: int, stop: int) -> int:
    """The lowest offset from `offset` up at which `size` fits between pins [start, stop)."""
    for pin in range(start, stop):
        # Pins ascend, so what was passed lies below for good and one walk is enough.
        if offset < pins[pin, 1] and pins[pin, 0] < offset + size:
            offset = pins[pin, 1]
    return offset


@compiled
def _lift(
    buffer: int, offset: int, is_solid: bool, buffers: Table, pins: Table, lifted: Table, lifts: int
) -> int:
    """Raise the least offset of a buffer, keeping what it was; returns the length of the trail."""
    start, stop = buffers[buffer, PINS], buffers[buffer + 1, PINS]
    offset = _settle(offset, buffers[buffer, SIZE], pins, start, stop)
    # Taken back from the end of the trail, so a buffer that is lifted twice gets its oldest values.
    least, solid = buffers[buffer, LEAST], buffers[buffer, SOLID]
    lifted[lifts, 0], lifted[lifts, 1], lifted[lifts, 2] = buffer, least, solid
    buffers[buffer, LEAST] = max(least, offset)
    # A buffer that leaves has nothing under it yet: solid stays below least, and until something
    # does lie there it may not rest.
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
    """Raise the floors of sections [begin, end); does what is still to come fit above them?"""
    for section in range(begin, end):
        floor = FAR
        for entry in range(sections[section, MEMBERS], sections[section + 1, MEMBERS]):
            buffer = members[entry]
            if not buffers[buffer, PLACED] and buffers[buffer, LEAST] < floor:
                floor = buffers[buffer, LEAST]
        # A section whose floor is as it was cannot have come to overflow: rest only falls.
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
    """Place a buffer as low as it may lie.

    Returns whether its neighbours fit, which sections [begin, end) changed, and the trail's length.
    """
    # On the floor, where least and solid are the same: it rests on something.
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
            # The rest stays as it is: the decision is taken back as far as its trail goes.
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
    """Lift all buffers off the floor of a section; returns the same as `_rest`."""
    floor, begin, end = sections[section, LEVEL], section, section + 1
    spare = capacity - sections[section, REST] - floor
    # Nothing may rest on the floor then, so at least one unit of this section would be lost.
    if spare <= 0:
        return False, begin, end, lifts
    support = lowest_support(section, buffers, sections, neighbours, members)
    # The next buffer of the section rests on the support; or, where pins have lifted some, it lies
    # above the floor already. Without pins the search has not been seen to err, and plans rely on
    # the work that it counts.
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
    """Begin a decision: choose its section and list what can rest there, from `begin` on."""
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
    """Carry out what a decision tries; returns the same as `_rest` and `_leave`."""
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
    """Undo what a decision has tried, by its row of the path; returns how many buffers it frees."""
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
    """Place nothing, with everything on the bottom or on its pins; whether that fits."""
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
    """Look for a packing within `capacity`; return how it ended, decisions and work.

    A packing found is the column OFFSET. `pins` are bytes [start, end), ascending for each buffer.
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
        if decision[NEXT] > decision[END]:  # `leave`, which is tried last at END, has been too
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
        # The members of all sections that changed, which is what a decision's time goes by.
        work += sections[end, MEMBERS] - sections[begin, MEMBERS]
        if fits:
            fits, raises = _fits(begin, end, capacity, buffers, sections, members, raised, raises)
        # What is too deep for the trails is not followed, and then the end proves nothing.
        is_new = fits and (
            depth < deepest
            and lifts + count < len(lifted)
            and raises + floors < len(raised)
            and decision[END] + count < len(choices)
        )
        is_complete = is_complete and is_new == fits
        depth += is_new
