"""Fused attention and its gradient, without the matrix of scores in memory.

Problem: softmax(scale · q · kᵀ) · v for a head of n positions has n² weights, of which a block can
hold no more than a tile at a time.

Forward, a block owns some rows of queries and goes through tiles of keys in order. Of each row it
keeps the highest score so far, `peak`, the sum of exp(score - peak), `total`, and the same sum with
rows of v for factors, `result`. The invariant: after each tile these three are those of a softmax
over the keys met so far. A tile that raises the peak first shrinks both sums by exp(old - new peak)
(Milakov and Gimelshein, 2018; Dao et al., 2022). At the end y = result / total, and
stats = peak + log(total) is all that the gradient needs of the row's weights.

Where weights go through dropout, which of them stay is drawn again wherever a tile of weights is
computed. Those that do not count in `total`, but not in `result`.

A mask hides scores, or is added to them. A row from which everything is hidden has a sum of 0, for
which 1 is taken: y is 0, and so are the gradients' weights.

The gradient computes each tile of weights again as exp(score - stats). With `along`, the sum of
dy · y along a row, the gradient of a score is weight * (dy · v - along) * scale. Three launches:
`along` for every row; dk and dv, by blocks that own some keys and go through the queries; dq, by
blocks that own some queries and go through the keys. So no two blocks add to the same element,
nothing is added by atomics, and each sum has one order, which depends on shapes alone.
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
    """One launch."""
    kernels = tensor_cores if tensor_cores.take(node) else plain
    return NodeCalls((kernels.attention(node, places),))


@kernels_of("attention_gradient", "dropped_attention_gradient")
def _attention_gradient(node: Node, places: Places) -> NodeCalls:
    """Three launches: the sums of dy · y along rows, then dk and dv, then dq."""
    kernels = tensor_cores if tensor_cores.take(node) else plain
    q, along = node.inputs[1], Scratch(0)
    launches = (
        _along(node, places, along),
        kernels.key_gradients(node, places, along),
        kernels.query_gradient(node, places, along),
    )
    return NodeCalls(launches, (TensorType(q.shape[:3], arithmetic_dtype(q.type.dtype)),))


def _along(node: Node, places: Places, along: Scratch) -> Launch:
    """The launch that sums dy · y along rows."""
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
