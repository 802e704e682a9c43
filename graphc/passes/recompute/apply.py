"""A training graph with its copies, from the name of a policy."""

from __future__ import annotations

from collections.abc import Callable

from graphc.ir.device import CPU, Device
from graphc.ir.graph import Graph
from graphc.passes.place_updates import place_updates
from graphc.passes.precision import casts_a_parameter
from graphc.passes.recompute import policies
from graphc.passes.recompute.graph_steps import GraphSteps
from graphc.passes.recompute.policies import Counts
from graphc.passes.recompute.sequence import materialise, mirrored_sequence
from graphc.plans.memory_plan import ALIGNMENT

POLICIES: dict[str, Callable[[Graph, Device], Counts]] = {
    "none": lambda graph, device: {},
    "mirror": lambda graph, device: policies.mirror(graph),
    "cheap": lambda graph, device: policies.cheap(graph),
    "segments": lambda graph, device: policies.segments(graph),
    "sublinear": lambda graph, device: policies.sublinear(graph, _judge(graph, device)),
    "recursive": lambda graph, device: policies.recursive(graph),
}
"""The paper's. What is asked for bytes or work is in passes/recompute/optimal.py."""


def recompute(graph: Graph, policy: str, device: Device = CPU) -> Graph:
    """A training graph without copies, with what `policy` computes again.

    16-bit copies of parameters are made again under every policy.
    """
    sequence = sequence_of(graph, policy, device)
    if len(sequence) == len(graph.nodes):
        return graph
    return with_sequence(graph, sequence)


def sequence_of(graph: Graph, policy: str, device: Device = CPU) -> list[int]:
    """The sequence that `policy` runs, as positions of the graph's nodes."""
    casts = {node: 1 for node in graph.nodes if casts_a_parameter(node)}
    counts = {**casts, **POLICIES[policy](graph, device)}
    return _mirrored(graph, counts) if counts else list(range(len(graph.nodes)))


def with_sequence(graph: Graph, sequence: list[int]) -> Graph:
    """A sequence as a graph, updates behind the last reader of what they replace."""
    return place_updates(materialise(graph, sequence))


def _mirrored(graph: Graph, counts: Counts) -> list[int]:
    return mirrored_sequence(graph, lambda node: counts.get(node, 0))


def _judge(graph: Graph, device: Device) -> Callable[[Counts], int]:
    """The most bytes live at one node, with overwriting and workspaces."""
    graph_steps = GraphSteps(graph, lambda node: 0.0, device, ALIGNMENT, feature_maps_only=False)
    return lambda counts: graph_steps.steps.peak(
        graph_steps.without_views(_mirrored(graph, counts))
    )
