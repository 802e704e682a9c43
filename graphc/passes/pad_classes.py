"""The number of classes rounded up to a multiple of 8, for products of 16-bit operands on a GPU.

cuBLASLt uses Hopper's matrix instructions only for extents that are multiples of 8. The logits of
50,257 words, and the gradient of their rows, take 5 to 6 times as long as those of 50,264.

The pass adds classes whose logit is the most negative number, so their probability and the gradient
of their logit are 0. The weight gets rows of zeros for them, and one more column, which holds the
bias: zeros, and the most negative number for the added classes. The rows get a column of ones. So
one product computes all logits, and nothing else touches the tensor of logits.

The gradients of weight and bias are cut back to their classes. All other values keep their shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from graphc.ir import builder
from graphc.ir.graph import Graph, Node, Value
from graphc.ir.op import is_16_bit
from graphc.ir.rewrite import Rewriter
from graphc.ir.types import DType, bfloat16, float16
from graphc.ops.choice import Cast
from graphc.ops.concat import concat
from graphc.ops.indexing import slice_
from graphc.ops.linear_cross_entropy import CrossEntropyWithSlopes, GradientSum
from graphc.ops.matmul import Linear, Matmul, matmul
from graphc.ops.reduce import Sum
from graphc.ops.shape import full, reshape

MULTIPLE = 8
"""Extents of 16-bit products on tensor cores should be multiples of this number."""

LEAST_CLASSES = 1024
"""Products with fewer classes are not padded, since they cost less than the additional kernels."""

LOWEST: Mapping[DType, float] = {float16: -65504.0, bfloat16: -(2.0**127)}
"""For each 16-bit dtype, a number so far below any logit that its softmax is 0."""


def pad_classes(graph: Graph) -> Graph:
    """Pad the classes of cross entropies that are computed in chunks, with their gradients.

    Returns the same graph if there are none. The pass changes bits, since sums have other orders.
    """
    layers = {node: layer for node in graph.nodes if (layer := _layer(graph, node)) is not None}
    return _Padded(graph, layers.values()).run() if layers else graph


def _layer(graph: Graph, losses: Node) -> Node | None:
    """Return the product that computes the logits of a chunk's losses, if padding makes it faster.

    Returns None otherwise.
    """
    if not isinstance(losses.op, CrossEntropyWithSlopes) or losses.attributes.smoothing:
        return None
    logits = losses.inputs[0]
    while logits.node is not None and len(graph.uses[logits]) == 1 and logits not in graph.visible:
        if not isinstance(logits.node.op, Cast):
            return logits.node if _is_slow(logits.node) else None
        logits = logits.node.inputs[0]
    return None


def _is_slow(node: Node) -> bool:
    """Return True if a node multiplies rows by a weight (classes, inputs) and padding pays.

    Padding pays for 16-bit operands if the number of classes is large and no multiple of
    `MULTIPLE`.
    """
    a = node.attributes
    if type(node.op) is Matmul:
        is_layer = (a.transpose_a, a.transpose_b, a.accumulate) == (False, True, False)
    else:
        is_layer = isinstance(node.op, Linear) and a.activation == "none"
    if not is_layer or node.output.type.rank != 2:
        return False
    classes = node.output.shape[1]
    return classes >= LEAST_CLASSES and bool(classes % MULTIPLE) and is_16_bit(node.inputs[1])


@dataclass(frozen=True, slots=True)
class _Wide:
    """A value with additional classes on one axis, and the number of its original classes."""

    value: Value
    axis: int
    classes: int

    def cut(self) -> Value:
        """Return a view of the original classes."""
        return slice_(self.value, (*(slice(None),) * self.axis, slice(0, self.classes)))


class _Padded:
    """The rewriting of one graph; `wide` maps values to their padded replacements."""

    def __init__(self, graph: Graph, layers: Iterable[Node]) -> None:
        self.rewriter, self.layers = Rewriter(graph), frozenset(layers)
        self.wide: dict[Value, _Wide] = {}
        self.weights: dict[Value, Value] = {}
        """The weight of a layer → its padded replacement."""

    def run(self) -> Graph:
        for node in self.rewriter.graph.nodes:
            with builder.in_phase(node.phase, node.scope, node.segment):
                found = self.replacement(node)
                if isinstance(found, _Wide):
                    self.wide[node.outputs[-1]] = found
                elif found is not None:
                    self.rewriter.stand(node.outputs, (found,))
                else:
                    self.rewriter.put(node, builder.copy(node, self.cut(node.inputs)))
        given = self.rewriter.graph.outputs
        outputs = dict(zip(given, self.cut(given.values()), strict=True))
        for value in self.rewriter.kept:
            builder.keep(value)
        return builder.trace(outputs)

    def cut(self, values: Iterable[Value]) -> tuple[Value, ...]:
        """Return the replacements of values in their original shapes, with padding cut off."""
        values = tuple(values)
        for value in values:
            if value in self.wide and value not in self.rewriter.standing:
                self.rewriter.stand((value,), (self.wide[value].cut(),))
        return self.rewriter.values(values)

    def replacement(self, node: Node) -> _Wide | Value | None:
        """Return the padded or adapted replacement of a node's last output.

        Returns None if the node is copied unchanged, on operands without padding.
        """
        if node in self.layers:
            return self.logits(node)
        given = [self.wide.get(value) for value in node.inputs]
        first = given[0] if given else None
        if first is None:
            return None
        if type(node.op) is Matmul:
            return self.product(node, first)
        is_over_rows = isinstance(node.op, Sum) and node.output.shape == (first.classes,)
        if is_over_rows or (isinstance(node.op, GradientSum) and None not in given):
            operands = [each.value for each in given if each is not None]
            return _Wide(self.same(node, operands), 0, first.classes)
        operands = [first.value, *self.cut(node.inputs[1:])]
        if isinstance(node.op, CrossEntropyWithSlopes):
            padding = first.value.shape[1] - first.classes
            return _Wide(self.same(node, operands, padding=padding), 1, first.classes)
        if isinstance(node.op, Cast):
            return _Wide(self.same(node, operands), first.axis, first.classes)
        return None

    def logits(self, node: Node) -> _Wide:
        """Return the logits of a linear layer, with additional classes."""
        rows, weight, *bias = self.cut(node.inputs)
        classes, inputs = weight.shape
        tail = _rounded(inputs + 1) - inputs
        if node.inputs[1] not in self.weights:
            self.weights[node.inputs[1]] = _padded_weight(weight, bias, tail)
        ones = _column(rows.shape[0], 1.0, tail, rows.type.dtype)
        product = matmul(concat((rows, ones), 1), self.weights[node.inputs[1]], transpose_b=True)
        return _Wide(product, 1, classes)

    def product(self, node: Node, slope: _Wide) -> _Wide | Value | None:
        """Return the replacement of a product whose first operand is the gradient of logits.

        The product is the gradient of the weight, which stays padded, or that of the rows, which
        needs no padding. Returns None for other products.
        """
        flags, other = node.attributes, node.inputs[1]
        if slope.axis == 0 or flags.transpose_b:
            return None
        if flags.transpose_a:
            (rows,) = self.cut((other,))
            return _Wide(matmul(slope.value, rows, transpose_a=True), 0, slope.classes)
        if other not in self.weights:
            return None
        inputs = slice_(self.weights[other], (slice(None), slice(0, other.shape[1])))
        return matmul(slope.value, inputs)

    def same(self, node: Node, operands: Sequence[Value], **changes: int) -> Value:
        """Apply a node's op to padded operands with changed attributes; return the last output.

        Its other outputs have their original shapes, and replace those of the node.
        """
        context = builder.Context(node.scope, node.mirror, node.phase, node.segment)
        attributes = replace(node.attributes, **changes) if changes else node.attributes
        fresh = builder.create(node.op, operands, attributes, context)
        self.rewriter.stand(node.outputs[:-1], fresh.outputs[:-1])
        return fresh.outputs[-1]


def _rounded(extent: int) -> int:
    return -(-extent // MULTIPLE) * MULTIPLE


def _padded_weight(weight: Value, bias: Sequence[Value], tail: int) -> Value:
    """Return a weight (classes, inputs) with additional rows, and `tail` additional columns.

    The first additional column holds the bias.
    """
    (classes, inputs), dtype = weight.shape, weight.type.dtype
    added = _rounded(classes) - classes
    if bias:
        zeros = full((classes, tail - 1), 0.0, dtype)
        columns = concat((reshape(bias[0], (classes, 1)), zeros), 1)
    else:
        columns = full((classes, tail), 0.0, dtype)
    below = full((added, inputs), 0.0, dtype), _column(added, LOWEST[dtype], tail, dtype)
    return concat((concat((weight, columns), 1), concat(below, 1)), 0)


def _column(rows: int, value: float, columns: int, dtype: DType) -> Value:
    """Return a matrix whose first column is `value` and whose others are zeros."""
    return concat((full((rows, 1), value, dtype), full((rows, columns - 1), 0.0, dtype)), 1)
