"""Columns of the tables that search.py and branching.py share: buffers and sections.

Compiled code handles integer tables better than objects, so each column has a number.
"""

from __future__ import annotations

from graphc.planner.pack.problem import Integers

Table = Integers
"""A matrix of integers."""

FAR = 1 << 62
"""A number that is larger than every offset."""

FIRST, LAST, SIZE, RANK, NEIGHBOURS, PINS, PLACED, OFFSET, LEAST, SOLID = range(10)
"""Columns of buffers: sections `[first, last)`, size, rank; the starts of the lists of neighbors
and of pins. A search changes the others: the placed flag, the offset, and the offsets `least` and
`solid` of search.py."""

MEMBERS, REST, LEVEL = range(3)
"""Columns of sections: the start of the list of members, and the values `rest` and `level` of
search.py.

Both tables have one extra row, for the ends of the last lists.
"""
