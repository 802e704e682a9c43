"""Gradient accumulation: one copy of the forward graph per micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from graphc.ir import builder
from graphc.ir.graph import Graph, Node, Value
from graphc.ir.rewrite import Rewriter
from graphc.ops.indexing import slice_
from graphc.ops.random import RandomOp


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A copy of a forward graph on one micro-batch; `nodes` maps each node to its copy."""

    graph: Graph
    nodes: dict[Node, Node]


def micro_batches(graph: Graph, count: int) -> Iterator[MicroBatch]:
    """Yield `count` copies of a forward graph on slices of its inputs; states are shared.

    Inputs get a new first axis of `count`; those with a default stay as they are. Random ops of
    each copy draw from separate streams. A copy is created when the caller requests it, so nodes
    created between two copies run between them.
    """
    if count == 1:
        yield MicroBatch(graph, {node: node for node in graph.nodes})
        return
    whole = {
        source: builder.input(source.name, (count, *source.shape), source.type.dtype)
        for source in graph.inputs
        if source.default is None
    }
    streams = 1 + max(
        (node.attributes.stream for node in graph.nodes if isinstance(node.op, RandomOp)), default=0
    )
    for number in range(count):
        with builder.in_phase("forward"):
            slices: dict[Value, Value] = {
                source: slice_(batches, number) for source, batches in whole.items()
            }
        yield _copy(graph, slices, streams * number)


def _copy(graph: Graph, slices: Mapping[Value, Value], first_stream: int) -> MicroBatch:
    rewriter = Rewriter(graph, slices)
    for node in graph.nodes:
        attributes = node.attributes
        if isinstance(node.op, RandomOp):
            attributes = replace(attributes, stream=attributes.stream + first_stream)
        inputs, original = rewriter.values(node.inputs), rewriter.original(node)
        rewriter.put(node, builder.copy(node, inputs, attributes=attributes, copy_of=original))
    return MicroBatch(rewriter.result(), rewriter.stand_ins)
