"""Rules of softmax, its variants and their gradients, along one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphc.codegen.lines.program import Along, Lines, Numbers, Reduce
from graphc.codegen.lines.reductions import PEAK
from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.rules import Rule, programs_of
from graphc.codegen.text.operands import Places, counter, operand
from graphc.ir.graph import Node
from graphc.ir.types import compute_dtype, int64


def _along_axis(stages: Sequence[Reduce | Numbers], result: str) -> Rule:
    """Return the rule of an op whose operands all have the output's shape, with lines along one
    axis."""

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
        return NodeCalls((Along(node.op.name, program),))

    return rule


TOTAL = Reduce("Sum", {"total": "exp(x - peak)"})

programs_of("softmax")(_along_axis((PEAK, TOTAL), "exp(x - peak) / total"))
programs_of("log_softmax")(_along_axis((PEAK, TOTAL), "x - peak - log(total)"))
programs_of("softmax_gradient")(
    _along_axis((Reduce("Sum", {"along": "y * dy"}),), "(dy - along) * y")
)
programs_of("log_softmax_gradient")(
    _along_axis((Reduce("Sum", {"total": "dy"}),), "dy - exp(y) * total")
)


@programs_of("masked_softmax")
def _masked_softmax(node: Node, places: Places) -> NodeCalls:
    """Return the program of softmax over unmasked elements; results of fully masked lines are
    finite."""
    (x, mask), y = node.inputs, node.output
    wide = compute_dtype(x.type.dtype).numpy
    seen = "where(mask, {}, {})".format
    program = Lines(
        y.shape,
        (node.attributes.axis,),
        (operand("x", x, places[x], y.shape), operand("mask", mask, places[mask], y.shape)),
        (operand("y", y, places[y], y.shape),),
        (
            Reduce("Max", {"highest": seen("x", "lowest")}),
            Numbers({"peak": "maximum(highest, least)"}),
            Reduce("Sum", {"sum": seen("exp(x - peak)", "0")}),
            Numbers({"total": "maximum(sum, 1)"}),
        ),
        per_element={"y": seen("exp(x - peak) / total", "0")},
        constants={"lowest": -math.inf, "least": float(np.finfo(wide).min)},
    )
    return NodeCalls((Along(node.op.name, program),))


@programs_of("causal_softmax")
def _causal_softmax(node: Node, places: Places) -> NodeCalls:
    """Return the program of causal softmax: in each row, elements after the row's last visible
    column count as minus infinity.
    """
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
    return NodeCalls((Along(node.op.name, program),))
