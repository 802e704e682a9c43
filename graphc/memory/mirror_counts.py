"""Mirror counts of Alg. 2 of Chen et al. (2016): how often the gradient graph recomputes a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from graphc.ir.graph import Node, Value

MirrorCount = Callable[[Node], int]


def mirror_counts(
    nodes: Sequence[Node], mirror: MirrorCount, kept: Iterable[Value]
) -> dict[Node, int]:
    """Return a dict with the mirror count m of each node.

    It is 0 for nodes with an effect or a `kept` output. A view has the count of the node that it
    views, because it has no bytes of its own.
    """
    fixed = {value.node for value in kept}
    # Go backward, so that one walk follows views of views.
    for node in reversed(nodes):
        if node in fixed and (viewed := node.viewed) is not None:
            fixed.add(viewed.node)
    counts: dict[Node, int] = {}
    for node in nodes:
        # Go forward, so that a viewed node gets its count before its views.
        if node in fixed or node.op.has_effect:
            counts[node] = 0
        elif (viewed := node.viewed) is not None:
            # A viewed value may be produced elsewhere, as gathered parameters are: then it is not
            # recomputed.
            counts[node] = 0 if viewed.node is None else counts.get(viewed.node, 0)
        else:
            counts[node] = mirror(node)
    return counts
