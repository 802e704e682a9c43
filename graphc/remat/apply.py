"""A training graph with its copies, from the name of a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from graphc.allocation.allocate import Allocation
from graphc.ir.graph import Graph
from graphc.passes.place_updates import place_updates
from graphc.passes.precision import casts_a_parameter
from graphc.remat.training_graph import TrainingGraph
from graphc.remat.policies import (
    Counts,
    cheap,
    mirror,
    recursive,
    segments,
    sublinear,
)
from graphc.remat.schedule import materialise, mirrored_sequence

POLICIES: dict[str, Callable[[Allocation], Counts]] = {
    "none": lambda given: {},
    "mirror": lambda given: mirror(given.graph),
    "segments": lambda given: segments(given.graph),
    "cheap": lambda given: cheap(given.graph),
    "sublinear": lambda given: sublinear(given.graph, _judge(given)),
    "recursive": lambda given: recursive(given.graph),
}
"""The paper's; of equally good plans, the first one's counts.

What is asked for bytes or work is in passes/recompute/budget_planner.py."""


def recompute(given: Allocation, policy: str) -> Graph:
    """A training graph without copies, with what `policy` computes again.

    16-bit copies of parameters are made again under every policy.
    """
    sequence = sequence_of(given, policy)
    if len(sequence) == len(given.graph.nodes):
        return given.graph
    return with_sequence(given.graph, sequence)


def sequence_of(given: Allocation, policy: str) -> list[int]:
    """The sequence that `policy` runs, as positions of the graph's nodes."""
    graph = given.graph
    casts = {node: 1 for node in graph.nodes if casts_a_parameter(node)}
    counts = {**casts, **POLICIES[policy](given)}
    return _mirrored(graph, counts) if counts else list(range(len(graph.nodes)))


class Sequences:
    """The sequences of some policies for one graph, each made when it is first asked for."""

    def __init__(self, given: Allocation, policies: Sequence[str]) -> None:
        self._given, self._policies = given, policies
        self._known: dict[str, list[int]] = {}

    def of(self, policy: str) -> list[int]:
        """That of one policy."""
        if policy not in self._known:
            self._known[policy] = sequence_of(self._given, policy)
        return self._known[policy]

    def distinct(self) -> Iterator[str]:
        """The names of the policies, without those that run the same as one before."""
        seen: list[list[int]] = []
        for policy in self._policies:
            if self.of(policy) not in seen:
                seen.append(self.of(policy))
                yield policy


def with_sequence(graph: Graph, sequence: list[int]) -> Graph:
    """A sequence as a graph, updates behind the last reader of what they replace."""
    return place_updates(materialise(graph, sequence))


def _mirrored(graph: Graph, counts: Counts) -> list[int]:
    return mirrored_sequence(graph, lambda node: counts.get(node, 0))


def _judge(given: Allocation) -> Callable[[Counts], int]:
    """The most bytes live at one node, with overwriting and workspaces."""
    graph_steps = TrainingGraph(given, lambda node: 0.0, feature_maps_only=False)
    return lambda counts: graph_steps.steps.peak(
        graph_steps.without_views(_mirrored(given.graph, counts))
    )
