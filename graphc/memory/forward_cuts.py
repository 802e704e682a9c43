"""Narrow cuts of a forward pass: few bytes cross from executed to later steps.

The values that cross the position after step i come from steps up to i and are used by later steps
of the same pass. Cuts are positions that one value crosses, or that no more bytes cross than any of
8 positions on either side (narrow.py, in one walk over the pass). They are the candidate stage
splitting points C of Alg. 3 in Chen et al. (2016). Besides states and inputs, what crosses the cut
before a stage suffices to recompute it. Views are not counted; what they view crosses instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from graphc.ir.graph import Graph, Value
from graphc.memory.order.forward_passes import ForwardPass
from graphc.planner.recompute.narrow import crossings, narrow


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut of a forward pass: the position after step `step`, and the values that cross it, with
    their bytes."""

    step: int
    bytes: int
    crossing: tuple[Value, ...]


def cuts(graph: Graph, forward_pass: ForwardPass) -> list[Cut]:
    """Return the cuts of a forward pass: positions that one value crosses, or that are locally
    narrowest. If the user has marked segments, their ends are the only candidates.
    """
    marked = {
        before
        for before, after in itertools.pairwise(forward_pass.steps)
        if graph.nodes[before].segment != graph.nodes[after].segment
    }
    widths = [(size, len(crossing)) for _, size, crossing in _crossings(graph, forward_pass)]
    chosen = marked or {forward_pass.steps[index] for index in narrow(widths)}
    return [
        Cut(step, size, tuple(crossing))
        for step, size, crossing in _crossings(graph, forward_pass)
        if step in chosen and crossing
    ]


def _crossings(
    graph: Graph, forward_pass: ForwardPass
) -> Iterator[tuple[int, int, Collection[Value]]]:
    """Yield (step, bytes, values) for the values that cross each position, with viewed values for
    views."""
    nodes, roots = graph.nodes, graph.roots
    return crossings(
        forward_pass.steps,
        lambda step: (roots[value] for value in nodes[step].inputs),
        lambda step: nodes[step].outputs if nodes[step].op.views is None else (),
        lambda value: value.type.bytes,
    )
