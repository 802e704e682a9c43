"""Scalars of a step, computed by one thread in float64 and rounded once, as on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.codegen.node_calls import Launch, NodeCalls
from graphc.codegen.rules import kernels_of
from graphc.codegen.text.access import indented, parameters
from graphc.codegen.text.kernel import ENTRY, named
from graphc.codegen.text.operands import Operand, Places
from graphc.codegen.text.scalar import C_TYPES, arithmetic_dtype, literal
from graphc.ir.graph import Node
from graphc.ir.types import float64
from graphc.ops.learning_rate import LearningRateAttributes

PI = "3.141592653589793"


def _single_thread(node: Node, statements: Sequence[str], results: Sequence[str]) -> NodeCalls:
    """Return a kernel of one thread: statements, then the expression of each output."""
    op = node.op
    inputs = [Operand(op.input_name(i), v.type.dtype, (), v) for i, v in enumerate(node.inputs)]
    outputs = [Operand(op.output_name(i), v.type.dtype, (), v) for i, v in enumerate(node.outputs)]
    stores = [
        f"narrow({C_TYPES[arithmetic_dtype(o.dtype)]}({result}), {o.name}[0]);"
        for o, result in zip(outputs, results, strict=True)
    ]
    body = indented([*statements, *stores], 1)
    given = parameters(inputs, outputs)
    text = f'extern "C" __global__ void {ENTRY}({given}) {{\n{body}\n}}\n'
    launch = Launch(named(op.name, text), (*node.inputs, *node.outputs), 1, 1)
    return NodeCalls((launch,))


@kernels_of("adam_correction")
def _adam_correction(node: Node, places: Places) -> NodeCalls:
    betas = node.attributes
    first, second = literal(betas.beta1, float64), literal(betas.beta2, float64)
    return _single_thread(
        node,
        [
            "const double count = double(step[0]) + 1.0;",
            f"const double left = 1.0 - pow({first}, count);",
            f"const double spread = 1.0 - pow({second}, count);",
        ],
        ["double(widen(learning_rate[0])) / left", "1.0 / sqrt(spread)"],
    )


@kernels_of("learning_rate")
def _learning_rate(node: Node, places: Places) -> NodeCalls:
    a: LearningRateAttributes = node.attributes
    peak, floor = literal(a.peak, float64), literal(a.floor, float64)
    falling = {
        "constant": peak,
        "linear": f"{peak} + ({floor} - {peak}) * part",
        "cosine": f"{floor} + ({peak} - {floor}) * (1.0 + cos({PI} * part)) / 2.0",
        "exponential": f"{peak} * pow({floor} / {peak}, part)",
    }[a.form]
    rising = f"{peak} * double(step[0] + 1) / {literal(max(1, a.warmup), float64)}"
    length = literal(max(1, a.steps - a.warmup), float64)
    return _single_thread(
        node,
        [
            f"const double run = double(step[0] - {a.warmup}) / {length};",
            "const double part = run < 1.0 ? run : 1.0;",
            f"const double now = step[0] < {a.warmup} ? {rising} : {falling};",
        ],
        ["now"],
    )
