"""Rules of random ops."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.random.program import Drawn
from graphc.codegen.rules import programs_of
from graphc.codegen.text.operands import Operand, Places
from graphc.codegen.text.scalar import arithmetic_dtype
from graphc.ir.expression import Expression, parse
from graphc.ir.graph import Node
from graphc.ir.types import DType, float32
from graphc.ops.random import Noise, Normal, least_that_stays

RADIUS = "sqrt(log((first + 1) * unit) * -2)"  # the logarithm is finite
NORMAL = tuple(f"{function}(second * unit * turn) * {RADIUS}" for function in ("cos", "sin"))
"""The expressions that transform two uniform random numbers to normal ones (Box and Muller,
1958)."""


def _drawn(
    node: Node, places: Places, dtype: DType, standard: Sequence[Expression], result: Expression
) -> NodeCalls:
    *inputs, seed, step = (
        Operand(node.op.input_name(i), v.type.dtype, (1,), v, places[v].address)
        for i, v in enumerate(node.inputs)
    )
    y = node.output
    output = Operand("y", y.type.dtype, (1,), y, places[y].address)
    return NodeCalls(
        (
            Drawn(
                node.op.name, y.type.elements, dtype, node.attributes.stream, seed, step,
                tuple(inputs), output, tuple(standard), result,
            ),
        )
    )  # fmt: skip


@programs_of("dropout")
def _dropout(node: Node, places: Places) -> NodeCalls:
    rate = node.attributes.rate
    constants = {"least": float(least_that_stays(rate)), "factor": 1 / (1 - rate)}
    result = parse("where(drawn >= least, x * factor, 0)").specialize(constants)
    return _drawn(node, places, float32, (parse("first"),), result)


@programs_of(Noise)
def _noise(node: Node, places: Places) -> NodeCalls:
    op, dtype = node.op, node.output.type.dtype
    assert isinstance(op, Noise)
    offset, factor = op.line(node.attributes)
    constants = {"unit": op.unit(dtype), "turn": 2 * math.pi}
    sources = NORMAL if isinstance(op, Normal) else ("first * unit",)
    standard = [parse(source).specialize(constants) for source in sources]
    result = parse("drawn * factor + offset").specialize({"factor": factor, "offset": offset})
    return _drawn(node, places, arithmetic_dtype(dtype), standard, result)
