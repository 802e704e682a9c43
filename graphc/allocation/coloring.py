"""Storages share blocks by colouring the graph of their conflicts.

This is the costly way that the paper and MXNet's note on memory name beside counters: storages that
are alive at one step conflict, each is given a colour that none it conflicts with has, and a colour
is a block as large as its largest storage. Colours are networkx's greedy ones, for two orders: by
falling number of conflicts (Welsh and Powell, 1967), and by saturation, the one with most colours
around it next (Brélaz, 1979). The order in which fewer bytes are needed counts.

It knows sizes only when it is done, and looks at all pairs: a baseline for tables, not a strategy
to use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphc.errors import OptionError

if TYPE_CHECKING:
    import networkx

MOST_COLORED = 2000
"""Of more storages there are millions of conflicts, which networkx holds as dictionaries."""

MOST_SATURATED = 500
"""Of more storages only the first order is tried: the second looks at all that are left each time,
which would take minutes."""


class ColoringError(OptionError):
    """There are more storages than a colouring is made of."""


def color(tenants: Sequence[tuple[int, int, int]]) -> list[int]:
    """The block of each (first, last, bytes), half open, given in order of `first`.

    Raises `ColoringError` for more than `MOST_COLORED`.
    """
    if len(tenants) > MOST_COLORED:
        raise ColoringError(
            f"allocate='coloring' looks at all pairs of values, at most {MOST_COLORED:,} of them, "
            f"got {len(tenants):,}; choose 'sharing' or 'packed', which are near linear"
        )
    import networkx  # slow to import, and nothing else of an allocation needs it

    graph = _conflicts(tenants)
    found = [networkx.greedy_color(graph, strategy="largest_first")]
    if len(tenants) <= MOST_SATURATED:
        found.append(networkx.greedy_color(graph, strategy="saturation_largest_first"))
    blocks = [[colors[index] for index in range(len(tenants))] for colors in found]
    return min(blocks, key=lambda each: _bytes(tenants, each))


def _conflicts(tenants: Sequence[tuple[int, int, int]]) -> networkx.Graph[int]:
    """Which of them are alive at one step."""
    import networkx

    graph: networkx.Graph[int] = networkx.Graph()
    graph.add_nodes_from(range(len(tenants)))
    alive: list[int] = []
    for index, (first, *_) in enumerate(tenants):
        alive = [other for other in alive if tenants[other][1] > first]
        graph.add_edges_from((other, index) for other in alive)
        alive.append(index)
    return graph


def _bytes(tenants: Sequence[tuple[int, int, int]], blocks: Sequence[int]) -> int:
    """The bytes of all blocks."""
    sizes: dict[int, int] = {}
    for (*_, size), block in zip(tenants, blocks, strict=True):
        sizes[block] = max(sizes.get(block, 0), size)
    return sum(sizes.values())
