"""Where a forward pass is narrow: few bytes cross from what ran to what will run."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from graphc.ir.graph import Graph, Value
from graphc.planning.blocks import boundaries, narrow


@dataclass(frozen=True, slots=True)
class Run:
    """Forward steps of a graph, in order: a forward pass, or one micro-batch's."""

    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """The place behind step `step`, and the forward values that cross it."""

    step: int
    bytes: int
    crossing: tuple[Value, ...]


def forward_runs(graph: Graph) -> list[Run]:
    """Forward passes in order, parted by gradient nodes."""
    runs: list[Run] = []
    steps: list[int] = []
    for step, node in enumerate(graph.nodes):
        if node.phase == "forward":
            steps.append(step)
        elif node.phase == "gradient" and steps:
            runs.append(Run(tuple(steps)))
            steps = []
    return [*runs, Run(tuple(steps))] if steps else runs


def cuts(graph: Graph, run: Run) -> list[Cut]:
    """Places where a single value crosses, or that are narrowest among their neighbours.

    Where the user has marked segments, their ends are the only candidates.
    """
    marked = {
        before
        for before, after in itertools.pairwise(run.steps)
        if graph.nodes[before].segment != graph.nodes[after].segment
    }
    widths = [(size, len(crossing)) for _, size, crossing in _boundaries(graph, run)]
    chosen = marked or {run.steps[index] for index in narrow(widths)}
    return [
        Cut(step, size, tuple(crossing))
        for step, size, crossing in _boundaries(graph, run)
        if step in chosen and crossing
    ]


def _boundaries(graph: Graph, run: Run) -> Iterator[tuple[int, int, Collection[Value]]]:
    """What crosses each place; views count as what they show."""
    nodes, roots = graph.nodes, graph.roots
    return boundaries(
        run.steps,
        lambda step: (roots[value] for value in nodes[step].inputs),
        lambda step: nodes[step].outputs if nodes[step].op.views is None else (),
        lambda value: value.type.bytes,
    )
