"""The columns of the tables that search.py and branching.py share: buffers and sections.

Machine code takes tables of whole numbers more readily than objects, so a column has a number.
"""

from __future__ import annotations

from graphc.packing.problem import Integers

Table = Integers
"""Whole numbers in rows and columns."""

FAR = 1 << 62
"""Above every offset."""

FIRST, LAST, SIZE, RANK, NEIGHBOURS, PINS, PLACED, OFFSET, LEAST, SOLID = range(10)
"""Columns of buffers: sections [first, last), size, rank; where the lists of whom it lives with and
of the bytes taken for it begin; and, changed by a search, whether and where it is placed, least and
solid."""

MEMBERS, REST, LEVEL = range(3)
"""Columns of sections: where the list of their buffers begins; and, changed by a search, rest and
level. Both tables have one row more, where the last lists end."""
