"""Rules of reductions over axes, including fused ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from graphc.codegen.lines.program import Along, Computed, Lines, Reduce
from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.rules import programs_of
from graphc.codegen.text.operands import Operand, Places, on_frame, operand
from graphc.ir.expression import Expression, parse
from graphc.ir.graph import Node, Value
from graphc.ir.types import DType
from graphc.ops.fused_reduce import OPERAND, FusedReduce

PEAK = Reduce("Max", {"peak": "x"})
LEAST = Reduce("Min", {"least": "x"})
SUM = Reduce("Sum", {"total": "x"})
SQUARES = Reduce("Sum", {"total": "x * x"})

REDUCTIONS: Mapping[str, tuple[Reduce, str]] = {
    "max": (PEAK, "peak"),
    "mean": (SUM, "total / count"),
    "min": (LEAST, "least"),
    "square_sum": (SQUARES, "total"),
    "sum": (SUM, "total"),
}
"""The reduction along a line, and the expression of its result, by op."""


@programs_of(*REDUCTIONS)
def _reduction(node: Node, places: Places) -> NodeCalls:
    (x,) = node.inputs
    axes = getattr(node.attributes, "axes", tuple(range(x.type.rank)))
    return _reduced(
        node, places, node.op.name, x.shape, axes, (operand("x", x, places[x], x.shape),)
    )


def sums_of(op: str, x: Value, axes: tuple[int, ...], y: Value, places: Places) -> Along:
    """Return the program that sums x over axes into y, which lacks them; `op` is its name."""
    kept = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
    lines = Lines(
        x.shape,
        axes,
        (operand("x", x, places[x], x.shape),),
        (on_frame("y", y, places[y], kept, x.shape),),
        (SUM,),
        per_line={"y": parse("total")},
    )
    return Along(op, lines)


@programs_of("fused_reduce")
def _fused_reduction(node: Node, places: Places) -> NodeCalls:
    op, given = node.op, node.attributes
    assert isinstance(op, FusedReduce)
    shape = op.operand(node).shape
    program = op.scalar_program(given, tuple(value.type.dtype for value in node.inputs))
    computed: Computed | None = Computed(OPERAND, given.order, program.expressions, program.locals)
    names = program.inputs
    if not given.members:
        computed, names = None, (OPERAND,)
    inputs = [
        operand(name, value, places[value], shape)
        for name, value in zip(names, node.inputs, strict=True)
    ]
    return _reduced(node, places, given.reduction, shape, given.axes, inputs, computed)


def _finish(node: Node, result: str) -> tuple[Expression, dict[str, tuple[DType, Expression]]]:
    """Return the expression that a fused reduction stores per line, and the intermediate
    expressions."""
    op = node.op
    if not isinstance(op, FusedReduce) or not node.attributes.after:
        return parse(result), {}
    program = op.program_behind(node)
    made = {name: e.specialize({"x0": "result"}) for name, e in program.expressions.items()}
    locals = {name: (program.locals[name], made[name]) for name in program.locals}
    (y,) = program.outputs
    return made[y], {"result": (op.result(node).dtype, parse(result)), **locals}


def _reduced(
    node: Node,
    places: Places,
    reduction: str,
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    inputs: Sequence[Operand],
    computed: Computed | None = None,
) -> NodeCalls:
    stage, result = REDUCTIONS[reduction]
    stored, finish = _finish(node, result)
    y, kept = node.output, tuple(1 if i in axes else n for i, n in enumerate(shape))
    program = Lines(
        shape,
        axes,
        tuple(inputs),
        (on_frame("y", y, places[y], kept, shape),),
        (stage,),
        per_line={"y": stored},
        constants={"count": float(math.prod(shape[axis] for axis in axes))},
        computed=computed,
        finish=finish,
    )
    return NodeCalls((Along(node.op.name, program),))
