"""Cross entropies of linear layers in chunks of rows, if the logits have no other use.

The logits are then never stored as a whole, see `graphc.ops.linear_cross_entropy`. The pass finds a
linear layer and its cross entropy in the graph that a user or an importer built. The caller decides
whether the result lowers the peak.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphc.ir import builder
from graphc.ir.graph import Graph, Node, Value
from graphc.ir.rewrite import Rewriter
from graphc.ops.choice import cast
from graphc.ops.cross_entropy import SoftmaxCrossEntropy
from graphc.ops.elementwise import scale
from graphc.ops.linear_cross_entropy import sum_of_losses
from graphc.ops.matmul import Linear, Matmul
from graphc.ops.reduce import Mean, Sum
from graphc.ops.row_cross_entropy import CrossEntropy, CrossEntropyAttributes
from graphc.ops.shape import Reshape

CHUNKS = (8, 4, 2)
"""Possible numbers of chunks; the first one that divides the number of rows is used."""

LEAST_ROWS = 256
"""The fewest rows of a chunk. Smaller products would take longer than one product of all rows."""


@dataclass(frozen=True, slots=True)
class _Loss:
    """A cross entropy, and the linear layer that produces its logits.

    No other node reads the logits.
    """

    layer: Node
    losses: Node
    total: Node
    """The node that reduces the losses of all rows to a number; it may be `losses` itself."""
    chunks: int

    @property
    def is_mean(self) -> bool:
        return not isinstance(self.total.op, Sum)


def chunk_losses(graph: Graph) -> Graph:
    """Compute each cross entropy in chunks of rows if nothing else reads its logits.

    Returns the same graph if it has no such cross entropy, or too few rows. The pass changes bits.
    It is for training only, since the chunked loss has no second derivative.
    """
    found = {loss.total: loss for node in graph.nodes if (loss := _loss(graph, node)) is not None}
    if not found:
        return graph
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        fresh = rewriter.put(node, builder.copy(node, rewriter.values(node.inputs)))
        if node in found:
            with builder.in_phase("forward", node.scope):
                rewriter.stand(node.outputs[:1], (_by_parts(found[node], fresh, rewriter),))
    for value in rewriter.kept:
        builder.keep(value)
    return builder.trace(rewriter.outputs)


def _loss(graph: Graph, node: Node) -> _Loss | None:
    """Return the cross entropy that `node` computes, if it can be chunked, else None."""
    if isinstance(node.op, SoftmaxCrossEntropy):
        total: Node | None = node
    elif isinstance(node.op, CrossEntropy) and len(node.inputs) == 2:
        total = _sum_of(graph, node.outputs[0])
    else:
        return None
    logits = node.inputs[0]
    layer = _layer(graph, logits)
    if total is None or layer is None or any(graph.uses[value] for value in node.outputs[1:]):
        return None
    if layer.output.shape != logits.shape:  # a row of the layer is not a row of the loss
        return None
    rows = logits.shape[0]
    chunks = next((n for n in CHUNKS if rows % n == 0 and rows >= n * LEAST_ROWS), None)
    alike = {(each.phase, each.mirror, each.segment) for each in (layer, node, total)}
    if chunks is None or alike != {("forward", 0, "")}:
        return None
    return _Loss(layer, node, total, chunks)


def _sum_of(graph: Graph, losses: Value) -> Node | None:
    """Return the only consumer of the per-row losses if it is their sum or mean, else None."""
    readers = [graph.nodes[step] for step in graph.uses[losses]]
    if len(readers) != 1 or losses in graph.visible or not isinstance(readers[0].op, Sum | Mean):
        return None
    return readers[0] if readers[0].output.shape == () else None


def _layer(graph: Graph, logits: Value) -> Node | None:
    """Return the linear layer that produces the logits; None if logits have other uses."""
    while len(graph.uses[logits]) == 1 and logits not in graph.visible:
        node = logits.node
        if node is None or isinstance(node.op, Linear | Matmul):
            return node if node is not None and _is_layer(node) else None
        if not isinstance(node.op, Reshape):
            return None
        logits = node.inputs[0]
    return None


def _is_layer(node: Node) -> bool:
    """Return True if a node is rows times a weight (outputs, inputs), without activation."""
    a, x = node.attributes, node.inputs[0]
    if isinstance(node.op, Linear):
        return bool(a.activation == "none")
    is_plain = (a.transpose_a, a.transpose_b, a.wide, a.accumulate) == (False, True, False, False)
    return is_plain and (x.type.rank, node.inputs[1].type.rank) == (2, 2)


def _by_parts(loss: _Loss, fresh: Node, rewriter: Rewriter) -> Value:
    """Return the value that replaces a loss, computed in chunks.

    `fresh` is the copy of the loss's node in the new graph.
    """
    x, weight, *bias = rewriter.values(loss.layer.inputs)
    labels = rewriter.value(loss.losses.inputs[1])
    is_plain = isinstance(loss.losses.op, SoftmaxCrossEntropy)
    attributes = CrossEntropyAttributes() if is_plain else loss.losses.attributes
    total = sum_of_losses(x, weight, bias[0] if bias else None, labels, attributes, loss.chunks)
    if loss.is_mean:
        total = scale(total, 1 / labels.shape[0])
    return cast(total, loss.total.outputs[0].type.dtype)
