"""Fused attention and its gradient, without the matrix of scores in memory.

Problem: softmax(scale · q · kᵀ) · v for a head of n positions has n² weights. A block can hold only
one tile of them at a time.

Forward, a block owns some rows of queries and iterates over tiles of keys in order. For each row it
keeps three numbers: `peak`, the highest score so far; `total`, the sum of exp(score - peak); and
`result`, the same sum weighted by rows of v. The invariant: after each tile these three are those
of a softmax over the keys so far. A tile that raises the peak first scales both sums by exp(old -
new peak). This is online softmax (Milakov and Gimelshein, 2018; Dao et al., 2022). At the end y =
result / total. The gradient recovers the row's weights from stats = peak + log(total) alone.

With dropout, the mask is drawn again wherever a tile of weights is computed. Dropped weights count
in `total`, but not in `result`.

A mask hides scores, or is added to them. A row in which everything is hidden has a sum of 0, which
is replaced by 1. So y is 0, and so are the weights of the gradients.

The gradient recomputes each tile of weights as exp(score - stats). Let `along` be the sum of dy · y
along a row. Then the gradient of a score is weight * (dy · v - along) * scale. There are three
launches: `along` for every row; dk and dv, by blocks that own keys and iterate over the queries;
dq, by blocks that own queries and iterate over the keys. So no two blocks add to the same element,
and no atomics are needed. The order of each sum depends on shapes alone.
"""

from __future__ import annotations

from graphc.codegen.attention import plain, tensor_cores
from graphc.codegen.lines.kernel import line_kernel
from graphc.codegen.lines.program import Lines, Reduce
from graphc.codegen.node_calls import Launch, NodeCalls, Scratch
from graphc.codegen.rules import kernels_of
from graphc.codegen.text.operands import Operand, Places, operand, row_major
from graphc.codegen.text.scalar import arithmetic_dtype
from graphc.ir.graph import Node
from graphc.ir.types import TensorType


@kernels_of("attention", "dropped_attention")
def _attention(node: Node, places: Places) -> NodeCalls:
    """Return the calls of fused attention, which are one launch."""
    kernels = tensor_cores if tensor_cores.take(node) else plain
    return NodeCalls((kernels.attention(node, places),))


@kernels_of("attention_gradient", "dropped_attention_gradient")
def _attention_gradient(node: Node, places: Places) -> NodeCalls:
    """Return the calls of the gradient, three launches: sums of dy · y along rows, then dk and dv,
    then dq."""
    kernels = tensor_cores if tensor_cores.take(node) else plain
    q, along = node.inputs[1], Scratch(0)
    launches = (
        _along(node, places, along),
        kernels.key_gradients(node, places, along),
        kernels.query_gradient(node, places, along),
    )
    return NodeCalls(launches, (TensorType(q.shape[:3], arithmetic_dtype(q.type.dtype)),))


def _along(node: Node, places: Places, along: Scratch) -> Launch:
    """Return the launch that sums dy · y along rows."""
    dy, y = node.inputs[0], node.inputs[4]
    strides = row_major(y.shape[:3])
    program = Lines(
        y.shape,
        (3,),
        (operand("dy", dy, places[dy], y.shape), operand("y", y, places[y], y.shape)),
        (Operand("along", arithmetic_dtype(y.type.dtype), (*strides, 0), along),),
        (Reduce("Sum", {"total": "dy * y"}),),
        per_line={"along": "total"},
    )
    return line_kernel("attention_along", program)
