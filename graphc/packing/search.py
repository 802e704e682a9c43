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

from graphc.packing.compiled import compiled
from graphc.packing.problem import Flags, Integers

FAR = 1 << 62
"""Above every offset."""

FOUND, NONE_EXISTS, LIMIT_REACHED = 1, 0, -1
"""How a search ends."""

DEPTH = 8
"""Decisions on one path, for each buffer."""


@compiled
def _settle(offset: int, size: int, pins: Integers, start: int, stop: int) -> int:
    """The lowest offset from `offset` up at which `size` fits between pins [start, stop)."""
    for pin in range(start, stop):
        if offset < pins[pin, 1] and pins[pin, 0] < offset + size:
            offset = pins[pin, 1]
    return offset


@compiled
def _choices(
    section: int,
    floor: int,
    placed: Flags,
    least: Integers,
    solid: Integers,
    members: Integers,
    starts: Integers,
) -> int:
    """How many buffers of a section can rest on its floor."""
    count = 0
    for entry in range(starts[section], starts[section + 1]):
        buffer = members[entry]
        if not placed[buffer] and least[buffer] == floor and solid[buffer] == floor:
            count += 1
    return count


@compiled
def _most_constrained(
    level: Integers,
    rest: Integers,
    capacity: int,
    placed: Flags,
    least: Integers,
    solid: Integers,
    members: Integers,
    starts: Integers,
) -> int:
    """The outermost section of a valley with the fewest choices, then with the least to spare."""
    sections = len(level)
    fewest, least_spare, chosen = FAR, FAR, 0
    wall, begin = FAR, 0
    while begin < sections:
        floor, end = level[begin], begin + 1
        while end < sections and level[end] == floor:
            end += 1
        if floor < wall and (end == sections or floor < level[end]):
            for section in range(begin, end, max(1, end - 1 - begin)):  # the first and the last
                spare = capacity - rest[section] - floor
                count = _choices(section, floor, placed, least, solid, members, starts)
                if spare > 0:
                    count += 1
                if count < fewest or (count == fewest and spare < least_spare):
                    fewest, least_spare, chosen = count, spare, section
        wall, begin = floor, end
    return chosen


@compiled
def _list_choices(
    section: int,
    floor: int,
    placed: Flags,
    least: Integers,
    solid: Integers,
    rank: Integers,
    members: Integers,
    starts: Integers,
    choices: Integers,
    begin: int,
) -> int:
    """Write what can rest on the floor into `choices` from `begin`, by rank; returns the end."""
    end = begin
    for entry in range(starts[section], starts[section + 1]):
        buffer = members[entry]
        if not placed[buffer] and least[buffer] == floor and solid[buffer] == floor:
            place = end
            while place > begin and rank[choices[place - 1]] > rank[buffer]:
                choices[place] = choices[place - 1]
                place -= 1
            choices[place] = buffer
            end += 1
    return end


@compiled
def _lowest_support(
    section: int,
    floor: int,
    placed: Flags,
    least: Integers,
    first: Integers,
    last: Integers,
    size: Integers,
    members: Integers,
    starts: Integers,
    neighbours: Integers,
    degrees: Integers,
) -> int:
    """The lowest end of what may lie under the buffers that leave the floor of a section.

    Under the lowest of them lies none of them: it either misses the section or lies higher.
    """
    lowest = FAR
    for entry in range(starts[section], starts[section + 1]):
        buffer = members[entry]
        if placed[buffer] or least[buffer] != floor:
            continue
        for edge in range(degrees[buffer], degrees[buffer + 1]):
            other = neighbours[edge]
            leaves_too = least[other] == floor and first[other] <= section < last[other]
            if not placed[other] and not leaves_too:
                lowest = min(lowest, least[other] + size[other])
    return lowest


@compiled
def _lift(
    buffer: int,
    offset: int,
    is_solid: bool,
    least: Integers,
    solid: Integers,
    size: Integers,
    pins: Integers,
    pin_starts: Integers,
    lifted: Integers,
    count: int,
) -> int:
    """Raise the least offset of a buffer, keeping what it was; returns the length of the trail."""
    start, stop = pin_starts[buffer], pin_starts[buffer + 1]
    offset = _settle(offset, size[buffer], pins, start, stop)
    lifted[count, 0], lifted[count, 1], lifted[count, 2] = buffer, least[buffer], solid[buffer]
    least[buffer] = max(least[buffer], offset)
    if is_solid:
        solid[buffer] = max(solid[buffer], offset)
    return count + 1


@compiled
def _fits(
    begin: int,
    end: int,
    capacity: int,
    placed: Flags,
    least: Integers,
    level: Integers,
    rest: Integers,
    members: Integers,
    starts: Integers,
    raised: Integers,
    count: int,
) -> tuple[bool, int]:
    """Raise the floors of sections [begin, end); does what is still to come fit above them?"""
    for section in range(begin, end):
        floor = FAR
        for entry in range(starts[section], starts[section + 1]):
            buffer = members[entry]
            if not placed[buffer] and least[buffer] < floor:
                floor = least[buffer]
        if floor != level[section]:
            raised[count, 0], raised[count, 1] = section, level[section]
            count += 1
            level[section] = floor
            if floor < FAR and floor + rest[section] > capacity:
                return False, count
    return True, count


