"""Block sharing by greedy coloring of the interference graph.

Chen et al. (2016) and MXNet's note on memory name this costly alternative to counters. Storages
that are live at the same step interfere and get different colors. A color is a block of the size of
its largest storage. networkx colors greedily in two orders: by falling degree (Welsh and Powell,
1967) and by saturation (DSATUR; Brélaz, 1979). The coloring that needs fewer bytes is used.

Coloring ignores sizes and looks at all pairs, so it serves as a baseline in tables and is not
recommended for use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphc.errors import OptionError

if TYPE_CHECKING:
    import networkx

MOST_COLORED = 2000
"""Maximum number of storages; for more, networkx would store millions of edges as dictionaries."""

MOST_SATURATED = 500
"""Maximum number of storages for DSATUR, which scans all uncolored storages at each step.

Above it, DSATUR would take minutes, so only the order by degree is tried.
"""


class ColoringError(OptionError):
    """The error for more than `MOST_COLORED` storages."""


def color(tenants: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return a block number for each tenant, given as half-open (first, last, bytes) by `first`.

    Raises `ColoringError` for more than `MOST_COLORED`.
    """
    if len(tenants) > MOST_COLORED:
        raise ColoringError(
            "allocate='coloring' compares all pairs of values and supports at most "
            f"{MOST_COLORED:,} values, got {len(tenants):,}; choose 'sharing' or 'packed', whose "
            "time grows almost linearly"
        )
    import networkx  # slow to import, and nothing else of an allocation needs it

    graph = _conflicts(tenants)
    found = [networkx.greedy_color(graph, strategy="largest_first")]
    if len(tenants) <= MOST_SATURATED:
        found.append(networkx.greedy_color(graph, strategy="saturation_largest_first"))
    blocks = [[colors[index] for index in range(len(tenants))] for colors in found]
    return min(blocks, key=lambda each: _bytes(tenants, each))


def _conflicts(tenants: Sequence[tuple[int, int, int]]) -> networkx.Graph[int]:
    """Return the interference graph: edges join tenants that are live at the same step."""
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
    """Return the sum of the bytes of all blocks, each of the size of its largest tenant."""
    sizes: dict[int, int] = {}
    for (*_, size), block in zip(tenants, blocks, strict=True):
        sizes[block] = max(sizes.get(block, 0), size)
    return sum(sizes.values())
