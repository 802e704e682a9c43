"""Cross entropies of linear layers by parts of the rows, where nothing else reads the logits.

`graphc.ops.linear_cross_entropy` says why. The pass finds what a user has written as a layer and a
loss of it, or an importer has; whether that lowers the peak is for its caller to see.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphc.ir import builder
from graphc.ir.graph import Graph, Node, Value
from graphc.ir.rewrite import Rewriter
from graphc.ops.cross_entropy import SoftmaxCrossEntropy
from graphc.ops.elementwise import scale
from graphc.ops.linear_cross_entropy import sum_of_losses
from graphc.ops.matmul import Linear, Matmul
from graphc.ops.reduce import Mean, Sum
from graphc.ops.row_cross_entropy import CrossEntropy, CrossEntropyAttributes
from graphc.ops.shape import Reshape

CHUNKS = (8, 4, 2)
"""The numbers of parts, of which the first that divides the rows is taken."""

LEAST_ROWS = 256
"""The rows of a part: with fewer, products take longer than they would together."""


@dataclass(frozen=True, slots=True)
class _Loss:
    """A loss of logits that a linear layer makes and nothing else reads."""

    layer: Node
    losses: Node
    total: Node
    """What reduces the losses of rows, maybe the same node."""
    chunks: int

    @property
    def is_mean(self) -> bool:
        return not isinstance(self.total.op, Sum)


def chunk_losses(graph: Graph) -> Graph:
    """Compute each cross entropy whose logits are read by nothing else by parts of the rows.

    The same graph where there is none, or too few rows. It changes bits, and is for training: what
    it makes has no second derivative.
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
    """The loss that a node is, where it can be chunked."""
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
    if layer.output.shape != logits.shape:  # a row of the layer is no row of the loss
        return None
    rows = logits.shape[0]
    chunks = next((n for n in CHUNKS if rows % n == 0 and rows >= n * LEAST_ROWS), None)
    alike = {(each.phase, each.mirror, each.segment) for each in (layer, node, total)}
    if chunks is None or alike != {("forward", 0, "")}:
        return None
    return _Loss(layer, node, total, chunks)


def _sum_of(graph: Graph, losses: Value) -> Node | None:
    """The one reader of the losses of rows, if that is their sum or mean."""
    readers = [graph.nodes[step] for step in graph.uses[losses]]
    if len(readers) != 1 or losses in graph.visible or not isinstance(readers[0].op, Sum | Mean):
        return None
    return readers[0] if readers[0].output.shape == () else None


def _layer(graph: Graph, logits: Value) -> Node | None:
    """The layer of plain rows and a weight that makes logits, which only their loss reads."""
    while len(graph.uses[logits]) == 1 and logits not in graph.visible:
        node = logits.node
        if node is None or isinstance(node.op, Linear | Matmul):
            return node if node is not None and _is_layer(node) else None
        if not isinstance(node.op, Reshape):
            return None
        logits = node.inputs[0]
    return None


def _is_layer(node: Node) -> bool:
    """Whether a product is one of rows by a weight, (outputs, inputs), with nothing behind it."""
    a, x = node.attributes, node.inputs[0]
    if isinstance(node.op, Linear):
        return bool(a.activation == "none")
    is_plain = (a.transpose_a, a.transpose_b, a.wide, a.accumulate) == (False, True, False, False)
    return is_plain and (x.type.rank, node.inputs[1].type.rank) == (2, 2)


def _by_parts(loss: _Loss, fresh: Node, rewriter: Rewriter) -> Value:
    """What stands for a loss, of which `fresh` is the copy."""
    x, weight, *bias = rewriter.values(loss.layer.inputs)
    labels = rewriter.value(loss.losses.inputs[1])
    is_plain = isinstance(loss.losses.op, SoftmaxCrossEntropy)
    attributes = CrossEntropyAttributes() if is_plain else loss.losses.attributes
    total = sum_of_losses(x, weight, bias[0] if bias else None, labels, attributes, loss.chunks)
    return scale(total, 1 / labels.shape[0]) if loss.is_mean else total
