"""Synchronized batch norms, with statistics of the batches of all ranks.

Each rank computes the mean and variance of its own batch, and gathers those of all ranks. Let R
ranks have batches of equal size, with means m_r and variances v_r. The joint mean is the mean of
the m_r. The joint variance is the mean of v_r + (m_r - mean)² (Chan, Golub and LeVeque, 1979), in
which no large terms cancel. That is one collective of two numbers per channel, and one for the
gradient, which the gradient rules of the ops provide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphc.ir import builder
from graphc.ir.graph import Graph, Node, Value
from graphc.ir.rewrite import Rewriter
from graphc.ops.batch_norm import BatchNorm, by_factor, moved_statistics
from graphc.ops.choice import cast
from graphc.ops.collective import all_gather
from graphc.ops.concat import concat, split
from graphc.ops.elementwise import add, mul, sub
from graphc.ops.power import power
from graphc.ops.reduce import mean
from graphc.ops.shape import reshape
from graphc.passes.micro_batches import MicroBatch


@dataclass(frozen=True)
class SynchronizedNorms:
    """A forward graph with synchronized batch norms.

    `joint` maps each norm to the mean over all ranks and the inverse of the standard deviation.
    """

    graph: Graph
    ranks: int
    joint: Mapping[Node, tuple[Value, Value]]

    def effects(self, node: Node, batches: Sequence[MicroBatch]) -> tuple[Node, ...]:
        """Return the updates of a norm's running statistics, one per step, by joint statistics."""
        means, inverses = ([_copied(v, b) for b in batches] for v in self.joint[node])
        count = self.ranks * BatchNorm().frame(node).count
        return moved_statistics(batches[0].nodes[node], means, inverses, count)


def synchronized_norms(graph: Graph, ranks: int) -> SynchronizedNorms:
    """Return the forward graph with batch norms over all ranks; other nodes are not changed."""
    rewriter = Rewriter(graph)
    joint: dict[Node, tuple[Value, Value]] = {}
    for node in graph.nodes:
        fresh = rewriter.put(node, builder.copy(node, rewriter.values(node.inputs)))
        if isinstance(node.op, BatchNorm):
            with builder.in_phase("forward", node.scope, node.segment):
                joint[fresh] = _joint(fresh, ranks)
                y = _normalised(fresh, *joint[fresh])
            rewriter.stand(node.outputs[:1], (y,))
    if not joint:
        return SynchronizedNorms(graph, ranks, {})
    for value in rewriter.kept:
        builder.keep(value)
    return SynchronizedNorms(builder.trace(rewriter.outputs), ranks, joint)


def _joint(node: Node, ranks: int) -> tuple[Value, Value]:
    """Return the joint mean over all ranks, and the joint inverse standard deviation.

    The latter is 1 / √(variance + epsilon).
    """
    _, own_mean, own_inverse = node.outputs
    channels = own_mean.type.elements
    own = concat([own_mean, power(own_inverse, -2.0)])
    means, variances = split(all_gather(reshape(own, (1, 2 * channels)), ranks), [channels] * 2, 1)
    joint_mean = mean(means, 0)
    apart = sub(means, joint_mean)
    return joint_mean, power(mean(add(variances, mul(apart, apart)), 0), -0.5)


def _normalised(node: Node, joint_mean: Value, inverse: Value) -> Value:
    x, scale, bias, *_ = node.inputs
    return by_factor(x, joint_mean, mul(cast(scale, inverse.type.dtype), inverse), bias)


def _copied(value: Value, batch: MicroBatch) -> Value:
    assert value.node is not None
    return batch.nodes[value.node].outputs[value.index]
