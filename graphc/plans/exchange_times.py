"""Cost model of collectives, by latency α and bandwidth β of links.

For B bytes, N ranks and p passes over the bytes (2 for an all-reduce, which is a reduce-scatter and
an all-gather; 1 for others):

    ring       p (N - 1) (α + B / (N β))                    bandwidth-optimal, on the slowest link
    tree       p (⌈log₂ N⌉ α + B / β)                       few messages
    machines   p (G - 1) (α + B / (G β)) within machines of G ranks, and then the lesser of the two
               above between N / G machines, for a G-th of the bytes: each rank of a machine has its
               own adapter

A collective takes the minimum of the three, as libraries aim to. The model ignores contention,
copies and kernels of a library, late ranks, and links shared with others.

Rings: Patarasuk and Yuan (2009). Trees: Sanders, Speck and Träff (2009).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from graphc.devices.links import Link, Links
from graphc.ir.graph import Node
from graphc.ops.collective import Collective

LARGE = 2**30
"""Bytes for which the duration of a collective depends only on bandwidth, not on latency."""


def _ring(passes: float, size: float, ranks: int, link: Link) -> float:
    return passes * link.seconds(ranks - 1, (ranks - 1) / ranks * size)


def _tree(passes: float, size: float, ranks: int, link: Link) -> float:
    return passes * link.seconds(math.ceil(math.log2(ranks)), size if ranks > 1 else 0.0)


def _machines(passes: float, size: float, ranks: int, links: Links) -> float:
    inside = min(ranks, links.ranks_inside)
    machines = -(-ranks // inside)
    between = min(form(passes, size / inside, machines, links.between) for form in (_ring, _tree))
    return _ring(passes, size, inside, links.inside) + between


Algorithm = Callable[[float, float, int, Links], float]
"""A function (passes, bytes, ranks, links) → seconds of one algorithm."""

ALGORITHMS: Mapping[str, Algorithm] = {
    "ring": lambda p, size, ranks, links: _ring(p, size, ranks, links.slowest(ranks)),
    "tree": lambda p, size, ranks, links: _tree(p, size, ranks, links.slowest(ranks)),
    "machines": _machines,
}


def least(passes: float, size: float, ranks: int, links: Links) -> float:
    """Return the seconds of the fastest algorithm."""
    return min(form(passes, size, ranks, links) for form in ALGORITHMS.values())


def exchange_seconds(node: Node, links: Links, algorithm: Algorithm = least) -> float:
    """Return the seconds of the collective that a node begins."""
    assert isinstance(node.op, Collective)
    return algorithm(node.op.passes, node.op.longest(node), node.attributes.ranks, links)


def all_reduce_link(ranks: int, links: Links) -> Link:
    """Return a link whose latency and bandwidth are those of a whole all-reduce over ranks."""
    latency = least(2, 0, ranks, links)
    slope = least(2, LARGE, ranks, links) - latency
    return Link(latency, LARGE / slope if slope else math.inf)
