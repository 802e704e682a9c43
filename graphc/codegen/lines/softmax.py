"""Rules of softmax, its relatives and their gradients, along one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphc.codegen.lines.kernel import line_kernel
from graphc.codegen.lines.long_lines import lines_kernels
from graphc.codegen.lines.program import Lines, Numbers, Reduce
from graphc.codegen.lines.reductions import PEAK
from graphc.codegen.node_calls import NodeCalls, Scratch
from graphc.codegen.rules import Rule, kernels_of
from graphc.codegen.text.operands import Operand, Places, counter, on_frame, operand
from graphc.codegen.text.scalar import arithmetic_dtype
from graphc.ir.graph import Node
from graphc.ir.types import TensorType, int64


def _along_axis(stages: Sequence[Reduce | Numbers], result: str) -> Rule:
    """The rule of an op whose operands all have the output's shape, with lines along one axis."""

    def rule(node: Node, places: Places) -> NodeCalls:
        y = node.output
        inputs = [
            operand(node.op.input_name(i), value, places[value], y.shape)
            for i, value in enumerate(node.inputs)
        ]
        name = node.op.output_name(0)
        program = Lines(
            y.shape,
            (node.attributes.axis,),
            tuple(inputs),
            (operand(name, y, places[y], y.shape),),
            tuple(stages),
            per_element={name: result},
        )
        return lines_kernels(node.op.name, program)

    return rule


TOTAL = Reduce("Sum", {"total": "exp(x - peak)"})

kernels_of("softmax")(_along_axis((PEAK, TOTAL), "exp(x - peak) / total"))
kernels_of("log_softmax")(_along_axis((PEAK, TOTAL), "x - peak - log(total)"))
kernels_of("softmax_gradient")(
    _along_axis((Reduce("Sum", {"along": "y * dy"}),), "(dy - along) * y")
)
kernels_of("log_softmax_gradient")(
    _along_axis((Reduce("Sum", {"total": "dy"}),), "dy - exp(y) * total")
)


@kernels_of("causal_softmax")
def _causal_softmax(node: Node, places: Places) -> NodeCalls:
    """Softmax of rows whose elements beyond a last column count as minus infinity, whatever x holds
    there."""
    (x,), y = node.inputs, node.output
    rank, (rows, columns) = y.type.rank, y.shape[-2:]
    seen = "where(column <= row + shift, {}, {})".format
    program = Lines(
        y.shape,
        (rank - 1,),
        (
            operand("x", x, places[x], y.shape),
            counter("column", int64, rank - 1, rank),
            counter("row", int64, rank - 2, rank),
        ),
        (operand("y", y, places[y], y.shape),),
        (
            Reduce("Max", {"peak": seen("x", "lowest")}),
            Reduce("Sum", {"total": seen("exp(x - peak)", "0")}),
        ),
        per_element={"y": seen("exp(x - peak) / total", "0")},
        constants={"shift": float(columns - rows), "lowest": -math.inf},
    )
    return lines_kernels(node.op.name, program)


@kernels_of("softmax_cross_entropy")
def _cross_entropy(node: Node, places: Places) -> NodeCalls:
    """A launch for the loss of each row, then one for their mean. A label out of range chooses
    nothing, and nothing is read out of bounds."""
    logits, labels = node.inputs
    loss, probabilities = node.outputs
    rows = logits.shape[0]
    wide = arithmetic_dtype(logits.type.dtype)
    row_loss = Operand("row_loss", wide, (1, 0), Scratch(0))
    by_row = Lines(
        logits.shape,
        (1,),
        (
            operand("x", logits, places[logits], logits.shape),
            on_frame("label", labels, places[labels], (rows, 1), logits.shape),
            counter("place", int64, 1, 2),
        ),
        (row_loss, operand("probabilities", probabilities, places[probabilities], logits.shape)),
        (PEAK, Reduce("Sum", {**TOTAL.of, "chosen": "where(place == label, x - peak, 0)"})),
        per_line={"row_loss": "log(total) - chosen"},
        per_element={"probabilities": "exp(x - peak) / total"},
    )
    mean = Lines(
        (rows,),
        (0,),
        (row_loss.on((1,)),),
        (operand("loss", loss, places[loss], (rows,)),),
        (Reduce("Sum", {"total": "row_loss"}),),
        per_line={"loss": "total / count"},
        constants={"count": float(rows)},
    )
    name = node.op.name
    launches = line_kernel(name, by_row), line_kernel(name, mean)
    return NodeCalls(launches, (TensorType((rows,), wide),))
