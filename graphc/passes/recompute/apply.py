"""From a policy's name to a training graph with its copies."""

from __future__ import annotations

import functools
from collections.abc import Callable

from graphc.ir.graph import Graph
from graphc.passes.inplace import assign_storages
from graphc.passes.liveness import liveness, peak_bytes
from graphc.passes.precision import casts_a_parameter
from graphc.passes.recompute import policies
from graphc.passes.recompute.policies import Counts
from graphc.passes.recompute.sequence import materialise, mirrored_sequence
from graphc.passes.schedule import place_updates

POLICIES: dict[str, Callable[[Graph], Counts]] = {
    "none": lambda graph: {},
    "mirror": policies.mirror,
    "cheap": policies.cheap,
    "segments": policies.segments,
    "sublinear": lambda graph: policies.sublinear(graph, functools.partial(bytes_with, graph)),
    "recursive": policies.recursive,
}


def recompute(graph: Graph, policy: str) -> Graph:
    """A training graph without copies, with what `policy` computes again.

    16-bit copies of parameters are made again under every policy.
    """
    casts = {node: 1 for node in graph.nodes if casts_a_parameter(node)}
    counts = {**casts, **POLICIES[policy](graph)}
    return with_counts(graph, counts) if counts else graph


def with_counts(graph: Graph, counts: Counts) -> Graph:
    """Mirror counts as a graph, updates behind the last reader of what they replace."""
    return place_updates(_with_copies(graph, counts))


def _with_copies(graph: Graph, counts: Counts) -> Graph:
    return materialise(graph, mirrored_sequence(graph, lambda node: counts.get(node, 0)))


def bytes_with(graph: Graph, counts: Counts) -> int:
    """The most bytes of values alive at one node, with these copies and with overwriting."""
    graph = _with_copies(graph, counts)
    storages = assign_storages(graph, liveness(graph), overwrite=True).storages
    return peak_bytes((s.first, s.last, s.bytes) for s in storages)
