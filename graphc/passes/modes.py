"""Differences between training and inference, and numbering of random streams.

Numbers make the random ops of equal networks draw equal bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphc.ir import builder
from graphc.ir.graph import Graph, Node
from graphc.ir.op import Op
from graphc.ir.rewrite import Rewriter, rewrite
from graphc.ops.changed_state import Carrier
from graphc.ops.random import RandomOp
from graphc.ops.update import Increment
from graphc.passes.micro_batches import MicroBatch
from graphc.passes.synchronized_norms import SynchronizedNorms


def number_streams(graph: Graph) -> Graph:
    """Renumber the streams of random ops from 0 in node order.

    A stream selects a sequence of random numbers, so equal networks draw equal bits. Nodes that
    share a stream, such as a dropout and its gradient, still share it afterwards.
    """
    numbers: dict[int, int] = {}

    def replacement(node: Node) -> Node:
        if not isinstance(node.op, RandomOp):
            return node
        stream = numbers.setdefault(node.attributes.stream, len(numbers))
        return replace(node, attributes=replace(node.attributes, stream=stream))

    return rewrite(graph, replacement)


def to_inference(graph: Graph) -> Graph:
    """Replace nodes that compute something else in inference, such as batch norms and dropout."""
    if all(type(node.op).inference is Op.inference for node in graph.nodes):
        return graph
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        fresh = rewriter.put(node, builder.copy(node, rewriter.values(node.inputs)))
        with builder.in_phase("forward", node.scope):
            other = node.op.inference(fresh)
        if other is not None:
            rewriter.stand(node.outputs[:1], (other,))
    for value in rewriter.kept:
        builder.keep(value)
    return builder.trace(rewriter.outputs)


def training_effects(
    graph: Graph, batches: Sequence[MicroBatch], norms: SynchronizedNorms | None = None
) -> list[Node]:
    """Return the state updates of forward nodes, such as running statistics, without duplicates.

    `norms` has the updates of norms over all ranks.
    """
    effects: dict[object, Node] = {}
    for node in graph.nodes:
        with builder.in_phase("update", node.scope):
            if norms is not None and node in norms.joint:
                found = norms.effects(node, batches)
            else:
                found = node.op.effects([batch.nodes[node] for batch in batches])
        for effect in found:
            effects.setdefault((effect.op.name, effect.inputs, effect.attributes), effect)
    return list(effects.values())


def without_changes(graph: Graph) -> Graph:
    """Return the graph without `Carrier` nodes.

    They attach state changes or gradients to values.
    """
    if not any(isinstance(node.op, Carrier) for node in graph.nodes):
        return graph
    plain = rewrite(graph, lambda n: n.inputs[0] if isinstance(n.op, Carrier) else n)
    return replace(builder.trace(plain.outputs, plain.effects), kept=plain.kept)


def count_step() -> Node:
    """Return the update that increments the step counter."""
    with builder.in_phase("update"):
        return builder.apply(Increment, builder.STEP)
