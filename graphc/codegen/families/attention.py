"""Fused attention and its gradient, without the matrix of scores in memory.

Problem: softmax(scale · q · kᵀ) · v for a head of n positions has n² weights, of which a block can
hold no more than a tile of 32 by 32 at a time.

Forward, a block owns 32 rows of queries and goes through tiles of keys in order. Of each row it
keeps the highest score so far, `peak`, the sum of exp(score - peak), `total`, and the same sum with
rows of v for factors, `result`. The invariant: after each tile these three are those of a softmax
over the keys met so far. A tile that raises the peak first shrinks both sums by exp(old - new peak)
(Milakov and Gimelshein, 2018; Dao et al., 2022). At the end y = result / total, and
stats = peak + log(total) is all that the gradient needs of the row's weights.

A mask hides scores, or is added to them. A row from which everything is hidden has a sum of 0, for
which 1 is taken: y is 0, and so are the gradients' weights.

The gradient computes each tile of weights again as exp(score - stats). With `along`, the sum of
dy · y along a row, the gradient of a score is weight * (dy · v - along) * scale. Three launches:
`along` for every row; dk and dv, by blocks that own 32 keys and go through the queries; dq, by
blocks that own 32 queries and go through the keys. So no two blocks add to the same element,
nothing is added by atomics, and each sum has one order, which depends on shapes alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.codegen.families.attention_kernel import OWNED, AttentionKernel
from graphc.codegen.lines.kernel import line_kernel
from graphc.codegen.lines.program import Lines, Reduce
from graphc.codegen.node_calls import Launch, NodeCalls, Scratch
from graphc.codegen.rules import kernels_of
from graphc.codegen.text.access import indented
from graphc.codegen.text.operands import Operand, Places, operand, row_major
from graphc.codegen.text.scalar import arithmetic_dtype
from graphc.ir.graph import Node
from graphc.ir.types import TensorType

EVERY = f"#pragma unroll\nfor (unsigned i = 0; i < {OWNED}u; ++i)"
"""A loop over what a warp owns."""


@kernels_of("attention")
def _attention(node: Node, places: Places) -> NodeCalls:
    """One launch, whose blocks own queries and go through the keys."""
    kernel = AttentionKernel(node, places, "rows", "columns")
    real, parts = kernel.real, kernel.parts("y")
    before = [
        f"{real} peak[{OWNED}], total[{OWNED}] = {{}}, result[{OWNED}][{parts}] = {{}};",
        f"{EVERY} peak[i] = {_first_peak(kernel)};",
    ]
    each = [
        kernel.dots("score", "q", "k"),
        kernel.per_owned(_corrected(kernel)),
        kernel.sums("result", "weights", "v"),
    ]
    after = [_divided(kernel), kernel.stored("y", "result")]
    read, written = ("q", "k", "v", *kernel.masks), ("y", "stats")
    return NodeCalls((kernel.launch(read, written, before, each, after, ("weights",)),))


def _first_peak(kernel: AttentionKernel) -> str:
    """What peaks begin with: under a mask a row may see nothing, and the difference of two minus
    infinities is no number."""
    if kernel.mask is None:
        return _lowest(kernel)
    return kernel.number(float(np.finfo(kernel.held.numpy).min))


def _lowest(kernel: AttentionKernel) -> str:
    return f"-infinite({kernel.number(0.0)})"


def _corrected(kernel: AttentionKernel) -> list[str]:
    """Statements for a row and a tile: raise the peak, shrink the sums so far to it, and add the
    tile's weights to `total`; `result` gets them when all rows of the tile have theirs."""
    real, exp, zero = kernel.real, f"exp{kernel.suffix}", kernel.number(0.0)
    parts = kernel.parts("y")
    return [
        f"const {real} here = seen ? {kernel.score} : {_lowest(kernel)};",
        f"const {real} highest = maximum(peak[i], across_row<Max, WARP>(here));",
        # A row behind the last one sees nothing, and is not stored.
        f"const {real} weight = seen ? {exp}(here - highest) : {zero};",
        # In a row's first tile the peak is minus infinity, and what is kept of nothing is zero.
        f"const {real} kept = {exp}(peak[i] - highest);",
        "total[i] = total[i] * kept + across_row<Sum, WARP>(weight);",
        "peak[i] = highest;",
        "weights[mine + i][lane] = weight;",
        f"#pragma unroll\nfor (unsigned t = 0; t < {parts}u; ++t) result[i][t] *= kept;",
    ]