@compiled
def search(
    first: Integers,
    last: Integers,
    size: Integers,
    rank: Integers,
    neighbours: Integers,
    degrees: Integers,
    members: Integers,
    starts: Integers,
    pins: Integers,
    pin_starts: Integers,
    capacity: int,
    limit: int,
    offsets: Integers,
) -> tuple[int, int, int]:
    """Fill `offsets` with a packing within `capacity`; return how it ended, decisions and work.

    Buffers live in sections [first, last); `members` lists the buffers of each section, `starts`
    says where. `neighbours` and `degrees` list in the same way whom each buffer lives with, `pins`
    and `pin_starts` bytes [start, end) that are taken for it, in order. After `limit` decisions
    the search ends.
    """
    buffers, sections = len(size), len(starts) - 1
    placed = np.zeros(buffers, np.bool_)
    least, solid = np.zeros(buffers, np.int64), np.zeros(buffers, np.int64)
    rest, level = np.zeros(sections, np.int64), np.zeros(sections, np.int64)
    # What each decision changed, to take it back.
    deepest = DEPTH * buffers
    lifted = np.empty((len(neighbours) + DEPTH * len(members) + buffers, 3), np.int64)
    raised = np.empty((2 * DEPTH * len(members) + 2 * sections, 2), np.int64)
    choices = np.empty(DEPTH * len(members) + buffers, np.int64)
    lifts, raises = 0, 0
    # A decision: its section and floor, what is still to be tried, and what is tried now.
    where, following = np.zeros(deepest + 2, np.int64), np.zeros(deepest + 2, np.int64)
    ends, tried = np.zeros(deepest + 2, np.int64), np.zeros(deepest + 2, np.int64)
    lifts_before, raises_before = np.zeros(deepest + 2, np.int64), np.zeros(deepest + 2, np.int64)
    for buffer in range(buffers):
        lifts = _lift(buffer, 0, True, least, solid, size, pins, pin_starts, lifted, 0)
        for section in range(first[buffer], last[buffer]):
            rest[section] += size[buffer]
    lifts = 0
    fits, raises = _fits(
        0, sections, capacity, placed, least, level, rest, members, starts, raised, 0
    )
    if not fits or (least + size).max() > capacity:
        return NONE_EXISTS, 0, 0
    raises = 0
    depth, left, decisions, work = 0, buffers, 0, 0
    is_new, is_complete = True, True
    while True:
        if is_new:  # begin a decision: its section, and what can rest there
            if left == 0:
                return FOUND, decisions, work
            section = _most_constrained(
                level, rest, capacity, placed, least, solid, members, starts
            )
            begin = ends[depth - 1] if depth > 0 else 0
            where[depth], following[depth], tried[depth] = section, begin, -1
            ends[depth] = _list_choices(
                section, level[section], placed, least, solid, rank, members, starts, choices, begin
            )
            lifts_before[depth], raises_before[depth] = lifts, raises
            is_new = False
        else:  # take back what was tried
            while lifts > lifts_before[depth]:
                lifts -= 1
                least[lifted[lifts, 0]] = lifted[lifts, 1]
                solid[lifted[lifts, 0]] = lifted[lifts, 2]
            while raises > raises_before[depth]:
                raises -= 1
                level[raised[raises, 0]] = raised[raises, 1]
            buffer = tried[depth]
            if buffer >= 0:
                placed[buffer] = False
                left += 1
                for section in range(first[buffer], last[buffer]):
                    rest[section] += size[buffer]
        if following[depth] > ends[depth]:  # all choices have been tried, and `leave`
            depth -= 1
            if depth < 0:
                return (NONE_EXISTS if is_complete else LIMIT_REACHED), decisions, work
            continue
        decisions += 1
        if decisions > limit:
            return LIMIT_REACHED, decisions, work
        section = where[depth]
        floor = level[section]
        begin, end = section, section + 1
        fits = True
        if following[depth] < ends[depth]:  # rest
            buffer = choices[following[depth]]
            top = floor + size[buffer]
            tried[depth], offsets[buffer] = buffer, floor
            placed[buffer] = True
            left -= 1
            begin, end = first[buffer], last[buffer]
            for section in range(begin, end):
                rest[section] -= size[buffer]
            for edge in range(degrees[buffer], degrees[buffer + 1]):
                other = neighbours[edge]
                if not placed[other] and solid[other] < top:
                    lifts = _lift(
                        other, top, True, least, solid, size, pins, pin_starts, lifted, lifts
                    )
                    begin, end = min(begin, first[other]), max(end, last[other])
                    if least[other] + size[other] > capacity:
                        fits = False
                        break
        else:  # leave
            tried[depth] = -1
            spare = capacity - rest[section] - floor
            support = FAR
            if spare > 0:
                support = _lowest_support(
                    section, floor, placed, least, first, last, size,
                    members, starts, neighbours, degrees,
                )  # fmt: skip
            fits = support - floor <= spare
            for entry in range(starts[section], starts[section + 1]):
                other = members[entry]
                if fits and not placed[other] and least[other] == floor:
                    lifts = _lift(
                        other, support, False, least, solid, size, pins, pin_starts, lifted, lifts
                    )
                    begin, end = min(begin, first[other]), max(end, last[other])
                    fits = least[other] + size[other] <= capacity
        following[depth] += 1
        work += starts[end] - starts[begin]
        if fits:
            fits, raises = _fits(
                begin, end, capacity, placed, least, level, rest, members, starts, raised, raises
            )
        has_room = (
            depth < deepest
            and lifts + buffers < len(lifted)
            and raises + sections < len(raised)
            and ends[depth] + buffers < len(choices)
        )
        if fits and has_room:
            depth += 1
            is_new = True
        elif fits:  # too deep for the trails: not followed, so the end proves nothing any more
            is_complete = False
