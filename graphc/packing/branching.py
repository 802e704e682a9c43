"""Where the search of search.py branches next, and into what.

A decision takes one outermost section of a valley: one of the buffers that may rest on its floor
does, or all of them leave it for something that ends higher. The words are those of search.py.

Numba keeps the machine code of `search` by the date of search.py alone, which has to be touched
where something changes here.
"""

from __future__ import annotations

from graphc.jit import compiled
from graphc.packing.problem import Integers
from graphc.packing.tables import (
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
    """How many buffers of a section can rest on its floor."""
    count = 0
    for entry in range(sections[section, MEMBERS], sections[section + 1, MEMBERS]):
        buffer = members[entry]
        is_low = buffers[buffer, LEAST] == floor and buffers[buffer, SOLID] == floor
        if is_low and not buffers[buffer, PLACED]:
            count += 1
    return count


@compiled
def most_constrained(capacity: int, buffers: Table, sections: Table, members: Integers) -> int:
    """The outermost section of a valley with the fewest choices, then with the least to spare."""
    count = len(sections) - 1
    fewest, least_spare, chosen = FAR, FAR, 0
    wall, begin = FAR, 0
    while begin < count:
        floor, end = sections[begin, LEVEL], begin + 1
        while end < count and sections[end, LEVEL] == floor:
            end += 1
        # Strictly, as runs are as long as they can be; where nothing is to come the floor is FAR,
        # which is a wall to others and no valley itself.
        if floor < wall and (end == count or floor < sections[end, LEVEL]):
            for section in range(begin, end, max(1, end - 1 - begin)):  # the first and the last
                spare = capacity - sections[section, REST] - floor
                choices = _choices(section, floor, buffers, sections, members)
                # `leave` is a choice too, where it is not ruled out at once.
                if spare > 0:
                    choices += 1
                # A section without any choice ends this branch, so it is best found first.
                if choices < fewest or (choices == fewest and spare < least_spare):
                    fewest, least_spare, chosen = choices, spare, section
        wall, begin = floor, end
    return chosen


@compiled
def list_choices(
    section: int, buffers: Table, sections: Table, members: Integers, choices: Integers, begin: int
) -> int:
    """Write what can rest on the floor into `choices` from `begin`, by rank; returns the end."""
    end, floor = begin, sections[section, LEVEL]
    for entry in range(sections[section, MEMBERS], sections[section + 1, MEMBERS]):
        buffer = members[entry]
        is_low = buffers[buffer, LEAST] == floor and buffers[buffer, SOLID] == floor
        if is_low and not buffers[buffer, PLACED]:
            place = end
            # An insertion sort: few rest on one floor, and nothing has to be allocated.
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
    """The lowest end of what may lie under the buffers that leave the floor of a section.

    Under the lowest of them lies none of them: it either misses the section or lies higher.
    """
    lowest, floor = FAR, sections[section, LEVEL]
    for entry in range(sections[section, MEMBERS], sections[section + 1, MEMBERS]):
        buffer = members[entry]
        if buffers[buffer, PLACED] or buffers[buffer, LEAST] != floor:
            continue
        for edge in range(buffers[buffer, NEIGHBOURS], buffers[buffer + 1, NEIGHBOURS]):
            other = neighbours[edge]
            # In this section it leaves the floor with the others; in another it may lie under them.
            is_here = buffers[other, FIRST] <= section < buffers[other, LAST]
            leaves_too = buffers[other, LEAST] == floor and is_here
            if not buffers[other, PLACED] and not leaves_too:
                lowest = min(lowest, buffers[other, LEAST] + buffers[other, SIZE])
    return lowest
