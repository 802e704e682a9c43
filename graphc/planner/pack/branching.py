"""Branching rule of the exact search in `graphc.planner.pack.search`.

A decision takes one of the two end sections of a valley. Either one of the buffers that may rest on
the floor is placed there, or all of them leave the floor for a support that ends higher. Terms are
defined in `graphc.planner.pack.search`.
"""

from __future__ import annotations

from graphc.jit import compiled
from graphc.planner.pack.problem import Integers
from graphc.planner.pack.tables import (
    FAR,
    FIRST,
    LAST,
    LEAST,
    LEVEL,
    MEMBERS,
    NEIGHBOURS,
    PLACED,
    RANK,
    REST,
    SIZE,
    SOLID,
    Table,
)


@compiled
def _choices(section: int, floor: int, buffers: Table, sections: Table, members: Integers) -> int:
    """Return the number of buffers of a section that can rest on its floor."""
    count = 0
    for entry in range(sections[section, MEMBERS], sections[section + 1, MEMBERS]):
        buffer = members[entry]
        is_low = buffers[buffer, LEAST] == floor and buffers[buffer, SOLID] == floor
        if is_low and not buffers[buffer, PLACED]:
            count += 1
    return count


@compiled
def most_constrained(capacity: int, buffers: Table, sections: Table, members: Integers) -> int:
    """Return the end section of a valley with the fewest choices, and of these the one with the
    least spare bytes."""
    count = len(sections) - 1
    fewest, least_spare, chosen = FAR, FAR, 0
    wall, begin = FAR, 0
    while begin < count:
        floor, end = sections[begin, LEVEL], begin + 1
        while end < count and sections[end, LEVEL] == floor:
            end += 1
        # Comparisons are strict because runs are maximal. A section without unplaced buffers has
        # the floor `FAR`: it is a wall for others and not a valley.
        if floor < wall and (end == count or floor < sections[end, LEVEL]):
            for section in range(begin, end, max(1, end - 1 - begin)):  # the first and the last
                spare = capacity - sections[section, REST] - floor
                choices = _choices(section, floor, buffers, sections, members)
                # `leave` counts as a choice unless it is ruled out immediately.
                if spare > 0:
                    choices += 1
                # A section without choices ends this branch, so it is best found first.
                if choices < fewest or (choices == fewest and spare < least_spare):
                    fewest, least_spare, chosen = choices, spare, section
        wall, begin = floor, end
    return chosen


@compiled
def list_choices(
    section: int, buffers: Table, sections: Table, members: Integers, choices: Integers, begin: int
) -> int:
    """Write a section's buffers that can rest on its floor to `choices[begin:end]`, by rank; return
    `end`."""
    end, floor = begin, sections[section, LEVEL]
    for entry in range(sections[section, MEMBERS], sections[section + 1, MEMBERS]):
        buffer = members[entry]
        is_low = buffers[buffer, LEAST] == floor and buffers[buffer, SOLID] == floor
        if is_low and not buffers[buffer, PLACED]:
            place = end
            # Insertion sort: few buffers rest on one floor, and it allocates nothing.
            while place > begin and buffers[choices[place - 1], RANK] > buffers[buffer, RANK]:
                choices[place] = choices[place - 1]
                place -= 1
            choices[place] = buffer
            end += 1
    return end


@compiled
def lowest_support(
    section: int, buffers: Table, sections: Table, neighbours: Integers, members: Integers
) -> int:
    """Return the lowest end of a buffer that can support a buffer leaving the floor of a section.
    Buffers that leave the floor of this section too are excluded: the lowest of them cannot rest on
    another.
    """
    lowest, floor = FAR, sections[section, LEVEL]
    for entry in range(sections[section, MEMBERS], sections[section + 1, MEMBERS]):
        buffer = members[entry]
        if buffers[buffer, PLACED] or buffers[buffer, LEAST] != floor:
            continue
        for edge in range(buffers[buffer, NEIGHBOURS], buffers[buffer + 1, NEIGHBOURS]):
            other = neighbours[edge]
            # In this section it leaves the floor with the others; in another it may support them.
            is_here = buffers[other, FIRST] <= section < buffers[other, LAST]
            leaves_too = buffers[other, LEAST] == floor and is_here
            if not buffers[other, PLACED] and not leaves_too:
                lowest = min(lowest, buffers[other, LEAST] + buffers[other, SIZE])
    return lowest