def _divided(kernel: AttentionKernel) -> str:
    """A loop that divides the owned rows by their sums, and stores the logarithms of these."""
    parts, log = kernel.parts("y"), f"log{kernel.suffix}"
    one, zero = kernel.number(1.0), kernel.number(0.0)
    # The sum of a row that sees something is at least 1.
    masked = [
        f"peak[i] = total[i] < {one} ? {zero} : peak[i];",
        f"total[i] = maximum(total[i], {one});",
    ]
    body = [
        *([] if kernel.mask is None else masked),
        f"#pragma unroll\nfor (unsigned t = 0; t < {parts}u; ++t) result[i][t] /= total[i];",
        "const Index row = base + mine + i;",
        f"if (lane == 0 && row < {kernel.owned}u)",
        f"    {kernel.at('stats', 'row')} = peak[i] + {log}(total[i]);",
    ]
    return f"{EVERY} {{\n{indented(body, 1)}\n}}"


@kernels_of("attention_gradient")
def _attention_gradient(node: Node, places: Places) -> NodeCalls:
    """Three launches: the sums of dy · y along rows, then dk and dv, then dq."""
    q = node.inputs[1]
    held = arithmetic_dtype(q.type.dtype)
    along = Scratch(0)
    launches = (
        _along(node, places, along),
        _key_gradients(node, places, along),
        _query_gradient(node, places, along),
    )
    return NodeCalls(launches, (TensorType(q.shape[:3], held),))


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


def _with_along(kernel: AttentionKernel, along: Scratch) -> dict[str, Scratch]:
    """Make those sums an operand of a kernel."""
    shape = (*kernel.heads, kernel.extents["rows"])
    kernel.operands["along"] = Operand("along", kernel.held, row_major(shape), along)
    return {"along": along}


def _slope(kernel: AttentionKernel, store: Sequence[str]) -> str:
    """A loop that computes, for each pair, its weight and the gradient of its score."""
    zero, scale = kernel.number(0.0), kernel.number(kernel.attributes.scale)
    stats, along = (f"widen({kernel.at(name, 'row')})" for name in ("stats", "along"))
    weight = f"exp{kernel.suffix}({kernel.score} - {stats})"
    return kernel.per_owned(
        [
            f"const {kernel.real} weight = seen ? {weight} : {zero};",
            f"const {kernel.real} slope =",
            f"    seen ? weight * (reach[i] - {along}) * {scale} : {zero};",
            *store,
        ]
    )


def _key_gradients(node: Node, places: Places, along: Scratch) -> Launch:
    """The launch that computes dk and dv, by blocks that own keys."""
    kernel = AttentionKernel(node, places, "columns", "rows")
    extra = _with_along(kernel, along)
    before = [
        f"{kernel.real} dk_sum[{OWNED}][{kernel.parts('k')}] = {{}};",
        f"{kernel.real} dv_sum[{OWNED}][{kernel.parts('v')}] = {{}};",
    ]
    store = ["weights[mine + i][lane] = weight;", "slopes[mine + i][lane] = slope;"]
    each = [
        kernel.dots("score", "k", "q"),
        kernel.dots("reach", "v", "dy"),
        _slope(kernel, store),
        kernel.sums("dv_sum", "weights", "dy"),
        kernel.sums("dk_sum", "slopes", "q"),
    ]
    after = [kernel.stored("dk", "dk_sum"), kernel.stored("dv", "dv_sum")]
    inputs = ("dy", "q", "k", "v", "stats", "along", *kernel.masks)
    return kernel.launch(inputs, ("dk", "dv"), before, each, after, ("weights", "slopes"), extra)


def _query_gradient(node: Node, places: Places, along: Scratch) -> Launch:
    """The launch that computes dq, by blocks that own queries."""
    kernel = AttentionKernel(node, places, "rows", "columns")
    extra = _with_along(kernel, along)
    before = [f"{kernel.real} dq_sum[{OWNED}][{kernel.parts('q')}] = {{}};"]
    each = [
        kernel.dots("score", "q", "k"),
        kernel.dots("reach", "dy", "v"),
        _slope(kernel, ["slopes[mine + i][lane] = slope;"]),
        kernel.sums("dq_sum", "slopes", "k"),
    ]
    inputs = ("dy", "q", "k", "v", "stats", "along", *kernel.masks)
    return kernel.launch(
        inputs, ("dq",), before, each, [kernel.stored("dq", "dq_sum")], ("slopes",), extra
    )
