"""Gradient accumulation: one copy of the forward graph per micro-batch.

The loss of a step is the mean of the losses of all its batches: micro-batches, and those of other
ranks. Losses mark their sums over the batch with ops of `graphc.ops.batch_total`. The copies
combine marked sums, so that the mean equals the loss of the joint batch. Counts, such as the number
of rows that are not ignored, are computed before the first copy, since every copy divides by their
total.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from graphc.ir import builder
from graphc.ir.ancestors import ancestors
from graphc.ir.graph import Graph, Node, Value
from graphc.ir.rewrite import Rewriter
from graphc.ops.batch_total import BatchCount, BatchSum, BatchTotal
from graphc.ops.collective import all_reduce
from graphc.ops.elementwise import add, scale
from graphc.ops.indexing import slice_
from graphc.ops.random import RandomOp


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A copy of a forward graph on one micro-batch; `nodes` maps each node to its copy."""

    graph: Graph
    nodes: dict[Node, Node]


def micro_batches(graph: Graph, count: int, ranks: int = 1) -> Iterator[MicroBatch]:
    """Yield `count` copies of a forward graph on slices of its inputs; states are shared.

    Inputs get a new first axis of `count`; those with a default stay as they are. Random ops of
    each copy draw from separate streams. A copy is created when the caller requests it, so nodes
    created between two copies run between them. Marked sums are combined over the copies of all
    `ranks`.
    """
    batches = count * ranks
    if batches == 1 or (count == 1 and not _has_totals(graph)):
        yield MicroBatch(graph, {node: node for node in graph.nodes})
        return
    whole: dict[Value, Value] = {
        source: builder.input(source.name, (count, *source.shape), source.type.dtype)
        for source in graph.inputs
        if source.default is None and count > 1
    }
    streams = 1 + max(
        (node.attributes.stream for node in graph.nodes if isinstance(node.op, RandomOp)), default=0
    )
    copies: Iterable[_Copy] = (
        _Copy(graph, whole, number, batches, streams * number) for number in range(count)
    )
    counts = [node for node in graph.nodes if isinstance(node.op, BatchCount)]
    if counts:
        copies = list(copies)
        _join(counts, copies, ranks)
    for copy in copies:
        copy.add_copies(graph.nodes)
        yield MicroBatch(copy.result(), {node: copy.stand_ins[node] for node in graph.nodes})


def _has_totals(graph: Graph) -> bool:
    return any(isinstance(node.op, BatchTotal) for node in graph.nodes)


def _join(counts: Sequence[Node], copies: Sequence[_Copy], ranks: int) -> None:
    """Replace each count by its mean over all copies and ranks.

    `counts` are the nodes that compute them in the original graph.
    """
    for node in counts:
        for copy in copies:
            copy.add_copies(ancestors(node.inputs))
        with builder.in_phase("forward", node.scope):
            total = functools.reduce(add, (copy.value(node.inputs[0]) for copy in copies))
            if ranks > 1:
                total = all_reduce(total, ranks)
            mean = scale(total, 1 / (len(copies) * ranks))
        for copy in copies:
            copy.counts[node] = mean


class _Copy(Rewriter):
    """A copy of a forward graph for one of `batches` micro-batches of all ranks.

    `counts` has the mean of each count over all of them.
    """

    def __init__(
        self,
        graph: Graph,
        whole: Mapping[Value, Value],
        number: int,
        batches: int,
        first_stream: int,
    ) -> None:
        with builder.in_phase("forward"):
            slices = {source: slice_(given, number) for source, given in whole.items()}
        super().__init__(graph, slices)
        self.batches = batches
        self.first_stream = first_stream
        self.counts: dict[Node, Value] = {}

    def add_copies(self, nodes: Iterable[Node]) -> None:
        """Append copies of `nodes` to the graph, except of nodes that have a copy."""
        for node in nodes:
            if node in self.stand_ins:
                continue
            attributes = node.attributes
            if isinstance(node.op, RandomOp):
                attributes = replace(attributes, stream=attributes.stream + self.first_stream)
            inputs, original = self.operands(node), self.original(node)
            self.put(node, builder.copy(node, inputs, attributes=attributes, copy_of=original))

    def operands(self, node: Node) -> tuple[Value, ...]:
        """Return the operands of a node's copy, with marked counts and sums combined.

        A marked count is replaced by its mean over all batches. The operand of a marked sum is
        multiplied by the number of batches.
        """
        inputs = self.values(node.inputs)
        if node in self.counts:
            return (self.counts[node],)
        if isinstance(node.op, BatchSum):
            with builder.in_phase(node.phase, node.scope):
                return (scale(inputs[0], self.batches),)
        return inputs
