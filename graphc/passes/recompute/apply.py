"""A training graph with its copies, from the name of a policy."""

from __future__ import annotations

from collections.abc import Callable

from graphc.allocation.allocate import Allocation
from graphc.ir.graph import Graph
from graphc.passes.place_updates import place_updates
from graphc.passes.precision import casts_a_parameter
from graphc.passes.recompute.graph_steps import GraphSteps
from graphc.passes.recompute.policies import (
    Counts,
    cheap,
    mirror,
    recursive,
    segments,
    sublinear,
)
from graphc.passes.recompute.sequence import materialise, mirrored_sequence
from graphc.target import CPU_TARGET, Target

POLICIES: dict[str, Callable[[Graph, Target], Counts]] = {
    "none": lambda graph, target: {},
    "mirror": lambda graph, target: mirror(graph),
    "cheap": lambda graph, target: cheap(graph),
    "segments": lambda graph, target: segments(graph),
    "sublinear": lambda graph, target: sublinear(graph, _judge(graph, target)),
    "recursive": lambda graph, target: recursive(graph),
}
"""The paper's. What is asked for bytes or work is in passes/recompute/budget_planner.py."""


def recompute(graph: Graph, policy: str, target: Target = CPU_TARGET) -> Graph:
    """A training graph without copies, with what `policy` computes again.

    16-bit copies of parameters are made again under every policy.
    """
    sequence = sequence_of(graph, policy, target)
    if len(sequence) == len(graph.nodes):
        return graph
    return with_sequence(graph, sequence)


def sequence_of(graph: Graph, policy: str, target: Target = CPU_TARGET) -> list[int]:
    """The sequence that `policy` runs, as positions of the graph's nodes."""
    casts = {node: 1 for node in graph.nodes if casts_a_parameter(node)}
    counts = {**casts, **POLICIES[policy](graph, target)}
    return _mirrored(graph, counts) if counts else list(range(len(graph.nodes)))


def with_sequence(graph: Graph, sequence: list[int]) -> Graph:
    """A sequence as a graph, updates behind the last reader of what they replace."""
    return place_updates(materialise(graph, sequence))


def _mirrored(graph: Graph, counts: Counts) -> list[int]:
    return mirrored_sequence(graph, lambda node: counts.get(node, 0))


def _judge(graph: Graph, target: Target) -> Callable[[Counts], int]:
    """The most bytes live at one node, with overwriting and workspaces."""
    graph_steps = GraphSteps(Allocation(graph, target), lambda node: 0.0, feature_maps_only=False)
    return lambda counts: graph_steps.steps.peak(
        graph_steps.without_views(_mirrored(graph, counts))
    )
